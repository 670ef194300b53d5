"""Several numbers of ranks, each searched: how long a number of tokens takes, and the fewest.

The global batch stays as the job has it, so more ranks train the same steps sooner.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from math import ceil
from typing import Any

import pyarrow as pa

from twin.description.job import Job
from twin.description.problems import DescriptionError, fail
from twin.engine.bill import Boundary, bill
from twin.engine.crew import Workers
from twin.search.candidates import unsettled
from twin.search.entries import Progress
from twin.search.search import NO_GRID, By, Search, search, worth
from twin.search.tables import entry_json, flat_table, search_json
from twin.strategies import check

DAY_SECONDS = 86_400.0
HOUR_SECONDS = 3_600.0


@dataclass(frozen=True)
class Sized:
    """The best way to train on so many ranks, or why there is none."""

    ranks: int
    found: Search | None
    reason: str = ""


@dataclass(frozen=True)
class Bill:
    """What a number of tokens costs: whole steps."""

    steps: int
    seconds: float
    device_hours: float
    energy_joules: float
    """Of the devices alone."""
    billed_joules: float
    """Of the widest boundary of which the job says what it draws."""
    boundary: Boundary


@dataclass(frozen=True)
class Fleet:
    """The answer for all numbers of ranks, ascending; at least one can train."""

    job: Job
    tokens: float | None
    within_seconds: float | None
    plans: tuple[Sized, ...]
    wall_seconds: float

    def bill(self, plan: Sized) -> Bill | None:
        """What the tokens cost with a plan; None without tokens or where nothing can run."""
        if self.tokens is None or plan.found is None:
            return None
        figures = plan.found.entries[0].figures
        assert figures is not None
        steps = ceil(self.tokens / self.job.tokens_per_step)
        seconds = steps * figures.step_seconds
        devices = steps * figures.energy_joules
        whole = bill(plan.found.job, devices, seconds, 0.0)
        return Bill(steps, seconds, plan.ranks * seconds / HOUR_SECONDS, devices, whole["joules"], whole["boundary"])

    def in_time(self, plan: Sized) -> bool | None:
        """Tell whether a plan keeps the deadline; None if there is none."""
        bill = self.bill(plan)
        if self.within_seconds is None or self.tokens is None:
            return None
        return bill is not None and bill.seconds <= self.within_seconds

    @property
    def boundary(self) -> Boundary:
        """What energy is of."""
        found = self.chosen
        price = self.bill(found)
        return "devices" if price is None else price.boundary

    @property
    def energy_title(self) -> str:
        """Title of a column of energies: what they are of, and that they are no more than the devices' limit."""
        return f"energy ({self.boundary}{'' if self.job.machine.device.power else ', at the power limit'})"

    @property
    def thrifty(self) -> bool:
        """Whether energy decides."""
        return any(plan.found is not None and plan.found.by == "energy" for plan in self.plans)

    @property
    def fewest(self) -> Sized | None:
        """The fewest ranks that keep the deadline."""
        return next((plan for plan in self.plans if self.in_time(plan)), None)

    @property
    def chosen(self) -> Sized:
        """The fewest ranks that keep the deadline, or of those that do the thriftiest, where energy is asked for.

        Without one, or if none does, the best.
        """
        able = [plan for plan in self.plans if plan.found is not None]
        in_time = [plan for plan in able if self.in_time(plan)]
        if (fewest := self.fewest) is not None and not self.thrifty:
            return fewest
        return min(in_time or able, key=lambda p: worth(p.found.entries[0].figures, p.found.by) if p.found else 0.0)


def search_fleet(
    job: Job,
    counts: Sequence[int],
    *,
    tokens: float | None = None,
    within_seconds: float | None = None,
    over: frozenset[str] = frozenset(),
    by: By = "simulation",
    only: Mapping[str, frozenset[int]] | None = None,
    workers: Workers = 1,
    progress: Progress = lambda _done, _all: None,
) -> Fleet:
    """Search a job on each of these numbers of ranks.

    Raises DescriptionError if nothing can run on any of them.
    """
    begin = time.perf_counter()
    steps = None if tokens is None else ceil(tokens / job.tokens_per_step)
    most = None if steps is None or within_seconds is None else within_seconds / steps
    ask = partial(search, over=over, by=by, only=only, most_seconds=most, workers=workers)
    plans = []
    for number, ranks in enumerate(sorted(counts)):

        def advance(done: int, whole: int, number: int = number) -> None:
            progress(round(1000 * (number + done / max(whole, 1))), 1000 * len(counts))

        sized = unsettled(job, ranks)
        if problems := check(sized):
            plans.append(Sized(ranks, None, "; ".join(p.message for p in problems)))
            continue
        try:
            plans.append(Sized(ranks, ask(sized, progress=advance)))
        except DescriptionError as error:
            plans.append(Sized(ranks, None, "; ".join(p.message for p in error.problems)))
    if only and all(plan.reason == NO_GRID for plan in plans):
        asked = " ".join(f"{a}={','.join(map(str, sorted(sizes)))}" for a, sizes in only.items())
        numbers = ", ".join(f"{plan.ranks:,}" for plan in plans)
        raise fail("--grid", f"no grid of {numbers} ranks has these sizes; their product must divide the ranks", asked)
    if not any(plan.found for plan in plans):
        raise fail("--ranks", "; ".join(f"{plan.ranks}: {plan.reason}" for plan in plans))
    return Fleet(job, tokens, within_seconds, tuple(plans), time.perf_counter() - begin)


def fleet_json(fleet: Fleet) -> dict[str, Any]:
    """Return the object that `fourfold search --ranks A-B --json` prints.

    It has the keys of a search on one number of ranks, of the one that is chosen, with the
    candidates of all in `ranking`, and `by_ranks` besides.
    """
    searches = [plan.found for plan in fleet.plans if plan.found is not None]
    chosen = fleet.chosen
    assert chosen.found is not None
    return search_json(chosen.found) | {
        "candidates": sum(len(found.entries) for found in searches),
        "feasible": sum(found.feasible for found in searches),
        "simulated": sum(found.simulated for found in searches),
        "tokens": fleet.tokens,
        "within_seconds": fleet.within_seconds,
        "fewest_ranks": None if fleet.fewest is None else fleet.fewest.ranks,
        "by_ranks": [_plan_json(fleet, plan) for plan in fleet.plans],
        "ranking": [{"ranks": f.job.ranks} | entry_json(e) for f in searches for e in f.entries],
        "wall_seconds": fleet.wall_seconds,
    }


def fleet_table(fleet: Fleet) -> pa.Table:
    """Return all candidates of all numbers of ranks as columns, nested objects flattened with dots."""
    return flat_table(fleet_json(fleet)["ranking"])


def _plan_json(fleet: Fleet, plan: Sized) -> dict[str, Any]:
    if plan.found is None:
        return {"ranks": plan.ranks, "reason": plan.reason}
    bill = fleet.bill(plan)
    return {
        "ranks": plan.ranks,
        "reason": None,
        "candidates": len(plan.found.entries),
        "feasible": plan.found.feasible,
        "best": entry_json(plan.found.entries[0]),
        "steps": bill.steps if bill else None,
        "seconds": bill.seconds if bill else None,
        "days": bill.seconds / DAY_SECONDS if bill else None,
        "device_hours": bill.device_hours if bill else None,
        "energy_joules": bill.energy_joules if bill else None,
        "in_time": fleet.in_time(plan),
    }
