"""What is slower than it should be on all ranks alike: an axis' collectives, or compute.

Peers are no yardstick here. It is what an earlier run on the same ranks took, or else the model, which
has errors of its own: only on a machine whose constants were calibrated, and by more than it is known to be
wrong by, is a difference told.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping

import numpy as np
from pydantic import BaseModel

from twin.description.machine import Machine
from twin.description.parameter import Parameter
from twin.diagnose.expected import Expected
from twin.diagnose.finding import CERTAIN, Finding, Yardstick
from twin.diagnose.observed import Floats, Observed
from twin.diagnose.robust import confidence, median_error

MODEL_ERROR = 2.0
"""By less than this factor the model may be wrong about an axis, on hosts that have other work too."""
CHANGE = 1.5
"""By less than this factor an axis may differ from one time to another, for the same reason."""
FASTEST = 0.1
"""Slower everywhere is what even the fastest tenth of the ranks is."""
MIN_SHARE = 0.05
"""Of a step."""


def slow_axes(
    observed: Observed, should: Expected, without: Collection[int], *, by: Yardstick = "the model"
) -> list[Finding]:
    """Find axes, or compute, that take much longer than they should on ranks other than `without`."""
    healthy = np.array([r for r in range(observed.grid.ranks) if r not in without], dtype=np.int64)
    if not len(healthy):
        return []
    least = MODEL_ERROR if by == "the model" else CHANGE
    found = []
    parts: list[tuple[str, Floats, Floats]] = [
        (axis, observed.transfer[axis], should.transfer[axis]) for axis in observed.axes if axis in should.transfer
    ]
    for name, took, usual in [*parts, ("compute", observed.compute, should.compute)]:
        if not (usual[healthy] > 0).all():
            continue
        of_step = np.quantile(took[:, healthy] / usual[healthy], FASTEST, axis=1)
        factor = float(np.median(of_step))
        seconds = (factor - 1) * float(np.median(usual[healthy]))
        if factor < least or seconds < MIN_SHARE * float(np.median(observed.step_seconds)):
            continue
        error = max(median_error(of_step[:, None]), 0.02)
        score = (factor - least**0.5) / error
        sure = confidence(score, max(1, len(of_step) - 1), len(parts) + 1)
        if sure >= CERTAIN:
            found.append(
                Finding(
                    "compute" if name == "compute" else "axis",
                    sure,
                    factor,
                    seconds,
                    axis=None if name == "compute" else name,
                    evidence=f"told from a factor of {least:g} on",
                    yardstick=by,
                )
            )
    return found


def is_calibrated(machine: Machine) -> bool:
    """Tell whether any constant of the machine's collectives was calibrated: else the model is a guess."""
    library = machine.libraries[machine.library]
    return any(isinstance(each, Parameter) and each.kind == "calibrated" for each in _values(library))


def _values(part: object) -> Iterator[object]:
    """Everything inside a description."""
    if isinstance(part, BaseModel):
        for name in type(part).model_fields:
            yield from _values(getattr(part, name))
    elif isinstance(part, Mapping):
        for value in part.values():
            yield from _values(value)
    elif isinstance(part, tuple | list):
        for value in part:
            yield from _values(value)
    else:
        yield part
