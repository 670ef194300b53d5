"""What is read off a timeline: one module for command line, dashboard and tests.

* Step time: last rank's end minus first rank's start.
* Exposed communication: union of communication minus union of compute, per rank.
* Idle: step minus union of everything.

All inputs are arrays of one rank's events; times in any one unit.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from twin.description.job import Job

Floats = NDArray[np.float64]
Intervals = tuple[Floats, Floats]
"""Starts and ends."""


@dataclass(frozen=True)
class Breakdown:
    """Where one rank's step goes; compute + exposed + idle = step, up to rounding. None is below 0."""

    compute: float
    exposed: float
    idle: float
    exposed_by_axis: dict[str, float]


def union_length(intervals: Intervals) -> float:
    """Length of the union of intervals.

    >>> union_length((np.array([0.0, 1.0, 5.0]), np.array([2.0, 3.0, 6.0])))
    4.0
    """
    start, end = intervals
    if not len(start):
        return 0.0
    order = np.argsort(start, kind="stable")
    start, reach = start[order], np.maximum.accumulate(end[order])
    gaps = np.maximum(0.0, start[1:] - reach[:-1]).sum()
    return float(reach[-1] - start[0] - gaps)


def breakdown(
    step: float, compute: Intervals, communication: Mapping[str, Intervals], waits: Mapping[str, Intervals]
) -> Breakdown:
    """Split a rank's step into compute, exposed communication and idle time.

    `communication` and `waits` are by axis. While communication is exposed, the time belongs to
    the axis that the compute stream is waiting for, else to the first axis that is active.
    """
    axes = list(communication)
    marks = [compute, *(communication[a] for a in axes), *(waits.get(a, _NOTHING) for a in axes)]
    times = _different(np.concatenate([part for pair in marks for part in pair] or [np.zeros(0)]))
    if len(times) < 2:
        return Breakdown(0.0, 0.0, step, dict.fromkeys(axes, 0.0))
    length = np.diff(times)
    computing = _covered(times, compute)
    active = {axis: _covered(times, communication[axis]) for axis in axes}
    exposed = ~computing & np.logical_or.reduce([*active.values(), np.zeros(len(length), bool)])
    left = exposed.copy()
    by_axis = dict.fromkeys(axes, 0.0)
    for covering in ({a: _covered(times, waits.get(a, _NOTHING)) for a in axes}, active):
        for axis in axes:
            mine = left & covering[axis]
            by_axis[axis] += float(length[mine].sum())
            left &= ~mine
    busy = float(length[computing].sum())
    hidden = float(length[exposed].sum())
    # what is left of the step by itself: as a difference it would be a little above or below 0 where nothing is
    outside = step - float(times[-1] - times[0])
    return Breakdown(busy, hidden, float(length[~computing & ~exposed].sum()) + outside, by_axis)


_NOTHING: Intervals = (np.zeros(0), np.zeros(0))


def _covered(times: Floats, intervals: Intervals) -> NDArray[np.bool_]:
    """For each piece between neighbouring times, whether an interval covers it."""
    start, end = intervals
    begun = np.bincount(np.searchsorted(times, start), minlength=len(times))
    ended = np.bincount(np.searchsorted(times, end), minlength=len(times))
    covered: NDArray[np.bool_] = (begun - ended).cumsum()[:-1] > 0
    return covered


def _different(times: Floats) -> Floats:
    """Return the times that differ, ascending; what is in order piece by piece, as a rank's times are, costs little."""
    times.sort(kind="stable")
    different: Floats = times[np.concatenate([np.ones(min(len(times), 1), dtype=bool), times[1:] != times[:-1]])]
    return different


def model_flops(
    *,
    sequences: int,
    sequence: int,
    layers: int,
    hidden: int,
    mlp_ratio: int,
    vocabulary: int,
    recompute: bool,
    mlp_width: int | None = None,
    activation: Literal["gelu", "swiglu"] = "gelu",
    query_width: int | None = None,
    key_width: int | None = None,
    adapters: int | None = None,
) -> float:
    """Flops of one step, with or without those of recomputed blocks.

    The model's shape is that of `twin.description.model`. With GELU, mlp_ratio 4 and
    recomputation this is section 8 of the algorithm (arXiv 2104.04473):
    96·B·s·l·h²·(1 + s/6h + V/16lh). Blocks run three times (forward, twice in backward), four
    with recomputation; the head three times in either case, so without recomputation the
    vocabulary's term is V/12lh. All heads of queries are `query_width` wide together, those of keys
    `key_width`; both are `hidden` if absent. With `adapters`, elements of low-rank ones, these train alone: the
    model's own weights run once less, for want of gradients.

    >>> flops = model_flops(sequences=8192, sequence=2048, layers=96, hidden=16384, mlp_ratio=4,
    ...                     vocabulary=50304, recompute=True)
    >>> f"{flops:.3e}"
    '4.245e+19'
    """
    passes = 4 if recompute else 3
    frozen = adapters is not None
    wide = mlp_ratio * hidden if mlp_width is None else mlp_width
    products = 3 if activation == "swiglu" else 2  # of hidden × wide
    queries = hidden if query_width is None else query_width
    keys = queries if key_width is None else key_width
    products_of_token = 2 * hidden * (2 * queries + 2 * keys + products * wide)  # of a block, once
    attention = 4 * sequence * queries
    block = (passes - frozen) * products_of_token + passes * attention
    head = 2 * (3 - frozen) * vocabulary * hidden
    return float(sequences * sequence * (layers * block + head + 2 * passes * (adapters or 0)))


def job_flops(job: Job, *, recompute: bool) -> float:
    """Flops of one step of a job; what predicted and measured rates are both reckoned from."""
    model = job.model
    return model_flops(
        sequences=job.batch.sequences,
        sequence=model.sequence,
        layers=model.layers,
        hidden=model.hidden,
        mlp_ratio=model.mlp_ratio,
        vocabulary=model.vocabulary,
        recompute=recompute,
        mlp_width=model.mlp_width,
        activation=model.mlp_kind,
        query_width=model.qkv_parts[0],
        key_width=model.qkv_parts[1],
        adapters=None if job.lora is None else job.lora.parameters(model),
    )


def hardware_flops(job: Job) -> float:
    """Flops of one step of a job with those that are computed again."""
    return job_flops(job, recompute=job.recompute) - job.kept_flops


def job_peak_flops_per_second(job: Job) -> float:
    """Peak of all devices of a job as its machine has it, in the job's precision."""
    device = job.machine.device
    share = device.gemm.fp32_share if job.precision == "fp32" else 1.0
    return float(job.ranks * device.peak_flops_per_second * share)
