"""What a device at its power limit does not draw: what kernels and links beside them would draw above the limit.

Watts of products, memory and links are each known alone. Where they add up to more than the limit leaves beside the
context, firmware lowers the units' clock: a kernel draws what links leave it, and only where links alone are above the
limit are they held back too, each by the same share. The ops' times stay as they are priced.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twin.engine.power_over_time import Ops, seconds_of
from twin.engine.program import COMPUTE
from twin.engine.times import Floats, Times

ROUNDING = 1e-12
"""Of the limit: sums of watts that differ by less are equal."""


@dataclass(frozen=True)
class Held:
    """What one rank does not draw of some ops."""

    pieces: Ops
    """When, and how many watts: negative, to be added to what the ops draw."""
    joules: Floats
    """Of each op, (ops,)."""
    beside_joules: float
    """What links do draw while kernels run."""

    def of_ranks(self, count: int) -> Ops:
        """Return the pieces of several ranks that do the same."""
        return Ops(self.pieces.begins, self.pieces.seconds, count * self.pieces.watts)


def held_back(times: Times, code: NDArray[np.int8], watts: Floats, slowness: float, spare_watts: float) -> Held:
    """Find where the ops of a rank would draw more than the limit spares them; arguments are those of `Ops.of`."""
    seconds, joules = seconds_of(times, code, slowness), np.zeros(len(code))
    drawing = np.flatnonzero((watts != 0.0) & (seconds > 0.0))
    begins, own = times.start[drawing], watts[drawing]
    ends, computes = begins + seconds[drawing], code[drawing] == COMPUTE
    edges = np.unique(np.concatenate([begins, ends]))
    first, stop = np.searchsorted(edges, begins), np.searchsorted(edges, ends)

    def level(chosen: NDArray[np.bool_], of: Floats) -> Floats:
        """Add up watts of some ops, from each edge to the next."""
        rises, falls = (np.bincount(at[chosen], of[chosen], minlength=len(edges)) for at in (first, stop))
        found: Floats = np.cumsum(rises - falls)[:-1]
        return found

    kernels, links, running = level(computes, own), level(~computes, own), level(computes, np.ones_like(own))
    above = kernels + links - spare_watts
    above[above <= ROUNDING * spare_watts] = 0.0
    of_kernels = np.minimum(above, np.maximum(kernels, 0.0))
    of_links = above - of_kernels
    lasts = np.diff(edges)
    for chosen, held, drawn in ((computes, of_kernels, kernels), (~computes, of_links, links)):
        share = np.divide(held, drawn, out=np.zeros_like(held), where=held > 0.0)
        until = np.concatenate([[0.0], np.cumsum(share * lasts)])
        joules[drawing[chosen]] = own[chosen] * (until[stop[chosen]] - until[first[chosen]])
    places = np.flatnonzero(above)
    beside = float((lasts * (links - of_links))[running > 0.5].sum())
    return Held(Ops(edges[places], lasts[places], -above[places]), joules, beside)
