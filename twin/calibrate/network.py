"""What messages and collectives cost, from point-to-point times and collectives that were timed.

A collective was timed with one group at work and with all groups that fill the machine at once. All
groups at once share NICs and cores evenly, so their time is that of one group, or of the fullest NIC
or of the cores if that is longer: what the engine's max-min sharing comes to here.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

import numpy as np

from twin.calibrate.compute import OWN, Sharing, issue_seconds
from twin.calibrate.constants import CONSTANTS, EXCHANGES, POSTED, START, library
from twin.calibrate.solve import Array, Fitted, Quality, fit, line
from twin.cost.collective import options
from twin.cost.collective_group import Group, look
from twin.cost.collective_options import Option, posted
from twin.cost.placement import Placement
from twin.description.library import CollectiveKind, Library
from twin.description.machine import Machine
from twin.description.problems import fail

Row = Mapping[str, Any]
LARGE_BYTES = 1 << 18
"""Messages from here on tell the rate, smaller ones the latency."""
OLD = "a runtime that exchanged or counted otherwise wrote this"
AGAIN = "measure these CPUs again"
SHORTEST = 1e-6
"""Seconds below which processor time is not told apart."""


@dataclass(frozen=True)
class Wire:
    """Start and rate of single messages."""

    start: Fitted
    rate: Fitted


def wire(data: Mapping[str, Any], *, same_host: bool) -> Wire | None:
    """Fit single messages inside a host, or between hosts; None if there were none."""
    rows = [row for row in data["point_to_point"] if row["same_host"] is same_host]
    if not rows:
        return None
    large = [row for row in rows if row["bytes"] >= LARGE_BYTES]
    small = [row["seconds"] for row in rows if row["bytes"] < LARGE_BYTES / 16]
    _, rate, _ = line([row["bytes"] for row in large], [row["seconds"] for row in large])
    start = Fitted(float(np.median(small)), float(np.std(small) / np.median(small)), len(small))
    return Wire(start, rate)


@dataclass(frozen=True)
class Case:
    """One timed collective, and what the groups that ran beside it load together with it."""

    kind: CollectiveKind
    bytes: float
    group: Group
    groups_on_nic: int
    ranks: int
    """Members of all groups that ran at once."""
    seconds: float


def cases(data: Mapping[str, Any], machine: Machine) -> list[Case]:
    """Read the timed collectives."""
    per_node = machine.devices_per_node
    found = []
    for row in data["collectives"]:
        members = [i * row["inner"] for i in range(row["size"])]
        nodes: dict[int, list[int]] = {}
        for rank in members:
            nodes.setdefault(rank // per_node, []).append(rank % per_node)
        placement = Placement(tuple(tuple(d) for d in nodes.values()), (0,) * len(nodes))
        most = max(map(len, nodes.values()))
        beside = min(row["groups"], per_node // most) if len(nodes) > 1 else 1
        seconds = float(row.get("transfer_seconds") or row["seconds"])
        found.append(
            Case(
                cast("CollectiveKind", row["kind"]),
                float(row["bytes"]),
                look(machine, placement),
                max(1, beside),
                row["groups"] * row["size"],
                seconds,
            )
        )
    return found


def fit_library(
    data: Mapping[str, Any], machine: Machine, largest_bytes: float
) -> tuple[dict[str, Fitted], Library, Quality]:
    """Fit the library's constants on a machine whose links and cores are known.

    Where ranks share cores, what a collective takes of them comes from processor times with all ranks at work, as in
    a step; times then tell what it takes besides. (One that comes alone takes less of them, so that short ones of the
    microbenchmark are said to take longer than they did.)
    Returns those that were fitted, the library with all, and how well they meet what they come from.
    """
    if data.get("exchanges") != EXCHANGES:
        raise fail("exchanges", f"{OLD}; {AGAIN}", data.get("exchanges", "absent"))
    fits = [] if machine.cores is None else [_of_cores(data, machine, largest_bytes)]
    fits.append(_of_times(data, machine, largest_bytes, fits[0].values if fits else START))
    fitted = {name: constant for each in fits for name, constant in each.constants.items()}
    quality = Quality.of(*(np.concatenate([getattr(each, of) for each in fits]) for of in ("predicted", "measured")))
    return fitted, library(fits[-1].values, largest_bytes, cores=machine.cores is not None), quality


@dataclass(frozen=True)
class _Fit:
    """Constants, and seconds (rows,) that they come from."""

    constants: dict[str, Fitted]
    values: dict[str, float]
    """Of all constants, those included that are not fitted."""
    predicted: Array
    measured: Array

    @classmethod
    def of(
        cls,
        names: Iterable[str],
        model: Callable[[Mapping[str, float]], Array],
        measured: Array,
        others: Mapping[str, float] = START,
    ) -> _Fit:
        """Fit these constants, the others as they are given."""
        start = {name: START[name] for name in names}
        fitted, _ = fit(
            lambda found: model({**others, **found}),
            measured,
            start,
            bounds={n: (CONSTANTS[n].least, CONSTANTS[n].most) for n in start},
        )
        values = {**others, **{name: constant.value for name, constant in fitted.items()}}
        return cls(fitted, values, model(values), measured)


def _of_times(data: Mapping[str, Any], machine: Machine, largest_bytes: float, others: Mapping[str, float]) -> _Fit:
    """Fit times, what cores are asked for as it is."""
    timed, on_cores = cases(data, machine), machine.cores is not None
    several = any(case.group.nodes > 1 for case in timed)
    names = [name for name, each in CONSTANTS.items() if not each.of_cores and (several or not each.of_network)]

    def model(values: Mapping[str, float]) -> Array:
        made = library(values, largest_bytes, cores=on_cores)
        return np.array([seconds(case, made, machine) for case in timed])

    return _Fit.of(names, model, np.array([case.seconds for case in timed]), others)


def _of_cores(data: Mapping[str, Any], machine: Machine, largest_bytes: float) -> _Fit:
    """Fit processor times, all ranks at work, without what starting a collective takes a device's host."""
    issue = issue_seconds(data).get(OWN, Fitted(0.0, 0.0, 0)).value
    rows = zip(cases(data, machine), data["collectives"], strict=True)
    found = [(case, row.get("busy_core_seconds")) for case, row in rows]
    counted = [(case, float(seconds_) - issue) for case, seconds_ in found if seconds_ is not None]
    if not counted:
        raise fail("collectives", f"{OLD}; {AGAIN}", "without busy_core_seconds")
    several = any(case.group.nodes > 1 for case, _ in counted)
    made = library(START, largest_bytes, cores=True)
    untold = POSTED if len({case.group.ranks for case, _ in counted if _posts(case, made)}) < 2 else ()
    others = {name: value for name, value in START.items() if name not in untold}
    names = [name for name in others if CONSTANTS[name].of_cores and (several or not CONSTANTS[name].of_network)]

    def model(values: Mapping[str, float]) -> Array:
        made = library(values, largest_bytes, cores=True)
        return np.array([used(case, made) for case, _ in counted])

    return _Fit.of(names, model, np.array([max(seconds_, SHORTEST) for _, seconds_ in counted]), others)


