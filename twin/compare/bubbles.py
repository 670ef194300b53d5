"""Bubbles of a stage: waits for ranks of other stages, told apart by when they begin.

A wait for a message, or for any collective along the axis that divides layers, lasts until the other end has come,
which is bubble, and from then on until the end, which is its exposed transfer. Bubble is

* *warm-up* before the rank's first backward compute: the first micro-batch has not come, or not come back;
* *drain* after its last forward compute: backward passes of later stages, and what the end of the step waits for;
* *imbalance* between them: the pipeline is full, and the rank waits for a slower stage.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import numpy as np
from numpy.typing import NDArray

from twin.compare.kinds import is_message
from twin.compare.steps import Nanoseconds, Steps, Times

WARM_UP, IMBALANCE, DRAIN, MESSAGE = "warmup", "imbalance", "drain", "message"
BUBBLES: Mapping[str, str] = MappingProxyType(
    {WARM_UP: "bubble: warm-up", IMBALANCE: "bubble: imbalance", DRAIN: "bubble: drain"}
)
"""First words of the names of terms, and how people read them; the axis follows."""
FORWARD, BACKWARD = {"fwd", "loss"}, {"bwd", "recompute"}


def bubble_terms(axes: Sequence[str]) -> dict[str, str]:
    """Name what waits along some axes are made of, and say it to a reader."""
    more = {axis: f", {axis}" if len(axes) > 1 else "" for axis in axes}
    return {
        **{f"{kind}_{axis}": words + more[axis] for axis in axes for kind, words in BUBBLES.items()},
        **{f"{MESSAGE}_{axis}": f"wait for the transfer, messages{more[axis]}" for axis in axes},
    }


def is_bubble(term: str) -> bool:
    """Tell whether a term is a bubble.

    >>> is_bubble("drain_pipeline"), is_bubble("message_pipeline")
    (True, False)
    """
    return term.partition("_")[0] in BUBBLES


def parts(steps: Steps, times: Times, waits: NDArray[np.int64], skew: Nanoseconds) -> dict[str, Nanoseconds]:
    """Tell the skew of waits, (ranks, waits), apart by when they begin; together these are the skew."""
    start = times.start[:, waits]
    first, last = _first_backward(steps, times), _last_forward(steps, times)
    warm_up = start < first
    drain = ~warm_up & (start >= last)
    return {
        WARM_UP: np.where(warm_up, skew, 0),
        IMBALANCE: np.where(warm_up | drain, 0, skew),
        DRAIN: np.where(drain, skew, 0),
    }


def transfer_term(steps: Steps, wait: int) -> str:
    """Return the first word of the term for the transfer that a wait along such an axis waits for."""
    return MESSAGE if is_message(steps.ops[steps.target[wait]].name) else "transfer"


def _first_backward(steps: Steps, times: Times) -> Nanoseconds:
    """When each rank begins its first backward compute, (ranks, 1); of a stage that has none, nothing is warm-up."""
    columns = _computes(steps, BACKWARD)
    if not columns:
        return np.full((len(times.start), 1), np.iinfo(np.int64).min)
    return np.asarray(times.start[:, columns].min(axis=1, keepdims=True), dtype=np.int64)


def _last_forward(steps: Steps, times: Times) -> Nanoseconds:
    """When each rank ends its last forward compute, (ranks, 1); of a stage that has none, nothing is drain."""
    columns = _computes(steps, FORWARD)
    if not columns:
        return np.full((len(times.start), 1), np.iinfo(np.int64).max)
    return np.asarray(times.end[:, columns].max(axis=1, keepdims=True), dtype=np.int64)


def _computes(steps: Steps, phases: set[str]) -> list[int]:
    return [i for i, op in enumerate(steps.ops) if op.kind == "compute" and op.phase in phases]
