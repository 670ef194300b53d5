"""Groups of one partition that load the same links, when they do not come at the same time.

In the folded simulation such groups run in step and each gets its share. With random differences one
starts earlier or has more to do, and while fewer are at it each gets more: the ends follow from
sharing evenly among those at work.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from twin.engine.cube import Along, Cube, Floats
from twin.engine.layout import Ints
from twin.engine.symmetry import Edges

MAX_TOGETHER = 8
"""Larger bundles are taken to run in step."""
ROUNDING = 1e-12


@dataclass(frozen=True)
class Bundles:
    """Groups of a partition in bundles of equal size."""

    along: Along
    groups: Ints
    """(groups of a bundle, bundles)."""

    @classmethod
    def of(cls, along: Along, edges: Edges, groups: int, resources: int) -> Bundles | None:
        """Find which groups meet on a resource below number `resources`, directly or through others.

        None if no two do, or if bundles are large or of several sizes.
        """
        inside = edges.resource < resources
        group, resource = edges.group[inside], edges.resource[inside]
        label = np.arange(groups, dtype=np.int64)
        while len(group):
            least = np.full(resources, groups, dtype=np.int64)
            np.minimum.at(least, resource, label[group])
            after = label.copy()
            np.minimum.at(after, group, least[resource])
            if np.array_equal(after, label):
                break
            label = after
        _, size = np.unique(label, return_counts=True)
        if not 1 < size[0] <= MAX_TOGETHER or (size != size[0]).any():
            return None
        in_bundles = np.argsort(label, kind="stable").reshape(-1, size[0])
        return cls(along, np.ascontiguousarray(in_bundles.T))

    def longer(self, cube: Cube, begin: Floats, work: Floats | float, share: Floats | float) -> Floats | float:
        """Return how long transfers take that begin then and would take `work` if all ran in step.

        Arrays over groups; `share` is what links let each have then.
        """
        together = self.groups
        least = np.broadcast_to(share, begin.shape).reshape(-1)[together].min(axis=0)
        if (least >= 1.0 - ROUNDING).all():
            return work
        starts = begin.reshape(-1)[together]
        works = np.broadcast_to(work, begin.shape).reshape(-1)[together]
        if (starts == starts[0]).all() and (works == works[0]).all():
            return work
        taken = np.empty(begin.size)
        taken[together] = shared_ends(starts, works, 1.0 / least) - starts
        return cube.laid_out(taken, self.along)


def shared_ends(begin: Floats, work: Floats, fastest: Floats) -> Floats:
    """Return when each of several transfers on one link is done, arrays (transfers, links).

    With all of them under way each has speed 1; with k of n, n / k, but no more than `fastest`.

    >>> shared_ends(np.array([[0.0], [1.0]]), np.array([[2.0], [2.0]]), np.array([2.0]))
    array([[1.],
           [2.]])
    """
    if len(begin) == 2:
        return _ends_of_two(begin, work, np.minimum(fastest, 2.0))
    left, end = work.copy(), np.where(work > 0.0, np.inf, begin)
    now, count = begin.min(axis=0), len(begin)
    while (unfinished := np.isinf(end)).any():
        active = unfinished & (begin <= now)
        speed = np.minimum(fastest, count / np.maximum(active.sum(axis=0), 1))
        first_done = np.where(active, left, np.inf).min(axis=0) / speed
        next_start = np.where(unfinished & ~active, begin, np.inf).min(axis=0) - now
        passed = np.minimum(first_done, next_start)
        passed[np.isinf(passed)] = 0.0
        now = now + passed
        left -= np.where(active, speed * passed, 0.0)
        end = np.where(active & (left <= ROUNDING * work), now, end)
    return end


def _ends_of_two(begin: Floats, work: Floats, alone: Floats) -> Floats:
    """Return the same of two: speed `alone` until the second begins and after one is done."""
    in_order = begin[0] <= begin[1]
    first, second = np.where(in_order, begin, begin[::-1])
    ahead, behind = np.where(in_order, work, work[::-1])
    before = np.minimum(ahead, (second - first) * alone)
    rest = ahead - before
    both = np.minimum(rest, behind)
    end_of_first = np.where(rest > 0.0, second + both + (rest - both) / alone, first + before / alone)
    end_of_second = second + both + (behind - both) / alone
    return np.where(in_order, (end_of_first, end_of_second), (end_of_second, end_of_first))
