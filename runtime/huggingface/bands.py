"""Rectangles of one tensor put together from rectangles of others: pure arithmetic.

A *band* says that some rows of a parameter are some rows (or, transposed, columns) of a tensor in a file. Rows that
are joined, permuted or copied are several bands; each is an index map, so any rectangle can be read alone.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch

Read = Callable[[str, tuple[int, ...], tuple[int, ...]], torch.Tensor]
"""Reads a rectangle of a named tensor: its name, offsets, sizes."""


@dataclass(frozen=True)
class Band:
    """Rows of a parameter of ours, and where they lie in a tensor of theirs."""

    ours: str
    our_row: int
    theirs: str
    their_row: int
    """A column if it is transposed."""
    rows: int
    transposed: bool = False

    @property
    def turned(self) -> Band:
        """The same, seen from the other side."""
        return Band(self.theirs, self.their_row, self.ours, self.our_row, self.rows, self.transposed)


class Bands:
    """The bands of many tensors."""

    def __init__(self, bands: Iterable[Band]) -> None:
        self._of: dict[str, list[Band]] = defaultdict(list)
        for band in bands:
            self._of[band.ours].append(band)
        for found in self._of.values():
            found.sort(key=lambda band: band.our_row)

    def sources(self, name: str) -> list[str]:
        """Return the tensors that one is made of, each once."""
        return list(dict.fromkeys(band.theirs for band in self._of[name]))

    def ours(self, name: str, offsets: tuple[int, ...], sizes: tuple[int, ...], read: Read) -> torch.Tensor:
        """Return a rectangle of a parameter, read from their tensors."""

        def straight(band: Band, begin: tuple[int, ...], count: tuple[int, ...]) -> torch.Tensor:
            if not band.transposed:
                return read(band.theirs, begin, count)
            return read(band.theirs, begin[::-1], count[::-1]).T

        return self._joined(name, offsets, sizes, straight)

    def theirs(self, key: str, offsets: tuple[int, ...], sizes: tuple[int, ...], read: Read) -> torch.Tensor:
        """Return a rectangle of a tensor of theirs, where these bands are `turned`, read from our parameters."""
        transposed = self._of[key][0].transposed

        def straight(band: Band, begin: tuple[int, ...], count: tuple[int, ...]) -> torch.Tensor:
            return read(band.theirs, begin, count)

        if not transposed:
            return self._joined(key, offsets, sizes, straight)
        return self._joined(key, offsets[::-1], sizes[::-1], straight).T

    def _joined(
        self,
        name: str,
        offsets: tuple[int, ...],
        sizes: tuple[int, ...],
        read: Callable[[Band, tuple[int, ...], tuple[int, ...]], torch.Tensor],
    ) -> torch.Tensor:
        found, first, last = [], offsets[0], offsets[0] + sizes[0]
        for band in self._of[name]:
            begin, end = max(first, band.our_row), min(last, band.our_row + band.rows)
            if begin < end:
                there = band.their_row + begin - band.our_row
                found.append(read(band, (there, *offsets[1:]), (end - begin, *sizes[1:])))
        return found[0] if len(found) == 1 else torch.cat(found)