def _posts(case: Case, made: Library) -> bool:
    """Tell whether the runtime posted the messages of a case one by one."""
    found = options(case.group, made, case.kind, case.bytes)
    part = case.bytes if case.kind == "all_reduce" else case.bytes / case.group.ranks
    direct = min(found, key=lambda option: option.seconds).algorithm == "direct"
    return direct and posted(case.group, made, case.kind, part)


def used(case: Case, made: Library) -> float:
    """Return the processor seconds that a case costs each member."""
    found = options(case.group, made, case.kind, case.bytes)
    return max(min(found, key=lambda option: option.seconds).core_seconds, SHORTEST)


def seconds(case: Case, made: Library, machine: Machine) -> float:
    """Return what the engine would make of a case."""
    found = options(case.group, made, case.kind, case.bytes)
    best = min(found, key=lambda option: option.seconds)
    return best.startup_seconds + max(
        best.wire_seconds, best.seconds - best.startup_seconds, *_shared(case, best, machine)
    )


def _shared(case: Case, best: Option, machine: Machine) -> Sequence[float]:
    nic = machine.nic.rate_bytes_per_second
    on_nic = case.groups_on_nic * best.nic_bytes / nic
    if machine.cores is None:
        return (on_nic,)
    pool = case.ranks if machine.cores.shared_by == "machine" else machine.devices_per_node
    return on_nic, min(case.ranks, pool) * best.core_seconds / machine.cores.count


def beside_compute(data: Mapping[str, Any], shared: Sharing) -> tuple[Fitted, Fitted]:
    """Find how much longer compute and collectives take side by side: relative lengthening of each.

    Of collectives on cores that ranks share without what sharing them does: of twice as many threads as ranks each gets
    an equal part of the cores, or what it wants.
    """
    rows = data["overlap"]
    compute = [row["compute_seconds_beside"] / row["compute_seconds_alone"] - 1 for row in rows]
    cores = shared.cores if data["device_type"] == "cpu" else None
    collective = []
    for row in rows:
        expected = row["collective_seconds_alone"]
        if cores is not None:
            expected = max(expected, row["core_seconds_beside"] * 2 * shared.ranks / cores)
        collective.append(row["collective_seconds_beside"] / expected - 1)
    return _typical(compute), _typical(collective)


def _typical(values: Sequence[float]) -> Fitted:
    if not values:
        return Fitted(0.0, 0.0, 0)
    middle = max(0.0, float(np.median(values)))
    error = float(np.std(values) / np.sqrt(len(values)))
    return Fitted(middle, error / middle if middle else 0.0, len(values))
