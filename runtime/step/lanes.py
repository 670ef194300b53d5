"""Copies of sub-groups to a device and back, beside its work: two buffers and, on a GPU, a stream each way.

On a CPU copies are done at once, in the same order: what is updated is a second buffer, as on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from runtime.step.adamw import Tensors
from runtime.step.copies import Done, Passed, Work
from twin.strategies.held import LANE_ROWS, LANES


@dataclass
class Staging:
    """One buffer of the device, with what of it is in use."""

    buffer: torch.Tensor
    """(3, elements of a sub-group)."""
    tensors: Tensors
    free: Any = None
    """CUDA's event after which it may be filled again; torch.cuda has no types."""


class Lanes:
    """The way to the device and back."""

    def __init__(self, device: torch.device, elements: int, kind: torch.dtype) -> None:
        self._device, self._elements, self._kind = device, elements, kind
        self._stagings: list[Staging] = []
        self._turn = 0
        self.up: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        """CUDA's stream to the device; torch.cuda has no types."""
        self.down: Any = torch.cuda.Stream(device) if device.type == "cuda" else None
        """That to the host."""

    def staging(self, elements: int) -> Staging:
        """Return room on the device for weights and moments of a sub-group, once it is free again."""
        staging = self._staging()
        first, second, third = (staging.buffer[row, :elements] for row in range(LANE_ROWS))
        staging.tensors = (first, second, third)
        return staging

    def fetch(self, staging: Staging, tensors: Tensors) -> Work:
        """Bring weights and moments to the device; the device's work is to wait for what is returned."""
        if self.up is None:
            for here, there in zip(staging.tensors, tensors, strict=True):
                here.copy_(there)
            return Done()
        if staging.free is not None:
            self.up.wait_event(staging.free)
        with torch.cuda.stream(self.up):
            for here, there in zip(staging.tensors, tensors, strict=True):
                here.copy_(there, non_blocking=True)
        return Passed(self.up.record_event())

    def give_back(self, staging: Staging, tensors: Tensors) -> Work:
        """Take what the device has updated back to where it lies; return what is to be waited for."""
        if self.down is None:
            for here, there in zip(staging.tensors, tensors, strict=True):
                there.copy_(here)
            return Done()
        self.down.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self.down):
            for here, there in zip(staging.tensors, tensors, strict=True):
                there.copy_(here, non_blocking=True)
            staging.free = self.down.record_event()
        return Passed(staging.free)

    def finish(self) -> None:
        """Wait until everything lies where it belongs: checkpoints read it on the host."""
        if self.down is not None:
            self.down.synchronize()

    def _staging(self) -> Staging:
        """Take turns, so that none is filled again before those of after it are in use."""
        turn, self._turn = self._turn, (self._turn + 1) % LANES
        if turn < len(self._stagings):
            return self._stagings[turn]
        buffer = torch.empty((LANE_ROWS, self._elements), dtype=self._kind, device=self._device)
        if self.up is not None:  # whose memory it was until now
            self.up.wait_stream(torch.cuda.current_stream(self._device))
        self._stagings.append(Staging(buffer, (buffer[0], buffer[1], buffer[2])))
        return self._stagings[-1]
