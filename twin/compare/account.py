"""Where one step goes: every nanosecond of every rank, once.

A rank's compute stream is a row of computes and waits. From the first rank's first op to the last
rank's last end, the row's computes, its waits, the gaps between them, what is before the first and
what is after the last add up to the step: exactly, for they are integers. Of a pipeline that holds for the ranks of
each stage, whose waits for other stages are bubbles.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twin.compare.bubbles import BUBBLES, MESSAGE, bubble_terms, parts, transfer_term
from twin.compare.kinds import COMPUTE_KINDS
from twin.compare.steps import Nanoseconds, OpFacts, Steps, Times

BEFORE, BETWEEN, LATE, AFTER, ALONE = "before", "between", "late", "after", "alone"
OTHER_TERMS = {
    ALONE: "ops that only one trace has",
    BEFORE: "before a rank's first op",
    LATE: "going on late after a wait",
    BETWEEN: "between ops: host",
    AFTER: "after a rank's last op",
}


def terms_of(axes: Sequence[str], depth: Collection[str] = ()) -> dict[str, str]:
    """Name what a step with collectives over these axes is made of, and say it to a reader.

    Waits for the last member along the axes of `depth`, which join stages, are bubbles.
    """
    return {
        **{kind: f"compute: {kind}" for kind in COMPUTE_KINDS},
        **{f"skew_{axis}": f"wait for the last member, {axis}" for axis in axes if axis not in depth},
        **{f"transfer_{axis}": f"wait for the transfer, {axis}" for axis in axes},
        **bubble_terms([axis for axis in axes if axis in depth]),
        **OTHER_TERMS,
    }


@dataclass(frozen=True)
class Account:
    """A step's nanoseconds, summed over ranks. Each of the two parts adds up to `ranks · length_ns`."""

    ranks: int
    length_ns: int
    terms: dict[str, int]
    phases: dict[str, int]
    """By phase of the op, gaps counted with the op behind them; and before and after."""
    waits: dict[str, int]
    """Number of waits of one rank in each skew and transfer term."""


@dataclass(frozen=True)
class Split:
    """Waits of collectives taken apart, matrices (ranks, waits); the three add up to the wait."""

    skew: Nanoseconds
    """Until the last member came, while the communicator was free for it."""
    transfer: Nanoseconds
    """Until the collective's end, time in the communicator's queue included."""
    late: Nanoseconds
    """From the collective's end until the stream went on."""


def account(
    steps: Steps,
    times: Times,
    paired: Callable[[OpFacts], bool],
    axes: Sequence[str],
    weights: Sequence[int] | None = None,
    depth: Collection[str] = (),
) -> Account:
    """Take a step apart; ops that are not `paired` are a term of their own.

    `axes` are those that collectives run over, `depth` those of them that join the stages of a pipeline.

    `weights` says how many ranks each row of `times` stands for, one each if absent.
    """
    weights = weights or [1] * len(times.start)
    row = steps.columns("compute", "wait")
    start, end = times.start[:, row], times.end[:, row]
    order = np.lexsort((end, start), axis=1)
    sorted_start, sorted_end = (np.take_along_axis(m, order, 1) for m in (start, end))
    gap = np.zeros_like(start)
    gap[:, 1:] = sorted_start[:, 1:] - sorted_end[:, :-1]
    gaps = np.zeros_like(start)
    np.put_along_axis(gaps, order, gap, 1)  # to the column of the op behind each
    length = end - start
    ops = [steps.ops[i] for i in row]

    terms: dict[str, int] = dict.fromkeys(terms_of(axes, depth), 0)
    phases: dict[str, int] = {BEFORE: 0}
    terms[BEFORE] = phases[BEFORE] = _total(sorted_start[:, :1] - times.begin_ns, weights)
    _add(terms, [_compute_term(op, paired(op)) for op in ops], length, weights)
    _add_waits(terms, steps, times, paired, depth, weights)
    terms[BETWEEN] = _total(gaps, weights)
    _add(phases, [op.phase for op in ops], length + gaps, weights)
    terms[AFTER] = phases[AFTER] = _total(times.end_ns - sorted_end[:, -1:], weights)
    return Account(sum(weights), times.length_ns, terms, phases, _numbers_of_waits(steps, paired, axes, depth))


