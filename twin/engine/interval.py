"""How far a prediction may be off: the same job under stated optimistic and pessimistic terms.

The terms are those whose size is assumed or uncertain; their ranges come from the models' own
errors against microbenchmarks, left out of the fits where there are enough, and from the sources of the
machine files, never from training times. All rows of training that are known only check them
(docs/explanation/validation.md).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot
from typing import Any

from twin.description.job import Job
from twin.description.parameter import Parameter
from twin.engine.simulate import Scales, simulate

GEMM_ERROR = 0.139
"""90 % of large products that were left out of the fits are predicted within this: 12 to 15 % by table, 13.9 % in the
middle of the eight."""
ATTENTION_ERROR = 0.16
"""The same of attention at lengths that were left out: 4 to 16 % by kernel, but for two on H100 (17 and 20 %)."""
MEMORY_ERROR = 0.15
"""How far public measurements of one norm commonly lie apart (now and then a half); of element-wise kernels 5 %."""
COLLECTIVE_ERROR = 0.25
"""90 % of most groups of measured collectives are predicted within this, in sample."""
SOFTWARE_ERROR = 0.07
"""So much one and the same configuration in bf16 moved between releases of the same software (NVIDIA's own
performance tables); which release a job runs on is not known. It has nothing to do with the errors above."""
MAX_COMPUTE_SLOWDOWN = 0.40
"""Largest slowdown of whole steps under overlap in arXiv 2507.03114."""
COMPUTE_SLOWDOWN_FACTOR = 1.7
"""So much more than the mean that is assumed of an A100 was a product slowed that somebody traced (0.76, github
NVIDIA/nccl issue 1428; attention there by 0.83)."""
COLLECTIVE_SLOWDOWN_FACTOR = 2.0
"""Assumed factor on the slowdown of collectives beside compute; at least `MIN_PESSIMISTIC`."""
MIN_PESSIMISTIC = 0.5
SPREAD_FACTOR = 2.0
"""Outliers double the measured spread of device speeds (12 and 28 % on Perlmutter)."""


@dataclass(frozen=True)
class Interval:
    """Step seconds under optimistic and pessimistic terms."""

    low: float
    high: float


def interval(job: Job) -> Interval:
    """Simulate a concrete job at both ends of what the uncertain terms may be."""
    low = simulate(_varied(job, 0.0, collective_slowdown=0.0, device_speed_spread=0.0), scales=_scales(-1))
    variation = job.machine.variation
    high = simulate(
        _varied(
            job,
            most_slowed(float(job.compute_slowdown)),
            collective_slowdown=max(MIN_PESSIMISTIC, COLLECTIVE_SLOWDOWN_FACTOR * variation.collective_slowdown),
            device_speed_spread=max(
                variation.device_speed_spread, min(0.5, SPREAD_FACTOR * variation.device_speed_spread)
            ),
        ),
        scales=_scales(+1),
    )
    return Interval(low.step_seconds, high.step_seconds)


def _scales(sign: int) -> Scales:
    """Return each term's error, and the software's beside it, as factors to one side."""
    errors = (GEMM_ERROR, ATTENTION_ERROR, MEMORY_ERROR, COLLECTIVE_ERROR)
    return Scales(*(1 + sign * hypot(error, SOFTWARE_ERROR) for error in errors))


def most_slowed(slowdown: float) -> float:
    """Return by which share a collective may slow compute at most, where this share is assumed."""
    return max(MAX_COMPUTE_SLOWDOWN, COMPUTE_SLOWDOWN_FACTOR * slowdown)


def _varied(job: Job, compute_slowdown: float, **values: float) -> Job:
    changed: dict[str, Any] = {k: Parameter(v, "assumed", "interval") for k, v in values.items()}
    variation = job.machine.variation.slowed_by(compute_slowdown, "interval").model_copy(update=changed)
    return job.model_copy(update={"machine": job.machine.model_copy(update={"variation": variation})})
