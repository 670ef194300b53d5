"""What one rank of a window does, for tests: notes made of a recorded trace, summed up."""

from __future__ import annotations

from typing import Any

import torch

from runtime.parallel.ops import Op
from runtime.tracing.clock import ClockOffset
from runtime.tracing.listener import Note
from runtime.watch.window import summed_up
from twin.strategies.four_d.grid import Grid

OFFSETS = 0, 7_000_000, -3_000_000, 123_456
"""How far the ranks' clocks are said to be from rank 0's."""


def summary(worker: Any, grid: dict[str, int], rows: list[dict[str, Any]]) -> Any:
    """Sum up the rows of this rank, told by a clock that is off."""
    mesh = worker.mesh(Grid(**grid))
    offset = OFFSETS[mesh.rank]
    notes = [
        Note(
            Op(row["op"], "fwd", None, 0, communicator=row["stream"] if row["kind"] == "collective" else None),
            row["kind"],
            row["step"],
            row["arrival_ns"] - offset,
            row["end_ns"] - offset,
        )
        for row in rows
        if row["rank"] == mesh.rank
    ]
    loading = {step: 1000 * (step + mesh.rank) for step in {note.step for note in notes}}
    return summed_up(notes, loading, mesh, ClockOffset(offset, 0, "told"), torch.device("cpu"))
