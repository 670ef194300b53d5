"""Training speed on gloo ranks: the 4D algorithm against Fourfold's other strategies, and both against plain PyTorch.

    python -m tests.benchmarks.train [rounds [part of a title]] [--out FILE.json]

Same model, same batch, same processes; those of a title are timed in turn, so that a busy machine disturbs all alike.
Where plain PyTorch takes part, ours do so twice: as they are, and multiplying by the library that PyTorch takes, so
that what is the algorithm's can be told from what is the library's. Prints JSON: tokens/s of each at its best and its
median step, their ratios, memory of each in processes of its own with the settings of the heap that `fourfold train
--ranks` gives, and what tracing costs. FILE.json gets the same with machine, date and load, row by row.
"""

from __future__ import annotations

import argparse
import datetime
import json
import os
import statistics
import sys
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from multiprocessing import get_context
from pathlib import Path
from typing import Any
from unittest.mock import patch

RANKS, STEPS, WARM_UP, MEMORY_STEPS = 4, 6, 2, 24
FOUR_D, OWN, PYTORCH = "4D", "own strategy", "PyTorch"
SAME_PRODUCTS = {f"{name}, PyTorch's products": name for name in (FOUR_D, OWN)}
"""Ours with `train.gemm_library: pytorch`."""
MAX_SECONDS = 600.0
"""Of one task; steps of a busy machine may take a second."""
EQUAL_LOSS = 1e-3
"""The runtime's strategies begin with equal weights, so their first losses differ by rounding alone."""


DIVIDED: dict[str, Any] = {"divide": {"attention": True, "mlp": True}}
FLAT: dict[str, Any] = {"tensor": "1d"}
THRIFTY: dict[str, Any] = {"overlap": {"scatters_in_flight": 1}}
VARIANTS = {", divided": DIVIDED, ", `tensor: 1d`": FLAT, ", `scatters_in_flight: 1`": THRIFTY}


@dataclass(frozen=True)
class Contest:
    """A grid of 4D, and who else trains the same."""

    grid: dict[str, int]
    own: dict[str, Any] = field(default_factory=dict)
    """Keys of a job of another strategy; none if there is no such strategy."""
    peer: str = ""
    """One of `tests.benchmarks.peers`."""
    ranks: int = RANKS
    more: dict[str, Any] = field(default_factory=dict)
    """Options of the job of 4D."""

    @property
    def names(self) -> tuple[str, ...]:
        """Who takes part."""
        own = (FOUR_D, *([OWN] if self.own else []))
        same = [again for again, name in SAME_PRODUCTS.items() if name in own]
        return (*own, *same, PYTORCH) if self.peer else own

    @property
    def pairs(self) -> list[tuple[str, str]]:
        """Whose speeds are told as ratios: all to plain PyTorch, and 4D to the other strategy."""
        found = [(name, PYTORCH) for name in self.names[:-1]] if self.peer else []
        return [*([(FOUR_D, OWN)] if self.own else []), *found]

    def words(self) -> dict[str, str]:
        """Say who each of them is."""
        from tests.benchmarks import peers

        found = {FOUR_D: ", ".join(f"{axis} = {size}" for axis, size in self.grid.items()) or "one rank"}
        found[FOUR_D] += "".join(words for words, more in VARIANTS.items() if more == self.more)
        if self.own:
            grid = " × ".join(f"{axis} {size}" for axis, size in self.own["grid"].items())
            schedule = {"1f1b": " (1F1B)", "zb_h1": " (ZB-H1)"}.get(self.own.get("schedule", ""), "")
            found[OWN] = f"`{self.own['strategy']}`, {grid}{schedule}"
        return found | ({PYTORCH: peers.NAMES[self.peer]} if self.peer else {})


def _torch(**grid: int) -> dict[str, Any]:
    return {"strategy": "megatron", "flavour": "torch", "grid": grid}


def _pipeline(schedule: str) -> Contest:
    """A pipeline of as many stages as ranks; 4D with a quarter of the weights on each rank too."""
    return Contest({"z": RANKS}, {**_torch(pipeline=RANKS), "schedule": schedule}, schedule)


