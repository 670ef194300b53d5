"""Training speed on gloo ranks against `strategy: fsdp`, PyTorch's own tensor parallelism, FSDP2 with it, and DDP.

    python -m tests.benchmarks.train [rounds [part of a title]]

Same model, same batch, same processes; the two are timed in turn, so that a busy machine disturbs both
alike. Prints JSON: tokens/s of each at its best and its median step, their ratios, memory of each in
processes of its own, and what tracing costs.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

RANKS, STEPS, WARM_UP = 4, 6, 2
NAMES = ("fourfold", "peer")
OWN_FSDP = "strategy fsdp"
"""A peer that is Fourfold itself."""
PAIRS = {
    "z=4 against strategy fsdp": ({"data": 1, "z": 4, "y": 1, "x": 1}, OWN_FSDP),
    "y=4 against tensor parallelism": ({"data": 1, "z": 1, "y": 4, "x": 1}, "tp"),
    "x=4 against tensor parallelism": ({"data": 1, "z": 1, "y": 1, "x": 4}, "tp"),
    "z=2 y=2 against FSDP2 x TP": ({"data": 1, "z": 2, "y": 2, "x": 1}, "fsdp_tp"),
    "z=2 x=2 against FSDP2 x TP": ({"data": 1, "z": 2, "y": 1, "x": 2}, "fsdp_tp"),
    "data=4 against DDP": ({"data": 4, "z": 1, "y": 1, "x": 1}, "ddp"),
    "one rank against a plain loop": ({"data": 1, "z": 1, "y": 1, "x": 1}, "serial"),
}


def ours(
    worker: Any, grid: dict[str, int], windows: Any, strategy: str = "four_d"
) -> tuple[Any, Callable[[int], float]]:
    """Make a trainee of the runtime, and a function that trains it on step i."""
    import torch

    from runtime.step.trainee import MicroBatch
    from runtime.strategies import trains
    from tests.benchmarks import peers
    from tests.runtime.fsdp_tasks import mesh_of
    from twin.description.train import Adam
    from twin.strategies import load_job
    from twin.strategies.four_d.grid import Grid

    sizes, shared = Grid(**grid), {"data": grid["data"], "weights": grid["z"]}
    local = peers.SEQUENCES // (sizes.data * sizes.z)
    job = load_job(
        {
            "model": {
                "layers": peers.LAYERS,
                "hidden": peers.HIDDEN,
                "heads": peers.HEADS,
                "sequence": peers.SEQUENCE,
                "vocabulary": peers.VOCABULARY,
                "biases": False,
            },
            "machine": "laptop",
            "strategy": strategy,
            "ranks": sizes.ranks,
            "grid": grid if strategy == "four_d" else shared,
            "precision": "fp32",
            "recompute": False,
            "batch": {"sequences": peers.SEQUENCES, "micro_sequences": local},
            **({"gather_unit": "block"} if strategy == "four_d" else {}),
        }
    )
    mesh = worker.mesh(sizes) if strategy == "four_d" else mesh_of(worker, shared)
    trainee = trains(job)(job, mesh, torch.device("cpu"), Adam())
    weight = 1.0 / (peers.SEQUENCES * peers.SEQUENCE)

    def step(index: int) -> float:
        window = windows[index % len(windows)][mesh.replica * local : (mesh.replica + 1) * local]
        weights = torch.full_like(window[:, 1:], weight, dtype=torch.float32)
        batch = [MicroBatch(0, window[:, :-1], window[:, 1:], weights)]
        return float(trainee.step(batch, 3e-4).loss)

    return trainee, step


def windows() -> Any:
    """Random sequences (steps, sequences, s + 1)."""
    import torch

    from tests.benchmarks import peers

    generator = torch.Generator().manual_seed(1)
    shape = (8, peers.SEQUENCES, peers.SEQUENCE + 1)
    return torch.randint(0, peers.VOCABULARY, shape, generator=generator)


def contestant(worker: Any, grid: dict[str, int], peer: str, name: str) -> Callable[[int], float]:
    """Make one of the two."""
    from tests.benchmarks import peers

    if name == "fourfold":
        return ours(worker, grid, windows())[1]
    if peer == OWN_FSDP:
        return ours(worker, grid, windows(), "fsdp")[1]
    return peers.trainer(peer, windows())


def measure(worker: Any, grid: dict[str, int], peer: str, rounds: int) -> dict[str, list[float]]:
    """Time both, in turn; seconds of every step. Runs on every rank."""
    import torch.distributed as dist

    meet = (lambda: None) if peer == "serial" else dist.barrier
    steps = {name: contestant(worker, grid, peer, name) for name in NAMES}
    seconds: dict[str, list[float]] = {name: [] for name in NAMES}
    for index in range(WARM_UP):
        for step in steps.values():
            step(index)
    for _ in range(rounds):
        for name, step in steps.items():
            for index in range(STEPS):
                meet()
                begin = time.perf_counter()
                step(index)
                meet()
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def memory(worker: Any, grid: dict[str, int], peer: str, name: str) -> float:
    """Megabytes that a rank grows by, at its peak, from before the model is made to after a few steps."""
    import resource
    from pathlib import Path

    import runtime.train.trainer  # noqa: F401  imports count for neither
    import tests.benchmarks.peers  # noqa: F401

    windows()
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    step = contestant(worker, grid, peer, name)
    for index in range(4):
        step(index)
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024 - pages * resource.getpagesize() / 2**20


def tracing(worker: Any, grid: dict[str, int], rounds: int) -> dict[str, list[float]]:
    """Seconds of steps with and without a listener, in turn."""
    import torch.distributed as dist

    from runtime.tracing.listener import HostListener

    trainee, step = ours(worker, grid, windows())
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


def main() -> None:
    """Run the pairs whose title contains the second argument."""
    from tests.benchmarks import peers
    from tests.runtime.pool import Pool

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    tokens, answer = peers.SEQUENCES * peers.SEQUENCE, {}
    for title, (grid, peer) in PAIRS.items():
        if only not in title:
            continue
        ranks = 1 if peer == "serial" else RANKS
        used = {}
        for name in NAMES:
            pool = Pool(ranks)
            grown = pool.run("tests.benchmarks.train:memory", ranks, grid=grid, peer=peer, name=name)
            used[name] = max(grown)
            pool.close()
        pool = Pool(ranks)
        found = pool.run("tests.benchmarks.train:measure", ranks, grid=grid, peer=peer, rounds=rounds)[0]
        pool.close()
        row: dict[str, float] = {}
        for how, pick in (("best", min), ("median", statistics.median)):
            for name in NAMES:
                row[f"{name} tokens/s, {how}"] = round(tokens / pick(found[name]))
            row[f"ratio, {how}"] = round(pick(found["peer"]) / pick(found["fourfold"]), 3)
        for name in NAMES:
            row[f"{name} memory, MB a rank"] = round(used[name], 1)
        answer[title] = row
        print(title, row, file=sys.stderr, flush=True)
    if only in "tracing":
        pool = Pool(RANKS)
        times = pool.run(
            "tests.benchmarks.train:tracing", RANKS, grid={"data": 1, "z": 2, "y": 2, "x": 1}, rounds=10 * rounds
        )[0]
        pool.close()
        answer["tracing, z=2 y=2"] = {
            f"overhead, {how}": round(pick(times["traced"]) / pick(times["plain"]) - 1, 4)
            for how, pick in (("best", min), ("median", statistics.median))
        }
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
