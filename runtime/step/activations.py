"""Inputs of recomputed blocks beyond the device: each leaves after its forward pass and comes back for its backward.

They come back in the opposite order: while one is used the one before is on its way. Buffers are used again and again,
in every step. On a CPU copies are done at once, into a second buffer or a file.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

import torch

from runtime.step.tiers import Room, offload_of
from twin.description.job import Job


@dataclass
class Kept:
    """One tensor that is away."""

    tier: ActivationTier
    buffer: torch.Tensor
    """Flat, where it lies."""
    shape: torch.Size
    before: Kept | None
    """What left before it and is still away."""
    coming: torch.Tensor | None = None

    def come(self) -> None:
        """Begin to come back."""
        if self.coming is None:
            self.coming = self.tier.copy_back(self)

    def back(self) -> torch.Tensor:
        """Be back on the device; what left before is on its way from now on. Call it once."""
        self.come()
        found = self.coming
        assert found is not None
        self.tier.arrived(self)
        if self.before is not None:
            self.before.come()
        return found


@dataclass
class ActivationTier:
    """Where a rank's activations lie while they are not used."""

    room: Room
    device: torch.device
    _free: dict[tuple[int, torch.dtype], list[torch.Tensor]] = field(default_factory=lambda: defaultdict(list))
    _last: Kept | None = None
    _up: Any = None
    """CUDA's streams, made once they are wanted; torch.cuda has no types."""
    _down: Any = None

    def leave(self, tensor: torch.Tensor) -> Kept:
        """Let a tensor go; its memory on the device is free once it is gone."""
        flat = tensor.detach().reshape(-1)
        spare = self._free[flat.numel(), flat.dtype]
        buffer = spare.pop() if spare else self.room.zeros(flat.numel(), flat.dtype)
        if self.device.type == "cuda":
            self._down = self._down or torch.cuda.Stream(self.device)
            self._down.wait_stream(torch.cuda.current_stream(self.device))
            with torch.cuda.stream(self._down):
                buffer.copy_(flat, non_blocking=True)
            flat.record_stream(self._down)
        else:
            buffer.copy_(flat)
        self._last = Kept(self, buffer, tensor.shape, self._last)
        return self._last

    def copy_back(self, kept: Kept) -> torch.Tensor:
        """Bring a tensor's numbers back to the device."""
        found = torch.empty(kept.buffer.numel(), dtype=kept.buffer.dtype, device=self.device)
        if self.device.type == "cuda":
            self._up = self._up or torch.cuda.Stream(self.device)
            self._up.wait_stream(self._down)  # it may not have gone yet
            self._up.wait_stream(torch.cuda.current_stream(self.device))  # whose memory this was
            with torch.cuda.stream(self._up):
                found.copy_(kept.buffer, non_blocking=True)
            found.record_stream(self._up)
        else:
            found.copy_(kept.buffer)
        return found.view(kept.shape)

    def arrived(self, kept: Kept) -> None:
        """Wait for what comes, and take its buffer back."""
        if self._up is not None:
            torch.cuda.current_stream(self.device).wait_stream(self._up)
        self._free[kept.buffer.numel(), kept.buffer.dtype].append(kept.buffer)
        if self._last is kept:
            self._last = kept.before


def activations_of(job: Job, device: torch.device) -> ActivationTier | None:
    """Return where the inputs of recomputed blocks lie; None: on the device."""
    offload = offload_of(job)
    if offload is None or offload.activations is None or not job.recompute:
        return None
    return ActivationTier(Room.of(offload, offload.activations, device), device)