def _add_waits(
    terms: dict[str, int],
    steps: Steps,
    times: Times,
    paired: Callable[[OpFacts], bool],
    depth: Collection[str],
    weights: Sequence[int],
) -> None:
    """Add what waits are made of: for the last member, which between stages is bubble, for transfers, and late."""
    waits = steps.columns("wait")
    ops = [steps.ops[i] for i in waits]
    split = split_waits(steps, times, waits)
    joins = np.array([op.axis in depth for op in ops], dtype=bool)
    pieces = [("skew", ~joins, split.skew)]
    if joins.any():
        pieces += [(kind, joins, part) for kind, part in parts(steps, times, waits, split.skew).items()]
    for kind, of, part in pieces:
        words = [f"{kind}_{ops[i].axis}" if paired(ops[i]) else ALONE for i in np.flatnonzero(of)]
        _add(terms, words, part[:, of], weights)
    moves = [transfer_term(steps, i) if joined else "transfer" for i, joined in zip(waits, joins, strict=True)]
    words = [f"{move}_{op.axis}" if paired(op) else ALONE for move, op in zip(moves, ops, strict=True)]
    _add(terms, words, split.transfer, weights)
    _add(terms, [LATE if paired(op) else ALONE for op in ops], split.late, weights)


def _numbers_of_waits(
    steps: Steps, paired: Callable[[OpFacts], bool], axes: Sequence[str], depth: Collection[str]
) -> dict[str, int]:
    """Count the paired waits along the axis of each term, at most so many of which are in it."""
    along = [steps.ops[i].axis for i in steps.columns("wait") if paired(steps.ops[i])]
    kinds = {axis: ("skew", "transfer", *((*BUBBLES, MESSAGE) if axis in depth else ())) for axis in axes}
    return {f"{kind}_{axis}": along.count(axis) for axis in axes for kind in kinds[axis]}


def split_waits(steps: Steps, times: Times, waits: NDArray[np.int64]) -> Split:
    """Take waits apart by what their collectives did meanwhile."""
    target = steps.target[waits]
    start, end = times.start[:, waits], times.end[:, waits]
    ready = np.maximum(times.arrival, free_from(steps, times))[:, target]
    begun, over = times.start[:, target], times.end[:, target]
    skew = np.clip(begun, start, end) - np.clip(np.minimum(ready, begun), start, end)
    late = end - np.clip(over, start, end)
    return Split(skew, end - start - skew - late, late)


def free_from(steps: Steps, times: Times) -> Nanoseconds:
    """When the communicator of each collective was through with the one before, (ranks, ops); 0 elsewhere."""
    free = np.zeros_like(times.end)
    streams: dict[str, list[int]] = {}
    for i in steps.columns("collective").tolist():
        streams.setdefault(steps.ops[i].stream, []).append(i)
    for columns in streams.values():
        at = np.array(columns)
        order = at[np.lexsort((times.end[:, at], times.start[:, at]), axis=1)]
        before = np.take_along_axis(times.end, order, 1)[:, :-1]
        np.put_along_axis(free, order[:, 1:], before, 1)
    return free


def skew_of(steps: Steps, times: Times) -> Nanoseconds:
    """Return how long each collective waited for its last member while nothing else held it, (ranks, ops)."""
    ready = np.maximum(times.arrival, free_from(steps, times))
    return np.maximum(times.start - ready, 0)


def _compute_term(op: OpFacts, known: bool) -> str | None:
    if op.kind == "wait":
        return None
    return op.work if known else ALONE


def _add(totals: dict[str, int], words: Sequence[str | None], matrix: Nanoseconds, weights: Sequence[int]) -> None:
    """Add a matrix (ranks, ops) to the totals of its columns' words."""
    for word in dict.fromkeys(words):
        if word is not None:
            chosen = matrix[:, [w == word for w in words]]
            totals[word] = totals.get(word, 0) + _total(chosen, weights)


def _total(matrix: Nanoseconds, weights: Sequence[int]) -> int:
    # a row is no longer than a step; all rows together may be too long for 64 bits
    return sum(row * weight for row, weight in zip(matrix.sum(axis=1).tolist(), weights, strict=True))
