"""Columns of numbers, filled batch by batch: each lies in one piece from the beginning.

Of a column in many pieces whoever computes with it makes a copy in one.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import DTypeLike


class Numbers:
    """Columns of so many rows, by name."""

    def __init__(self, types: Mapping[str, DTypeLike], rows: int) -> None:
        self._columns = {name: np.empty(rows, kind) for name, kind in types.items()}
        self._missing = dict.fromkeys(types, 0)
        self._rows, self._filled = rows, 0

    @property
    def nbytes(self) -> int:
        """Bytes of what is filled."""
        return sum(self._filled * column.itemsize for column in self._columns.values())

    def take(self, batch: pa.RecordBatch) -> None:
        """Copy a batch's columns behind those of the batches before; of what is too much nothing."""
        begin, self._filled = self._filled, self._filled + len(batch)
        if self._filled > self._rows:
            return
        for name, column in self._columns.items():
            found = batch.column(name)
            if found.null_count:
                self._missing[name] += found.null_count
                found = found.fill_null(0)
            column[begin : self._filled] = found.to_numpy(zero_copy_only=False)

    def problems(self) -> list[str]:
        """Return what is wrong: values that are missing, or another number of rows than was said."""
        found = [f"column {name} has {count} missing values" for name, count in self._missing.items() if count]
        if self._filled != self._rows:
            found.append(f"has {self._filled:,} rows where its footer says {self._rows:,}")
        return found

    def arrays(self) -> dict[str, pa.Array]:
        """Return them as Arrow's, without a copy."""
        return {name: pa.array(column) for name, column in self._columns.items()}
