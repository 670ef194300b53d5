"""Copies of sub-groups to a device and back, beside its work: two buffers and, on a GPU, a stream each way.

On a CPU copies are done at once, in the same order: what is updated is a second buffer, as on a GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from runtime.step.copies import Done, Passed, Work
from twin.strategies.held import LANE_ROWS, LANES

Tensors = tuple[torch.Tensor, torch.Tensor, torch.Tensor]


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
        self._next = 0
        self._cuda = device.type == "cuda"
        self._up = torch.cuda.Stream(device) if self._cuda else None
        self._down = torch.cuda.Stream(device) if self._cuda else None

    def staging(self, elements: int) -> Staging:
        """Return room on the device for weights and moments of a sub-group, once it is free again."""
        staging = self._staging()
        first, second, third = (staging.buffer[row, :elements] for row in range(LANE_ROWS))
        staging.tensors = (first, second, third)
        return staging

    def fetch(self, staging: Staging, tensors: Tensors) -> Work:
        """Bring weights and moments to the device; the device's work is to wait for what is returned."""
        if self._up is None:
            for here, there in zip(staging.tensors, tensors, strict=True):
                here.copy_(there)
            return Done()
        if staging.free is not None:
            self._up.wait_event(staging.free)
        with torch.cuda.stream(self._up):
            for here, there in zip(staging.tensors, tensors, strict=True):
                here.copy_(there, non_blocking=True)
        return Passed(self._up.record_event())

    def give_back(self, staging: Staging, tensors: Tensors) -> Work:
        """Take what the device has updated back to where it lies; return what is to be waited for."""
        if self._down is None:
            for here, there in zip(staging.tensors, tensors, strict=True):
                there.copy_(here)
            return Done()
        self._down.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(self._down):
            for here, there in zip(staging.tensors, tensors, strict=True):
                there.copy_(here, non_blocking=True)
            staging.free = self._down.record_event()
        return Passed(staging.free)

    def finish(self) -> None:
        """Wait until everything lies where it belongs: checkpoints read it on the host."""
        if self._down is not None:
            self._down.synchronize()

    def _staging(self) -> Staging:
        if len(self._stagings) < LANES:
            buffer = torch.empty((LANE_ROWS, self._elements), dtype=self._kind, device=self._device)
            if self._up is not None:  # whose memory it was until now
                self._up.wait_stream(torch.cuda.current_stream(self._device))
            self._stagings.append(Staging(buffer, (buffer[0], buffer[1], buffer[2])))
            return self._stagings[-1]
        self._next = (self._next + 1) % LANES
        return self._stagings[self._next]
