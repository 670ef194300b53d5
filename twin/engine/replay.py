"""Simulating a recorded schedule, of the runtime's GPT or of a module of the user's own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twin.description.grid import Mesh
from twin.description.job import Job
from twin.description.problems import DescriptionError, Problem, fail
from twin.description.spec import leaves
from twin.description.train import without_training
from twin.engine.report import Report, as_json, report
from twin.engine.simulate import Engine, simulate
from twin.engine.simulation import Simulation
from twin.schedule.recording import Recording, read_recording
from twin.strategies import load_job

PRICED = frozenset(
    (
        *("name", "machine", "library", "train", "seed", "slowest_device", "stragglers", "placement", "degraded"),
        *("power_cap_watts", "energy", "kernel_tuning", "published", "cuda_graphs", "profiler"),
    )
)
"""Keys of a job that decide how long recorded ops take, or what they cost, not which ops there are."""
OF_A_MODEL = (
    "micro_sequences",
    "micro_steps",
    "model_flops_per_second",
    "percent_of_peak",
    "hardware_percent_of_peak",
    "model_percent_of_peak",
    "peak_flops_per_second",
    "tokens_per_second",
    "memory",
)
"""Figures that only a described model has."""


@dataclass(frozen=True)
class Replay:
    """A recorded step, simulated."""

    simulation: Simulation
    figures: Report
    described: bool
    """Whether the job describes the model; else what `figures` say of a model means nothing."""

    def answer(self, wall_seconds: float) -> dict[str, object]:
        """Return the object that `fourfold simulate --schedule --json` prints."""
        full = as_json(self.simulation, self.figures, wall_seconds)
        if self.described:
            return full
        job, program = self.simulation.job, self.simulation.program
        flops = float(program.flops().sum()) * job.ranks
        found = {key: value for key, value in full.items() if key not in OF_A_MODEL}
        return found | {"hardware_flops_per_second": flops / self.simulation.step_seconds}


def replay(path: Path, job: Path | None, machine: str | None, overrides: Sequence[str], engine: Engine) -> Replay:
    """Simulate the recording at `path` on a machine.

    The job is the file `job`, or the recording's own. Raises DescriptionError if they do not fit together.
    """
    recording = read_recording(path)
    described = job is not None or recording.job is not None
    changed = [*overrides, *([f"machine={machine}"] if machine else [])]
    own = _mapping(recording, machine) if job is None or recording.job is not None else {}
    settled = load_job(job or own, changed)
    if settled.grid == "auto" or settled.concrete_grid.mesh != recording.mesh:
        remedy = f"the schedule was recorded on {recording.mesh}; record it again for another"
        raise fail("grid", remedy, str(settled.grid))
    if recording.job is not None:
        _refuse_other_work(settled, _own_job(own, path))
    simulation = simulate(settled, engine=engine, schedule=recording.schedule)
    return Replay(simulation, report(simulation), described)


def _own_job(own: dict[str, Any], path: Path) -> Job:
    """Read a recording's own job; what is wrong with it is told as the recording's."""
    try:
        return load_job(own)
    except DescriptionError as error:
        raise DescriptionError(error.problems, f"{path}: job") from None


def _refuse_other_work(job: Job, recorded: Job) -> None:
    """Refuse a job whose ops, memory or tokens are not those of the recording: its figures would be of neither."""
    both = (each.model_dump(mode="json", exclude={*PRICED, "grid"}) for each in (job, recorded))
    ours, theirs = (dict(leaves(each)) for each in both)
    problems = [
        Problem(key, f"is {theirs.get(key)!r} in the recording; record it again, or leave it so", ours.get(key))
        for key in {**ours, **theirs}
        if key != "model.name" and ours.get(key) != theirs.get(key)
    ]
    if problems:
        raise DescriptionError(problems)


def _mapping(recording: Recording, machine: str | None) -> dict[str, Any]:
    if recording.job is not None:
        return without_training(recording.job)
    if machine is None:
        raise fail("--machine", "the recording is of a module without a job; name the machine to run it on")
    return stand_in(recording.mesh)


def stand_in(mesh: Mesh) -> dict[str, Any]:
    """Return a job on a mesh whose model is there only because a job has one; every axis divides it."""
    width = mesh.ranks
    return {
        "name": "own module",
        "model": {"name": "own module", "layers": 1, "hidden": width, "heads": width, "sequence": 1, "vocabulary": 1},
        "machine": "",
        "ranks": mesh.ranks,
        "grid": mesh.by_axis(),
        "batch": {"sequences": mesh.ranks, "micro_sequences": 1},
    }
