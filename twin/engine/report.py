"""The figures of a simulated step, as the command line prints them."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twin.cost.energy import step_joules
from twin.cost.memory import MemoryUse, advice, memory_use
from twin.description.grid import AXES, Axis
from twin.engine.program import COMPUTE, START, WAIT, Program
from twin.engine.simulate import Simulation
from twin.schedule.ops import COMMUNICATOR_AXIS
from twin.trace.metrics import Breakdown, Intervals, breakdown, model_flops


@dataclass(frozen=True)
class Report:
    """One step in numbers. Per-rank times are means over all ranks.

    `compute` is what a device of typical speed computes, interference included; the wait for
    the slowest device is apart. compute + slowest_device_wait + exposed + idle = step.
    """

    step_seconds: float
    compute_seconds: float
    slowest_device_wait_seconds: float
    exposed_seconds: float
    exposed_by_axis: dict[Axis, float]
    idle_seconds: float
    compute_by_phase: dict[str, float]
    communication_by_axis: dict[str, float]
    model_flops_per_second: float
    hardware_flops_per_second: float
    peak_flops_per_second: float
    """Of all devices together, in the job's precision."""
    tokens_per_second: float
    memory: MemoryUse
    memory_advice: str
    """What would fit, if this does not."""
    energy_joules: float

    @property
    def hardware_percent_of_peak(self) -> float:
        """Recomputed flops counted."""
        return 100.0 * self.hardware_flops_per_second / self.peak_flops_per_second

    @property
    def model_percent_of_peak(self) -> float:
        """Model-FLOP utilisation: recomputed flops not counted."""
        return 100.0 * self.model_flops_per_second / self.peak_flops_per_second


def report(simulation: Simulation) -> Report:
    """Work out the figures of a simulated step."""
    job = simulation.job
    ranks = simulation.partition.rank_class
    weight = np.bincount(ranks) / len(ranks)
    found = marks(simulation.program)
    parts = [class_breakdown(simulation, found, c) for c in range(len(weight))]
    step = simulation.step_seconds

    def mean(values: list[float]) -> float:
        return float(np.dot(weight, values))

    compute = mean([part.compute for part in parts])
    typical = compute / simulation.typical_slowness
    model = job.model
    flops = {
        again: model_flops(sequences=job.batch.sequences, sequence=model.sequence, layers=model.layers,
                           hidden=model.hidden, mlp_ratio=model.mlp_ratio, vocabulary=model.vocabulary,
                           recompute=again, mlp_width=model.mlp_width, activation=model.activation)
        for again in (False, True)
    }  # fmt: skip
    hardware = flops[job.recompute] / step
    device = job.machine.device
    share = device.gemm.fp32_share if job.precision == "fp32" else 1.0
    peak = job.ranks * device.peak_flops_per_second * share
    return Report(
        step_seconds=step,
        compute_seconds=typical,
        slowest_device_wait_seconds=compute - typical,
        exposed_seconds=mean([part.exposed for part in parts]),
        exposed_by_axis={a: mean([p.exposed_by_axis.get(a, 0.0) for p in parts]) for a in AXES},
        idle_seconds=mean([part.idle for part in parts]),
        compute_by_phase=_compute_by_phase(simulation, weight),
        communication_by_axis=_communication_by_axis(simulation, found, weight),
        model_flops_per_second=flops[False] / step,
        hardware_flops_per_second=hardware,
        peak_flops_per_second=peak,
        tokens_per_second=job.tokens_per_step / step,
        memory=(memory := memory_use(job)),
        memory_advice="" if memory.fits else advice(job, memory),
        energy_joules=step_joules(device, job.ranks, step, typical),
    )


@dataclass(frozen=True)
class Marks:
    """Op indices of a program by what they are."""

    compute: NDArray[np.int64]
    starts: dict[str, NDArray[np.int64]]
    """Collectives by axis."""
    waits: dict[str, NDArray[np.int64]]
    """Waits by the axis of what they wait for."""


