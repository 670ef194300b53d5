"""The steps of a run as matrices: when each rank ran each op.

Ranks of one role all run the same ops, so a whole step of theirs is a matrix (ranks, ops); a step in which
some rank lacks ops was cut off, and is dropped with a warning. All ranks of a 4D grid have the same role; how
several are put together is in `stages`.
"""

from __future__ import annotations

import re
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from twin.compare.kinds import collective_kind, compute_kind
from twin.description.problems import fail
from twin.trace.table import codes

Nanoseconds = NDArray[np.int64]
OP = re.compile(r"step(\d{1,9})/(.+)", re.DOTALL)
WAIT = "/wait"
FACTS = ("kind", "stream", "name", "phase", "axis")


@dataclass(frozen=True)
class OpFacts:
    """What an op is, the same on every rank and in every step."""

    op: str
    """Its id without the step, such as `micro0/fwd/block3/mlp_up/gemm`."""
    kind: str
    """compute, collective or wait."""
    stream: str
    name: str
    phase: str
    axis: str
    """Empty for compute."""
    bytes: float
    flops: float

    @property
    def work(self) -> str:
        """Kind of device work, or of collective."""
        return compute_kind(self.name, self.phase) if self.kind == "compute" else collective_kind(self.name, self.axis)


@dataclass(frozen=True)
class Times:
    """When each op of one step ran, integer nanoseconds, matrices (ranks, ops)."""

    start: Nanoseconds
    end: Nanoseconds
    arrival: Nanoseconds
    span_ns: tuple[int, int] | None = None
    """Begin and end of the step, where ranks of other roles are in it too."""

    def of(self, rows: NDArray[np.int64]) -> Times:
        """The same for chosen rows, which may come more than once."""
        return Times(self.start[rows], self.end[rows], self.arrival[rows])

    @property
    def begin_ns(self) -> int:
        """When the first rank came to its first op."""
        return int(self.arrival.min()) if self.span_ns is None else self.span_ns[0]

    @property
    def end_ns(self) -> int:
        """When the last rank ended its last op."""
        return int(self.end.max()) if self.span_ns is None else self.span_ns[1]

    @property
    def length_ns(self) -> int:
        """Last rank's end minus first rank's start."""
        return self.end_ns - self.begin_ns


@dataclass(frozen=True)
class Steps:
    """The whole steps of a run."""

    ranks: NDArray[np.int64]
    """Rank numbers of the rows, ascending."""
    ops: tuple[OpFacts, ...]
    times: dict[int, Times]
    """By step, ascending."""
    target: NDArray[np.int64]
    """For each wait the column of its collective, -1 for other ops."""
    group: Nanoseconds
    """Number of the group of each collective among those of its stream, (ranks, ops); -1 where none is said."""
    warnings: tuple[str, ...]

    def columns(self, *kinds: str) -> NDArray[np.int64]:
        """Columns of the ops of some kinds."""
        return np.flatnonzero([op.kind in kinds for op in self.ops])


def read_steps(events: pa.Table, origin: str) -> Steps:
    """Arrange a checked event table; raises DescriptionError if it has no whole step."""
    if not events.num_rows:
        raise fail(origin, "has no events")
    op, ids = codes(events.column("op"))
    parsed = [OP.fullmatch(word) for word in ids]
    if strange := [word for word, match in zip(ids, parsed, strict=True) if match is None]:
        raise fail(origin, f"{len(strange)} ops are not named like step0/…", strange[0])
    number: dict[str, int] = {}
    base = np.array([number.setdefault(m[2], len(number)) for m in parsed if m])[op]
    step = np.array([int(m[1]) for m in parsed if m])[op]
    if wrong := int(np.sum(step != events.column("step").to_numpy())):
        raise fail(origin, f"{wrong} events have the op of another step")
    ranks, row = np.unique(events.column("rank").to_numpy(), return_inverse=True)
    facts = _facts(events, base, list(number), origin)
    kept, warnings = _whole_steps(step, base, row, ranks, origin)
    time = [events.column(c).to_numpy() for c in ("arrival_ns", "start_ns", "end_ns")]
    present = np.unique(base[step == kept[0]])
    # columns in the order in which the first rank came to them
    first = np.flatnonzero((step == kept[0]) & (row == 0))
    order = base[first[np.lexsort([t[first] for t in reversed(time)])]]
    place = np.full(len(number), -1)
    place[order] = np.arange(len(present))
    times = {}
    for s in kept:
        at = np.flatnonzero(step == s)
        matrices = np.empty((3, len(ranks), len(present)), dtype=np.int64)
        matrices[:, row[at], place[base[at]]] = [t[at] for t in time]
        times[int(s)] = Times(arrival=matrices[0], start=matrices[1], end=matrices[2])
    ops = tuple(facts[b] for b in order)
    _check_order(times, origin)
    group = np.full((len(ranks), len(present)), -1, dtype=np.int64)
    at = np.flatnonzero(step == kept[0])
    group[row[at], place[base[at]]] = pc.fill_null(events.column("group"), -1).to_numpy()[at]
    return Steps(ranks.astype(np.int64), ops, times, _targets(ops, origin), group, tuple(warnings))


