"""One rank that runs many jobs, one after another, and writes how long their steps took.

    python -m tests.testbed.worker PLAN.json

The plan: {"out": directory, "jobs": [{"name", "label", "job": file or mapping, "warmup", "timed", "traced",
"trace": keep the trace}, …]}. Steps without and with a listener take turns, so that both see the
same machine. Of each job rank 0 writes `NAME.json`, and the trace as `NAME-trace/` if wanted.
"""

from __future__ import annotations

import json
import os
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean
from typing import Any, NoReturn

import torch
import torch.distributed as dist

from runtime.calibration.gemms import product
from runtime.data.batches import local_sequences
from runtime.launch.environment import from_environment
from runtime.launch.meeting import join, open_store
from runtime.parallel.mesh import Mesh
from runtime.step.context import Context
from runtime.step.trainee import MicroBatch, Trainee
from runtime.strategies import ranks_of, trains
from runtime.strategies.four_d.gemm import Signature
from runtime.tracing.tracer import Tracer
from runtime.tracing.wanted import TraceWanted
from twin.description.job import Job
from twin.description.train import Adam
from twin.strategies import load_job

TIMEOUT_SECONDS = 120.0
LEARNING_RATE = 1e-4
PRODUCT, PRODUCTS = Signature("forward", 512, 512, 512), 60
"""One that calibration times too, 1.5 ms of a core: so many that ranks that share cores have had several turns."""


@dataclass(frozen=True)
class Wanted:
    """One job of the plan."""

    name: str
    label: str
    job: Any
    warmup: int = 2
    timed: int = 5
    traced: int = 0
    trace: bool = False


@dataclass(frozen=True)
class Interval:
    """One step on this rank, by the machine's monotonic clock."""

    traced: bool
    start_ns: int
    end_ns: int
    loss: float


def main(path: Path) -> None:
    """Run a plan."""
    plan = json.loads(path.read_text(encoding="utf-8"))
    for number, entry in enumerate(plan["jobs"]):
        in_a_world_of_its_own(Wanted(**entry), Path(plan["out"]), number)


def in_a_world_of_its_own(wanted: Wanted, out: Path, number: int) -> None:
    """Run one job in a child process, which spares it the start of Python and torch.

    One world for all jobs would not do: every group has a thread that gloo wakes a hundred times a
    second, and groups that are destroyed leave their addresses in the store.
    """
    child = os.fork()
    if child == 0:
        os.environ["MASTER_PORT"] = str(int(os.environ["MASTER_PORT"]) + number)
        leave(lambda: run_job(wanted, out))
    _, status = os.waitpid(child, 0)
    if code := os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{wanted.name} ended with exit code {code}")


def leave(work: Callable[[], None]) -> NoReturn:
    """Do the work and end the process."""
    code = 0
    try:
        work()
    except BaseException:
        traceback.print_exc()
        code = 1
    sys.stderr.flush()
    os._exit(code)  # gloo's threads may abort a process that ends in the ordinary way


def run_job(wanted: Wanted, out: Path) -> None:
    """Run one job's steps and write what was measured."""
    torch.set_num_threads(1)
    process = from_environment(os.environ)
    if process.ranks > 1:
        join(process, open_store(process, TIMEOUT_SECONDS), torch.device("cpu"), TIMEOUT_SECONDS)
    job = load_job(wanted.job if isinstance(wanted.job, dict) else Path(wanted.job), [])
    if job.ranks != process.ranks:
        raise ValueError(f"{wanted.name} has {job.ranks} ranks, the world {process.ranks}")
    torch.manual_seed(0)
    mesh = Mesh.create(ranks_of(job), timeout_seconds=TIMEOUT_SECONDS)
    trainee = trains(job)(job, mesh, torch.device("cpu"), Adam())
    tracer = Tracer(TraceWanted(out / f"{wanted.name}-trace", 0, wanted.traced, overwrite=True), trainee.context)
    before = product_seconds(mesh)
    steps = measure(trainee, mesh, wanted, tracer)
    mine = steps, mean((before, product_seconds(mesh)))
    everyone: list[Any] | None = [mine]
    if mesh.everyone is not None:
        everyone = [None] * process.ranks if process.rank == 0 else None
        dist.gather_object(mine, everyone, group=mesh.everyone, group_dst=0)
    if everyone is not None:
        of_ranks, products = zip(*everyone, strict=True)
        write_result(out / f"{wanted.name}.json", wanted, job, of_ranks, mean(products))
    if wanted.trace:
        tracer.write(process)