def marks(program: Program) -> Marks:
    """Sort a program's op indices into compute, collectives and waits by axis."""
    code = np.array(program.code)
    axis_of_call = [COMMUNICATOR_AXIS[c] for c, _, _ in program.calls]
    starts: dict[str, list[int]] = {}
    waits: dict[str, list[int]] = {}
    for i in np.flatnonzero(code == START):
        starts.setdefault(axis_of_call[program.target[i]], []).append(int(i))
    for i in np.flatnonzero(code == WAIT):
        waits.setdefault(axis_of_call[program.target[program.target[i]]], []).append(int(i))
    return Marks(
        np.flatnonzero(code == COMPUTE),
        {a: np.array(starts[a]) for a in AXES if a in starts},
        {a: np.array(waits[a]) for a in AXES if a in waits},
    )


def class_breakdown(simulation: Simulation, found: Marks, rank_class: int) -> Breakdown:
    """Where the step of one class of ranks goes; `found` are the marks of its program."""
    start, end = simulation.timeline.start[rank_class], simulation.timeline.end[rank_class]

    def at(indices: NDArray[np.int64]) -> Intervals:
        return start[indices], end[indices]

    return breakdown(
        simulation.step_seconds,
        at(found.compute),
        {axis: at(indices) for axis, indices in found.starts.items()},
        {axis: at(indices) for axis, indices in found.waits.items()},
    )


def _compute_by_phase(simulation: Simulation, weight: NDArray[np.float64]) -> dict[str, float]:
    duration = weight @ (simulation.timeline.end - simulation.timeline.start)
    totals: dict[str, float] = {}
    for code, (op, _), seconds in zip(
        simulation.program.code, simulation.program.ops, duration, strict=True
    ):
        if code == COMPUTE:
            totals[op.phase] = (
                totals.get(op.phase, 0.0) + float(seconds) / simulation.typical_slowness
            )
    return totals


def _communication_by_axis(
    simulation: Simulation, found: Marks, weight: NDArray[np.float64]
) -> dict[str, float]:
    duration = weight @ (simulation.timeline.end - simulation.timeline.start)
    return {axis: float(duration[i].sum()) for axis, i in found.starts.items()}


def as_json(simulation: Simulation, figures: Report, wall_seconds: float) -> dict[str, object]:
    """Return the object that `fourfold simulate --json` prints."""
    job = simulation.job
    grid = job.concrete_grid
    memory = figures.memory
    return {
        "job": job.name,
        "model": job.model.name,
        "machine": job.machine.name,
        "caveat": job.machine.caveat,
        "ranks": job.ranks,
        "grid": {axis: grid.size(axis) for axis in AXES},
        "micro_sequences": job.concrete_micro_sequences,
        "micro_steps": job.micro_steps,
        "step_seconds": figures.step_seconds,
        "compute_seconds": figures.compute_seconds,
        "slowest_device_wait_seconds": figures.slowest_device_wait_seconds,
        "exposed_communication_seconds": figures.exposed_seconds,
        "exposed_by_axis": figures.exposed_by_axis,
        "idle_seconds": figures.idle_seconds,
        "compute_by_phase": figures.compute_by_phase,
        "communication_by_axis": figures.communication_by_axis,
        "model_flops_per_second": figures.model_flops_per_second,
        "hardware_flops_per_second": figures.hardware_flops_per_second,
        "percent_of_peak": figures.hardware_percent_of_peak,
        "hardware_percent_of_peak": figures.hardware_percent_of_peak,
        "model_percent_of_peak": figures.model_percent_of_peak,
        "peak_flops_per_second": figures.peak_flops_per_second,
        "tokens_per_second": figures.tokens_per_second,
        "memory": {
            "per_rank_bytes": memory.per_rank_bytes,
            "capacity_bytes": memory.capacity_bytes,
            "fits": memory.fits,
            "advice": figures.memory_advice,
            "by_category": memory.by_category,
        },
        "energy_joules": figures.energy_joules,
        "classes": simulation.partition.rank_classes,
        "global_link_contention": not simulation.global_links_left_out,
        "wall_seconds": wall_seconds,
    }
