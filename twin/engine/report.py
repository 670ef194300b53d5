"""The figures of a simulated step, as the command line prints them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from twin.cost.energy import step_joules
from twin.cost.memory import MemoryUse, TierUse, advice, memory_use
from twin.description.grid import Axis
from twin.description.job import Job
from twin.engine.bill import bill
from twin.engine.energy import StepEnergy, step_energy
from twin.engine.part_sums import of_part
from twin.engine.simulation import Simulation
from twin.trace.metrics import hardware_flops, job_flops, job_peak_flops_per_second

if TYPE_CHECKING:
    from twin.engine.all_ranks import AllRanks


@dataclass(frozen=True)
class Report:
    """One step in numbers. Per-rank times are means over all ranks.

    `compute` is what a device of typical speed computes, interference included; the wait for
    the slowest device is apart. compute + slowest_device_wait + exposed + idle = step.
    """

    step_seconds: float
    """Last rank's end minus first rank's start."""
    compute_seconds: float
    """A device of typical speed at work, slowed by what runs beside."""
    slowest_device_wait_seconds: float
    """Waiting for the slowest of so many devices."""
    exposed_seconds: float
    """Communication while the device computes nothing."""
    exposed_by_axis: dict[Axis, float]
    """The same by axis."""
    wider: dict[Axis, tuple[Axis, ...]]
    """Axes of which collectives run over groups of others too, and which: gradients over data and context."""
    idle_seconds: float
    """Neither compute nor communication."""
    peers_by_axis: dict[Axis, float]
    """Waiting for the last member of a collective to come to it: how ranks that differ hold each
    other up. A part of exposed and idle, not a term beside them."""
    compute_by_phase: dict[str, float]
    """Compute by phase: forward, recomputation, backward, optimizer."""
    communication_by_axis: dict[str, float]
    """Time in which a collective of the axis is under way, hidden or not."""
    model_flops_per_second: float
    """Of all ranks; recomputed flops not counted."""
    hardware_flops_per_second: float
    """Of all ranks; recomputed flops counted."""
    peak_flops_per_second: float
    """Of all devices together, in the job's precision."""
    tokens_per_second: float
    """Of all ranks."""
    memory: MemoryUse
    """Of the rank that needs most."""
    memory_advice: str
    """What would fit, if this does not."""
    energy_joules: float
    """Of all devices, for the step."""
    energy: dict[str, Any] | None = None
    """How it came about, where watts by kind of work are known: by kind, mean and peak power, joules a token, the
    facility's, carbon and cost as far as their inputs are given, and what slowing waiting ranks down could save. Where
    every rank was drawn, by kind, peak and saving are left out."""

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
    ranks = simulation.partition.rank_class
    weight = np.bincount(ranks) / len(ranks)
    sums = [of_part(simulation, part, weight) for part in simulation.parts]
    shares = np.array([weight[c] for part in simulation.parts for c in part.classes.tolist()])
    parts = [piece for each in sums for piece in each.by_class]
    axes = simulation.axes

    def mean(values: list[float]) -> float:
        return float(np.dot(shares, values))

    compute = mean([part.compute for part in parts])
    typical = compute / simulation.typical_slowness
    energy = step_energy(simulation)
    return _figures(
        simulation.job,
        simulation.step_seconds,
        drawn=None if energy is None else _energy(simulation.job, simulation.step_seconds, energy),
        compute_seconds=typical,
        slowest_device_wait_seconds=compute - typical,
        exposed_seconds=mean([part.exposed for part in parts]),
        wider=simulation.wider,
        exposed_by_axis={a: mean([p.exposed_by_axis.get(a, 0.0) for p in parts]) for a in axes},
        idle_seconds=mean([part.idle for part in parts]),
        peers_by_axis=_sums(axes, (each.peers_by_axis for each in sums)),
        compute_by_phase=_sums((), (each.compute_by_phase for each in sums)),
        communication_by_axis=_sums((), (each.communication_by_axis for each in sums)),
    )


def _sums(names: Sequence[str], parts: Iterable[Mapping[str, float]]) -> dict[str, float]:
    """Add up mappings by key; `names` come first, 0 where no part has them."""
    total = dict.fromkeys(names, 0.0)
    for part in parts:
        for name, value in part.items():
            total[name] = total[name] + value if name in total else value
    return total