CONTESTS = {
    "z=4 against FSDP2": Contest({"z": 4}, {"strategy": "fsdp", "grid": {"weights": 4}}, "fsdp"),
    "z=4, thrifty, against FSDP2": Contest({"z": 4}, peer="fsdp", more=THRIFTY),
    "y=4 against tensor parallelism": Contest({"y": 4}, _torch(tensor=4), "tp"),
    "x=4 against tensor parallelism": Contest({"x": 4}, _torch(tensor=4), "tp"),
    "z=2 y=2 against FSDP2 x TP": Contest({"z": 2, "y": 2}, _torch(data=2, tensor=2), "fsdp_tp"),
    "x=4, divided, against tensor parallelism": Contest({"x": 4}, _torch(tensor=4), "tp", more=DIVIDED),
    "x=4, flat, against tensor parallelism": Contest({"x": 4}, _torch(tensor=4), "tp", more=FLAT),
    "z=2 x=2 against FSDP2 x TP": Contest({"z": 2, "x": 2}, _torch(data=2, tensor=2), "fsdp_tp"),
    "z=2 x=2, flat, against FSDP2 x TP": Contest({"z": 2, "x": 2}, _torch(data=2, tensor=2), "fsdp_tp", more=FLAT),
    "z=2 y=2 against FSDP2 x context": Contest({"z": 2, "y": 2}, _torch(data=2, context=2)),
    "z=4 against a pipeline, 1F1B": _pipeline("1f1b"),
    "z=4 against a pipeline, ZB-H1": _pipeline("zb_h1"),
    "data=4 against DDP": Contest({"data": 4}, {"strategy": "ddp", "grid": {"data": 4}}, "ddp"),
    "one rank against a plain loop": Contest({}, {"strategy": "ddp", "grid": {"data": 1}}, "serial", ranks=1),
}


TRACING = "tracing, z=2 y=2"


def described(contest: Contest, name: str) -> Any:
    """The job of 4D, or of the other strategy."""
    from tests.benchmarks import peers
    from twin.strategies import load_job

    four_d = {"strategy": "four_d", "grid": contest.grid, "gather_unit": "block", **contest.more}
    own = four_d if SAME_PRODUCTS.get(name, name) == FOUR_D else contest.own
    grid = own["grid"]
    replicas = grid.get("data", 1) * grid.get("z", 1) * grid.get("weights", 1)
    micro = peers.MICRO_SEQUENCES if "pipeline" in grid else peers.SEQUENCES // replicas
    shape = {
        "layers": peers.LAYERS,
        "hidden": peers.HIDDEN,
        "heads": peers.HEADS,
        "sequence": peers.SEQUENCE,
        "vocabulary": peers.VOCABULARY,
        "biases": False,
    }
    return load_job(
        {
            "model": shape,
            "machine": "laptop",
            "ranks": contest.ranks,
            "precision": "fp32",
            "recompute": False,
            "batch": {"sequences": peers.SEQUENCES, "micro_sequences": micro},
            "train": {"gemm_library": "pytorch" if name in SAME_PRODUCTS else "auto"},
            **own,
        }
    )


def ours(contest: Contest, name: str) -> tuple[Any, Callable[[int], float]]:
    """Make a trainee of the runtime, and a function that trains it on step i."""
    import torch

    from runtime.data.batches import local_sequences
    from runtime.parallel.mesh import Mesh
    from runtime.step.trainee import MicroBatch
    from runtime.strategies import ranks_of, trains
    from tests.benchmarks import peers
    from twin.description.train import Adam

    job, shown = described(contest, name), windows()
    mesh = Mesh.create(ranks_of(job), timeout_seconds=60.0)
    trainee = trains(job)(job, mesh, torch.device("cpu"), Adam())
    parts = local_sequences(mesh.grid, mesh.rank, 0, peers.SEQUENCES, job.concrete_micro_sequences)
    weight = 1.0 / (peers.SEQUENCES * peers.SEQUENCE)

    def step(index: int) -> float:
        whole = shown[index % len(shown)]
        batch = []
        for first, count in parts:
            window = whole[first : first + count]
            weights = torch.full_like(window[:, 1:], weight, dtype=torch.float32)
            batch.append(MicroBatch(first, window[:, :-1], window[:, 1:], weights))
        return float(trainee.step(batch, 3e-4).loss)

    return trainee, step


def windows() -> Any:
    """Random sequences (steps, sequences, s + 1)."""
    import torch

    from tests.benchmarks import peers

    generator = torch.Generator().manual_seed(1)
    shape = (8, peers.SEQUENCES, peers.SEQUENCE + 1)
    return torch.randint(0, peers.VOCABULARY, shape, generator=generator)


def contestant(title: str, name: str) -> Callable[[int], float]:
    """Make one of those of a title."""
    from tests.benchmarks import peers

    contest = CONTESTS[title]
    return peers.trainer(contest.peer, windows()) if name == PYTORCH else ours(contest, name)[1]


def measure(worker: Any, title: str, rounds: int) -> dict[str, list[float]]:
    """Time all of them, in turn; seconds of every step. Runs on every rank."""
    import torch.distributed as dist

    del worker
    contest = CONTESTS[title]
    meet = dist.barrier if contest.ranks > 1 else _alone
    steps = {name: contestant(title, name) for name in contest.names}
    seconds: dict[str, list[float]] = {name: [] for name in contest.names}
    for index in range(WARM_UP):
        losses = {name: step(index) for name, step in steps.items()}
        first = [loss for name, loss in losses.items() if name != PYTORCH]
        if index == 0 and max(first) - min(first) > EQUAL_LOSS:
            raise ValueError(f"{title}: ours do not train the same: first losses are {losses}")
    for _ in range(rounds):
        for name, step in steps.items():
            for index in range(STEPS):
                meet()
                begin = time.perf_counter()
                step(index)
                meet()
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def _alone() -> None:
    """Meet nobody."""


