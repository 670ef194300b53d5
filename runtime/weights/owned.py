"""What a rank updates of the store's flat buffers, where replicas share the optimizer's states among them.

The buffers are cut into buckets that lie one behind the other, and each replica owns an equal part of every bucket: of
one bucket, which holds everything, a contiguous part of all. In a buffer of what is owned alone the parts lie one
behind the other.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate


@dataclass(frozen=True)
class Bucket:
    """Elements `begin` to `stop` of the flat buffers."""

    begin: int
    end: int
    """Where what is no padding ends."""
    stop: int

    @classmethod
    def padded(cls, begin: int, end: int, parts: int) -> Bucket:
        """Pad elements so that they divide into so many equal parts."""
        return cls(begin, end, begin + -(-(end - begin) // parts) * parts)

    @property
    def whole(self) -> slice:
        """All of it."""
        return slice(self.begin, self.stop)

    def part(self, place: int, parts: int) -> slice:
        """Return the part of the replica at a place among so many."""
        size = (self.stop - self.begin) // parts
        return slice(self.begin + place * size, self.begin + (place + 1) * size)


@dataclass(frozen=True)
class Owned:
    """Ranges of the flat buffers, ascending, and where each lies in a buffer of what is owned alone.

    >>> owned = Owned((slice(2, 4), slice(6, 9)))
    >>> owned.elements, owned.inside(slice(7, 9)), list(owned.within(3, 7))
    (5, slice(3, 5, None), [slice(3, 4, None), slice(6, 7, None)])
    """

    ranges: tuple[slice, ...]

    @cached_property
    def _places(self) -> tuple[tuple[slice, int], ...]:
        """Return every range, and where it begins among what is owned."""
        sizes = [part.stop - part.start for part in self.ranges]
        return tuple(zip(self.ranges, accumulate(sizes, initial=0), strict=False))

    @property
    def elements(self) -> int:
        """Their number."""
        return sum(part.stop - part.start for part in self.ranges)

    def inside(self, place: slice) -> slice:
        """Return where elements that lie in one of the ranges lie among what is owned."""
        for part, first in self._places:
            if part.start <= place.start and place.stop <= part.stop:
                return slice(first + place.start - part.start, first + place.stop - part.start)
        raise ValueError(f"elements {place.start} to {place.stop} are not owned, or not together")

    def within(self, begin: int, stop: int) -> Iterator[slice]:
        """Return what is owned of a range."""
        for part in self.ranges:
            first, last = max(begin, part.start), min(stop, part.stop)
            if first < last:
                yield slice(first, last)