def _facts(events: pa.Table, base: NDArray[np.int64], names: list[str], origin: str) -> list[OpFacts]:
    """One description per op; all of its events must agree."""
    first = np.unique(base, return_index=True)[1]
    words = []
    for column in FACTS:
        number, known = codes(events.column(column))
        if other := np.flatnonzero(number != number[first][base]).tolist():
            raise fail(
                origin, f"{len(other)} events differ in {column} from others of the same op", names[base[other[0]]]
            )
        words.append([known[n] if n >= 0 else "" for n in number[first]])
    sizes = [events.column(c).to_numpy()[first].tolist() for c in ("bytes", "flops")]
    return [OpFacts(*row) for row in zip(names, *words, *sizes, strict=True)]


def _whole_steps(
    step: NDArray[np.int64], base: NDArray[np.int64], row: NDArray[np.int64], ranks: NDArray[np.int32], origin: str
) -> tuple[list[int], list[str]]:
    """The steps in which every rank has the same ops, and what is said of the others."""
    warnings: list[str] = []
    sets: dict[int, bytes] = {}
    for s in np.unique(step).tolist():
        at = step == s
        present = np.unique(base[at])
        counts = np.bincount(row[at], minlength=len(ranks))
        if short := np.flatnonzero(counts < len(present)).tolist():
            more = f", and {len(short) - 1} more ranks lack some" if short[1:] else ""
            warnings.append(
                f"step {s} of {origin} is dropped: rank {ranks[short[0]]} has {counts[short[0]]} "
                f"of {len(present)} ops{more}"
            )
        else:
            sets[s] = present.tobytes()
    if not sets:
        raise fail(origin, "has no whole step; " + "; ".join(warnings))
    most = max(Counter(sets.values()).items(), key=lambda item: (item[1], len(item[0])))[0]
    kept = [s for s, present in sets.items() if present == most]
    warnings += [
        f"step {s} of {origin} is dropped: its ops are not those of step {kept[0]}"
        for s, present in sets.items()
        if present != most
    ]
    return kept, warnings


def _targets(ops: tuple[OpFacts, ...], origin: str) -> NDArray[np.int64]:
    place = {op.op: i for i, op in enumerate(ops) if op.kind == "collective"}
    found = [place.get(op.op.removesuffix(WAIT), -1) if op.kind == "wait" else -1 for op in ops]
    for op, target in zip(ops, found, strict=True):
        if op.kind == "wait" and (target < 0 or ops[target].axis != op.axis):
            raise fail(origin, "waits for a collective that is not in the trace", op.op)
    return np.array(found, dtype=np.int64)


def _check_order(times: dict[int, Times], origin: str) -> None:
    """A rank ends a step before it begins the next; else a clock jumped or runs were mixed."""
    for before, after in pairwise(times):
        back = np.flatnonzero(times[after].arrival.min(1) < times[before].arrival.max(1)).tolist()
        if back:
            raise fail(
                origin,
                f"{len(back)} ranks begin step {after} before they are through with step {before}: "
                "clocks jumped, or the trace is of several runs",
            )
