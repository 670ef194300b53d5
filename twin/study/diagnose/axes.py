"""What is slower than the twin says on all ranks alike: an axis' collectives, or compute.

Here the yardstick is the model, which has errors of its own: only what it is known not to be wrong
by is told.
"""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from twin.study.diagnose.expected import Expected
from twin.study.diagnose.finding import CERTAIN, Finding
from twin.study.diagnose.observed import Floats, Observed
from twin.study.diagnose.robust import confidence, median_error

MODEL_ERROR = 2.0
"""By less than this factor the model may be wrong about an axis, on a machine whose hosts have other work."""
LEAST_SHARE = 0.05
"""Of a step."""


def slow_axes(observed: Observed, expected: Expected, without: Collection[int]) -> list[Finding]:
    """Find axes, or compute, that take much longer than expected on ranks other than `without`."""
    healthy = np.array([r for r in range(observed.grid.ranks) if r not in without], dtype=np.int64)
    if not len(healthy):
        return []
    found = []
    parts: list[tuple[str, Floats, Floats]] = [
        (axis, observed.transfer[axis], expected.transfer[axis])
        for axis in observed.axes if axis in expected.transfer
    ]  # fmt: skip
    for name, took, should in [*parts, ("compute", observed.compute, expected.compute)]:
        if not (should[healthy] > 0).all():
            continue
        of_step = np.median(took[:, healthy] / should[healthy], axis=1)
        factor = float(np.median(of_step))
        seconds = (factor - 1) * float(np.median(should[healthy]))
        if factor < MODEL_ERROR or seconds < LEAST_SHARE * float(np.median(observed.step_seconds)):
            continue
        error = max(median_error(of_step[:, None]), 0.02)
        sure = confidence(
            (factor - MODEL_ERROR**0.5) / error, max(1, len(of_step) - 1), len(parts) + 1
        )
        if sure >= CERTAIN:
            found.append(Finding(
                "compute" if name == "compute" else "axis", sure, factor, seconds,
                axis=None if name == "compute" else name,  # type: ignore[arg-type]  # an axis then
                evidence=f"the model is taken to be right within a factor of {MODEL_ERROR:g}",
            ))  # fmt: skip
    return found