def product_seconds(mesh: Mesh) -> float:
    """Return what a product that calibration counts too takes of a core now, all ranks at once.

    Cores that others share as well are not at all times what they were when the machine was calibrated.
    """
    run = product(PRODUCT, torch.float32, torch.device("cpu"))
    run()
    if mesh.everyone is not None:
        dist.barrier(group=mesh.everyone)
    begin = time.thread_time()
    for _ in range(PRODUCTS):
        run()
    return (time.thread_time() - begin) / PRODUCTS


def measure(trainee: Trainee, mesh: Mesh, wanted: Wanted, tracer: Tracer) -> list[Interval]:
    """Warm up; then take turns between steps with and without a listener."""
    number, steps = 0, []
    for _ in range(wanted.warmup):
        one_step(trainee, mesh, number)
        number += 1
    for turn in range(max(wanted.timed, wanted.traced)):
        if turn < wanted.timed:
            steps.append(one_step(trainee, mesh, number))
            number += 1
        if turn < wanted.traced:
            steps.append(one_step(trainee, mesh, number, tracer, turn))
            number += 1
    return steps


def one_step(trainee: Trainee, mesh: Mesh, number: int, tracer: Tracer | None = None, traced_as: int = 0) -> Interval:
    """Run a step from a common start."""
    batch = random_batch(trainee.context, number)
    if tracer is not None:
        tracer.before(traced_as)
    if mesh.everyone is not None:
        dist.barrier(group=mesh.everyone)
    start = time.monotonic_ns()
    figures = trainee.step(batch, LEARNING_RATE)
    end = time.monotonic_ns()
    if tracer is not None:
        tracer.after(traced_as)
    loss = float(figures.loss)
    if loss != loss:
        raise ValueError(f"the loss of step {number} is not a number")
    return Interval(tracer is not None, start, end, loss)


def random_batch(context: Context, step: int) -> list[MicroBatch]:
    """This rank's part of a global batch of random tokens, the same on every grid."""
    job = context.job
    model, count = job.model, float(job.batch.sequences * job.model.sequence)
    parts = local_sequences(
        context.mesh.grid, context.mesh.rank, step, job.batch.sequences, job.concrete_micro_sequences
    )
    return [
        MicroBatch(
            first,
            *_random(first, sequences, model.sequence, model.vocabulary),
            torch.full((sequences, model.sequence), 1.0 / count),
        )
        for first, sequences in parts
    ]


def _random(first: int, sequences: int, length: int, vocabulary: int) -> tuple[torch.Tensor, torch.Tensor]:
    rows = [
        torch.randint(vocabulary, (length + 1,), generator=torch.Generator().manual_seed(number))
        for number in range(first, first + sequences)
    ]
    window = torch.stack(rows)
    return window[:, :-1], window[:, 1:]


def write_result(
    path: Path, wanted: Wanted, job: Job, everyone: Sequence[list[Interval]], seconds_of_product: float
) -> None:
    """Write all step times: last end minus first start."""
    steps = []
    for ranks in zip(*everyone, strict=True):
        starts, ends = [r.start_ns for r in ranks], [r.end_ns for r in ranks]
        steps.append(
            {
                "traced": ranks[0].traced,
                "seconds": (max(ends) - min(starts)) / 1e9,
                "loss": ranks[0].loss,
                "start_ns": starts,
                "end_ns": ends,
            }
        )
    result = {
        "name": wanted.name,
        "label": wanted.label,
        "ranks": job.ranks,
        "grid": job.concrete_grid.model_dump(),
        "product_seconds": seconds_of_product,
        "plain_seconds": [s["seconds"] for s in steps if not s["traced"]],
        "traced_seconds": [s["seconds"] for s in steps if s["traced"]],
        "steps": steps,
    }
    temporary = path.with_suffix(".partial")
    temporary.write_text(json.dumps(result), encoding="utf-8")
    temporary.replace(path)


if __name__ == "__main__":
    leave(lambda: main(Path(sys.argv[1])))