def memory(worker: Any, title: str, name: str) -> float:
    """Megabytes that a rank grows by, at its peak, from before the model is made to after the last step."""
    import resource
    from importlib import import_module

    import runtime.train.trainer  # noqa: F401
    import tests.benchmarks.peers  # noqa: F401
    from runtime.strategies import names

    del worker
    for strategy in names():
        import_module(f"runtime.strategies.{strategy}")  # imports count for nobody
    windows()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    step = contestant(title, name)
    for index in range(MEMORY_STEPS):
        step(index)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - pages * resource.getpagesize() / 2**20


def tracing(worker: Any, rounds: int) -> dict[str, list[float]]:
    """Seconds of steps with and without a listener, in turn."""
    import torch.distributed as dist

    from runtime.tracing.listener import HostListener

    del worker
    trainee, step = ours(Contest({"z": 2, "y": 2}), FOUR_D)
    seconds: dict[str, list[float]] = {"traced": [], "plain": []}
    for index in range(WARM_UP + 2 * rounds):
        traced = index % 2 == 0
        trainee.context.ops.listener = HostListener(index) if traced else None
        dist.barrier()
        begin = time.perf_counter()
        step(index)
        dist.barrier()
        if index >= WARM_UP:
            seconds["traced" if traced else "plain"].append(time.perf_counter() - begin)
    return seconds


def in_processes(ranks: int, task: str, **arguments: Any) -> list[Any]:
    """Run a task of this module on ranks of its own."""
    from tests.runtime.pool import Pool

    pool = Pool(ranks, MAX_SECONDS)
    try:
        return pool.run(f"tests.benchmarks.train:{task}", ranks, **arguments)
    finally:
        pool.close()


def grown(title: str, name: str) -> float:
    """Megabytes of the rank that grows most, in a new program: the C library reads its settings when one starts."""
    from runtime.launch.heap import heap_environment

    ranks = CONTESTS[title].ranks
    with patch.dict(os.environ, heap_environment(os.environ)), ProcessPoolExecutor(1, get_context("spawn")) as program:
        return max(program.submit(in_processes, ranks, "memory", title=title, name=name).result())


def row(title: str, rounds: int) -> dict[str, float]:
    """Measure one title."""
    from tests.benchmarks import peers

    contest, tokens = CONTESTS[title], peers.SEQUENCES * peers.SEQUENCE
    found = in_processes(contest.ranks, "measure", title=title, rounds=rounds)[0]
    made: dict[str, float] = {}
    for how, pick in (("best", min), ("median", statistics.median)):
        made |= {f"{name}: tokens/s, {how}": round(tokens / pick(found[name])) for name in contest.names}
        made |= {
            f"{one} / {other}, {how}": round(pick(found[other]) / pick(found[one]), 3) for one, other in contest.pairs
        }
    for name in contest.names:
        if name not in SAME_PRODUCTS:
            made[f"{name}: memory, MB a rank"] = round(grown(title, name), 1)
    return made


def costs(rounds: int) -> dict[str, float]:
    """Measure what tracing costs."""
    times = in_processes(RANKS, "tracing", rounds=10 * rounds)[0]
    return {
        f"overhead, {how}": round(pick(times["traced"]) / pick(times["plain"]) - 1, 4)
        for how, pick in (("best", min), ("median", statistics.median))
    }


def written(answer: dict[str, dict[str, float]], steps: int, load: list[float]) -> dict[str, Any]:
    """Return what was measured with who, where and when."""
    import torch

    from tests.benchmarks.processes import machine

    return {
        "machine": f"{machine()}, PyTorch {torch.__version__.partition('+')[0]} (CPU), gloo",
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "load": load,
        "steps": steps,
        "command": "python -m tests.benchmarks.train",
        "contestants": {title: CONTESTS[title].words() for title in CONTESTS if title in answer},
        "rows": answer,
    }


def main() -> None:
    """Run what has the second argument in its title."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("rounds", type=int, nargs="?", default=4, help=f"of {STEPS} steps of each")
    options.add_argument("only", nargs="?", default="", help="part of a title")
    options.add_argument("--out", type=Path, metavar="FILE.json", help="write the figures, with machine, date and load")
    chosen = options.parse_args()
    before = os.getloadavg()[0]
    answer: dict[str, dict[str, float]] = {}
    for title in (*CONTESTS, TRACING):
        if chosen.only in title:
            answer[title] = row(title, chosen.rounds) if title in CONTESTS else costs(chosen.rounds)
            print(title, answer[title], file=sys.stderr, flush=True)
            if chosen.out:
                found = written(answer, STEPS * chosen.rounds, [round(before, 1), round(os.getloadavg()[0], 1)])
                chosen.out.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