def report_all_ranks(every: AllRanks) -> Report:
    """Work out the figures of a step in which every rank was simulated.

    Waiting for peers or for the host is idle here, whatever else is under way meanwhile.
    """
    outcome = every.outcome
    exposed: dict[Axis, float] = {a: float(seconds.mean()) for a, seconds in outcome.exposed.items()}
    compute = float(outcome.compute.mean())
    peers: dict[Axis, float] = {a: float(seconds.mean()) for a, seconds in outcome.peers.items()}
    at_the_end = float((every.step_seconds - outcome.end).mean())
    return _figures(
        every.job,
        every.step_seconds,
        compute_seconds=compute,
        slowest_device_wait_seconds=0.0,
        exposed_seconds=sum(exposed.values()),
        exposed_by_axis=exposed,
        wider=every.nominal.wider,
        idle_seconds=float(outcome.host.mean()) + sum(peers.values()) + at_the_end,
        peers_by_axis=peers,
        compute_by_phase=outcome.compute_by_phase,
        communication_by_axis={a: s for a, s in outcome.communication_by_axis.items() if s > 0.0},
        drawn=_all_ranks_energy(every),
    )


def _all_ranks_energy(every: AllRanks) -> dict[str, Any] | None:
    """Return the energy of a step of differing ranks: the same ops', and the context's for as long as it takes.

    What depends on when each op ran (the peak, what slowing down could save) is not worked out.
    """
    nominal = step_energy(every.nominal)
    if nominal is None:
        return None
    job, step = every.job, every.step_seconds
    joules = nominal.joules + job.ranks * nominal.power.context_watts * (step - every.nominal.step_seconds)
    clock = nominal.simulation.clock
    return {**bill(job, joules, step, job.tokens_per_step), "mean_watts": joules / step, "clock": clock}


def _figures(job: Job, step: float, *, compute_seconds: float, drawn: dict[str, Any] | None, **parts: Any) -> Report:
    """Add what follows from the job and the length of its step."""
    if drawn is None:
        joules = step_joules(job.machine.device, job.ranks, step, compute_seconds)
    else:
        joules = drawn["devices_joules"]
    return Report(
        step_seconds=step,
        compute_seconds=compute_seconds,
        model_flops_per_second=job_flops(job, recompute=False) / step,
        hardware_flops_per_second=hardware_flops(job) / step,
        peak_flops_per_second=job_peak_flops_per_second(job),
        tokens_per_second=job.tokens_per_step / step,
        memory=(memory := memory_use(job)),
        memory_advice="" if memory.fits else advice(job, memory),
        energy_joules=joules,
        energy=drawn,
        **parts,
    )


def _energy(job: Job, step: float, energy: StepEnergy) -> dict[str, Any]:
    """Write a step's energy as numbers."""
    clock, saved = energy.slack()
    return {
        **bill(job, energy.joules, step, job.tokens_per_step),
        "by_kind": energy.joules_by_kind,
        "mean_watts": energy.mean_watts,
        "peak_watts": energy.peak_watts,
        "active_watts_per_device": energy.active_watts,
        "clock": energy.simulation.clock,
        "slack": {"clock": clock, "joules_at_most": saved},
    }


def _tier(use: TierUse) -> dict[str, object]:
    """Return what lies in a tier beyond the devices of a node."""
    return {
        "node_bytes": use.node_bytes,
        "capacity_bytes": use.capacity_bytes,
        "fits": use.fits,
        "by_category": use.by_category,
    }


def as_json(simulation: Simulation | AllRanks, figures: Report, wall_seconds: float) -> dict[str, object]:
    """Return the object that `fourfold simulate --json` prints."""
    job = simulation.job
    nominal = simulation if isinstance(simulation, Simulation) else simulation.nominal
    every = nominal is not simulation
    memory = figures.memory
    return {
        "job": job.name,
        "model": job.model.name,
        "machine": job.machine.name,
        "caveat": job.machine.caveats,
        "ranks": job.ranks,
        "grid": job.concrete_grid.by_axis(),
        "micro_sequences": job.concrete_micro_sequences,
        "micro_steps": job.micro_steps,
        "step_seconds": figures.step_seconds,
        "compute_seconds": figures.compute_seconds,
        "slowest_device_wait_seconds": figures.slowest_device_wait_seconds,
        "exposed_communication_seconds": figures.exposed_seconds,
        "exposed_by_axis": figures.exposed_by_axis,
        **({"wider": {axis: list(axes) for axis, axes in figures.wider.items()}} if figures.wider else {}),
        "idle_seconds": figures.idle_seconds,
        "peers_by_axis": figures.peers_by_axis,
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
            **({"tiers": {tier: _tier(use) for tier, use in memory.tiers.items()}} if memory.tiers else {}),
        },
        "energy_joules": figures.energy_joules,
        **({} if figures.energy is None else {"energy": figures.energy}),
        "ops": nominal.ops,
        "classes": job.ranks if every else nominal.partition.rank_classes,
        "global_link_contention": not nominal.global_links_left_out,
        "wall_seconds": wall_seconds,
    }
