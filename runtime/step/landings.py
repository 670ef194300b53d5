"""Pinned memory of the host through which gradients come to its cores, and weights that these have updated go back.

A copy to memory that is not pinned, made for it alone, waits for every one of its pages: on one H200 gradients came so
at 1.5 GB/s, where the link has 55. While the host updates one sub-group the next one's gradients come, and the last
one's weights go.
"""

from __future__ import annotations

from typing import Any

import torch

from runtime.step.copies import Done, Passed, Work
from runtime.step.lanes import Lanes
from runtime.step.tiers import Room
from twin.strategies.held import LANDINGS


class Landings:
    """As many buffers as sub-groups are under way at once; each with a row for what the device has of an element."""

    def __init__(self, room: Room, lanes: Lanes, rows: int, elements: int, kind: torch.dtype) -> None:
        self._room, self._lanes = room, lanes
        self._shape, self._kind = (rows, elements), kind
        self._buffers: list[torch.Tensor] = []

    def of(self, turn: int, elements: int) -> torch.Tensor:
        """Return the rows (rows, elements) for the sub-group whose turn it is, counted from 0."""
        self.make(turn + 1)
        return self._buffers[turn % LANDINGS][:, :elements]

    def make(self, groups: int) -> None:
        """Take what so many sub-groups need; raises DescriptionError if there is no room."""
        while len(self._buffers) < min(groups, LANDINGS):
            flat = self._room.zeros(self._shape[0] * self._shape[1], self._kind)
            self._buffers.append(flat.view(self._shape))

    def bring(self, here: torch.Tensor, there: torch.Tensor) -> Work:
        """Copy numbers of the device into a row, behind the device's work so far."""
        return self._copied(here, there, self._lanes.down)

    def send(self, there: torch.Tensor, here: torch.Tensor) -> Work:
        """Copy numbers of the host to the device, whose work is to wait for what is returned."""
        return self._copied(there, here, self._lanes.up)

    @staticmethod
    def _copied(target: torch.Tensor, source: torch.Tensor, stream: Any) -> Work:
        if stream is None:
            target.copy_(source)
            return Done()
        stream.wait_stream(torch.cuda.current_stream(stream.device))
        with torch.cuda.stream(stream):
            target.copy_(source, non_blocking=True)
        return Passed(stream.record_event())
