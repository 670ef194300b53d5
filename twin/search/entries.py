"""What a search knows of each candidate: its floor, and its figures once it is simulated."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from twin.description.job import Job
from twin.description.problems import DescriptionError
from twin.engine.bill import bill
from twin.engine.garbage import uncollected
from twin.engine.report import report
from twin.engine.simulate import MANY_CLASSES, simulate
from twin.engine.simulation import Simulation
from twin.search.candidates import Candidate

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Figures:
    """One simulated step in a row of numbers; see `twin.engine.report.Report` for their meaning."""

    step_seconds: float
    compute_seconds: float
    exposed_seconds: float
    exposed_by_axis: dict[str, float]
    idle_seconds: float
    tokens_per_second: float
    hardware_percent_of_peak: float
    model_percent_of_peak: float
    energy_joules: float
    billed_joules: float
    """What the step draws within the widest boundary that the job says enough of: devices, nodes, facility."""
    classes: int
    global_link_contention: bool
    """True if contention on links between dragonfly groups was simulated."""

    @property
    def exposed_share(self) -> float:
        """Share of the step that is exposed communication."""
        return self.exposed_seconds / self.step_seconds if self.step_seconds else 0.0

    @classmethod
    def of(cls, simulation: Simulation) -> Figures:
        """Read them from a simulation."""
        found = report(simulation)
        return cls(
            step_seconds=found.step_seconds,
            compute_seconds=found.compute_seconds,
            exposed_seconds=found.exposed_seconds,
            exposed_by_axis=found.exposed_by_axis,
            idle_seconds=found.idle_seconds,
            tokens_per_second=found.tokens_per_second,
            hardware_percent_of_peak=found.hardware_percent_of_peak,
            model_percent_of_peak=found.model_percent_of_peak,
            energy_joules=found.energy_joules,
            billed_joules=bill(simulation.job, found.energy_joules, found.step_seconds, 0.0)["joules"],
            classes=simulation.partition.rank_classes,
            global_link_contention=not simulation.global_links_left_out,
        )


@dataclass(frozen=True, slots=True)
class RankedCandidate:
    """One candidate with its place in both orders.

    `model_rank` is its place, from 1, by the published communication model, None where the strategy has none; `rank`
    that in simulated time. None for what cannot run or was not simulated.
    """

    candidate: Candidate
    model_rank: int | None = None
    rank: int | None = None
    figures: Figures | None = None
    failure: str = ""
    """Why a feasible candidate could not be simulated."""
    floor_seconds: float | None = None
    """What it cannot be faster than, where that is why it was not simulated."""


def with_figures(entry: RankedCandidate, figures: Figures | str) -> RankedCandidate:
    """Return a candidate with its figures, or with the reason why it has none."""
    return replace(entry, failure=figures) if isinstance(figures, str) else replace(entry, figures=figures)


def figures_of(base: Job, batch: Sequence[Candidate]) -> list[Figures | str]:
    """Simulate a batch of candidates; in place of figures, the reason if one cannot be."""
    found: list[Figures | str] = []
    with uncollected():
        for candidate in batch:
            try:
                found.append(Figures.of(simulate(candidate.job(base), max_classes=MANY_CLASSES)))
            except DescriptionError as error:
                found.append("; ".join(map(str, error.problems)))
    gc.collect(0)  # what these have left is young, and to look through all else takes longer than some simulations
    return found
