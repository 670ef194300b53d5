"""What PyTorch's own parallelism costs a core, besides what it computes: FSDP2's hooks, DTensor's dispatch.

These want a process group, and ranks that calibrate are in one already. So each rank asks a process of its own, whose
group has no peers (`runtime.recorder.world`), to train the smallest models of each strategy; all ranks at once, as in
training. What is kept are single ops and what lies between them; how long a step takes is not looked at.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from math import prod
from statistics import median
from typing import Any

import torch

from runtime.calibration.kernels import entries_of, seconds_between
from runtime.calibration.listening import Kind, by_kind, hear
from runtime.calibration.quiet import Quiet
from runtime.calibration.sample import spread
from runtime.calibration.team import Team
from runtime.parallel.ops import Listener
from runtime.recorder.gpt import LEARNING_RATE, batch_of
from runtime.recorder.world import fake_world
from runtime.strategies import ranks_of, trains
from runtime.tracing.listener import Note
from twin.description.job import Job
from twin.description.train import Adam
from twin.strategies import load_job

SHAPES = ((64, 256, 256), (128, 256, 512), (256, 512, 1024))
"""(hidden, tokens, vocabulary)."""
SEQUENCE, LAYERS = 64, 2
REPLICAS = ("data", "z", "weights")
"""Axes whose ranks have sequences of their own."""
PLAIN = "plain"
SOFTWARE: dict[str, dict[str, Any]] = {
    PLAIN: {"strategy": "ddp", "grid": {"data": 2}},
    "four_d": {"grid": {"z": 2, "y": 2}},
    "fsdp2": {"strategy": "fsdp", "grid": {"weights": 2}},
    "dtensor": {"strategy": "megatron", "flavour": "torch", "grid": {"tensor": 2}},
}
"""Jobs by what starts their collectives; DDP's start but two, so that its ops are those of a plain loop."""
OTHERS = {"fsdp2": ("all_reduce",)}
"""Kinds of collectives that are not started by what is measured."""
MIN_STEPS, WARM_UP = 3, 2
READY, GO = "ready", "go"


@dataclass(frozen=True)
class Heard:
    """What one process found of one job."""

    software: str
    hidden: int
    ops: int
    collectives: int
    between: list[float]
    """Seconds of a core outside all ops, of each step."""
    kinds: dict[Kind, list[float]]
    """Seconds of a core in ops, by kind."""

    def written(self) -> str:
        """As one line."""
        return json.dumps({**vars(self), "kinds": [[asdict(kind), found] for kind, found in self.kinds.items()]})

    @classmethod
    def read(cls, line: str) -> Heard:
        """From such a line."""
        raw = json.loads(line)
        kinds = {Kind(**{**kind, "shape": tuple(kind["shape"])}): found for kind, found in raw["kinds"]}
        return cls(**{**raw, "kinds": kinds})


def measure_software(team: Team, seconds: float) -> list[dict[str, Any]]:
    """Time the steps of each strategy on every rank at once, in processes without peers; entries on rank 0.

    Each entry: which software, how many computing ops and collectives of its own a step has, seconds of a core in a
    step outside all ops; and its ops as `measure_kernels` writes them. Of CPUs only: a GPU's host runs ahead.
    """
    if team.device.type != "cpu":
        return []
    each = seconds / (len(SOFTWARE) * len(SHAPES))
    child = subprocess.Popen(
        [sys.executable, "-m", "runtime.calibration.software", str(each), str(torch.get_num_threads())],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    child.stdout.readline()  # it has loaded everything, or has ended
    team.start_together()
    said, _ = child.communicate(f"{GO}\n")
    if child.returncode:
        raise RuntimeError(f"rank {team.rank}: timing the strategies' software ended with exit code {child.returncode}")
    everyone = team.gather([Heard.read(line) for line in said.splitlines()])
    team.start_together()
    return [_entry(list(same), team.ranks) for same in zip(*everyone, strict=True)] if everyone else []


def _entry(same: list[Heard], busy: int) -> dict[str, Any]:
    first, between = same[0], [found for heard in same for found in heard.between]
    return {
        "busy": busy,
        "software": first.software,
        "hidden": first.hidden,
        "ops": first.ops,
        "collectives": first.collectives,
        "seconds_between": median(between),
        "spread": spread(between),
        "kernels": [{"busy": busy, **entry} for entry in entries_of([heard.kinds for heard in same])],
    }


def _job(software: str, hidden: int, tokens: int, vocabulary: int) -> Job:
    way = SOFTWARE[software]
    ranks, replicas = prod(way["grid"].values()), prod(n for axis, n in way["grid"].items() if axis in REPLICAS)
    return load_job(
        {
            "model": {
                "layers": LAYERS,
                "hidden": hidden,
                "heads": hidden // 32,
                "sequence": SEQUENCE,
                "vocabulary": vocabulary,
            },
            "machine": "laptop",
            "precision": "fp32",
            "recompute": False,
            "ranks": ranks,
            "batch": {"sequences": tokens // SEQUENCE * replicas, "micro_sequences": tokens // SEQUENCE},
            **way,
        },
        [],
    )


def _timed(software: str, job: Job, seconds: float) -> Heard:
    device = torch.device("cpu")
    with fake_world(ranks_of(job), 0) as mesh:
        trainee = trains(job)(job, mesh, device, Adam())
        context = trainee.context
        context.collectives = Quiet(context.mesh, context.ops, direct=True)
        batch = batch_of(job, context)

        def step(listener: Listener | None = None) -> None:
            context.ops.listener = listener
            trainee.step(batch, LEARNING_RATE)
            context.ops.listener = None

        for _ in range(WARM_UP + trainee.warm_up_steps):
            step()
        found = Heard(software, job.model.hidden, 0, 0, [], {})
        begin = time.perf_counter()
        while len(found.between) < MIN_STEPS or time.perf_counter() - begin < seconds:
            found = _with(found, hear(device, step), step)
        return found


def _with(found: Heard, notes: list[Note], step: Callable[[], None]) -> Heard:
    """Add a step that was heard, and do one that is not."""
    heard = by_kind(notes)
    for kind, times in heard.items():
        found.kinds.setdefault(kind, []).extend(times)
    found.between.append(seconds_between(step, heard))
    started = [note for note in notes if note.kind == "collective"]
    own = [note for note in started if note.op.kind not in OTHERS.get(found.software, ())]
    return replace(found, ops=sum(map(len, heard.values())), collectives=len(own))


def main(seconds: float, threads: int) -> None:
    """Say that all is loaded, wait to be told, and time; a line of each job."""
    torch.set_num_threads(threads)
    print(READY, flush=True)  # noqa: T201  read by the rank
    if sys.stdin.readline().strip() != GO:
        sys.exit("the rank that wanted this is gone")
    for shape in SHAPES:
        for software in SOFTWARE:
            print(_timed(software, _job(software, *shape), seconds).written(), flush=True)  # noqa: T201


if __name__ == "__main__":
    main(float(sys.argv[1]), int(sys.argv[2]))
