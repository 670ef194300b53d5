"""Inputs of recomputed blocks beyond the device: each leaves after its forward pass and comes back for its backward.

They come back in the opposite order: while one is used the one before is on its way. Buffers are used again and again,
in every step. On a CPU copies are done at once, into a second buffer or a file.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from runtime.parallel.ops import Ops, Place
from runtime.step.copies import Copies, Copy, Done, Passed, Work
from runtime.step.tiers import Room, offload_of
from twin.description.job import Job
from twin.strategies.fetch import AHEAD, COMING, GOING
from twin.strategies.offload import DOWN, UP

Leave = Callable[[torch.Tensor], "Kept"]
"""Lets a block's input go."""
NOWHERE = Place("")


@dataclass
class Kept:
    """One tensor that is away."""

    tier: ActivationTier
    buffer: torch.Tensor
    """Flat, where it lies."""
    shape: torch.Size
    place: Place
    before: Kept | None
    """What left before it and is still away."""
    coming: tuple[Copy, torch.Tensor] | None = None
    """The copy, and where to: held until the device's work has waited for it."""

    def come(self) -> None:
        """Begin to come back."""
        if self.coming is None:
            self.coming = self.tier.copy_back(self)

    def back(self) -> torch.Tensor:
        """Be back on the device; what left before is on its way from now on. Call it once."""
        self.come()
        assert self.coming is not None
        copy, found = self.coming
        copy.wait()
        self.coming = None  # what was away is its reader's alone now, and goes when that is done with it
        self.tier.arrived(self)
        if self.before is not None:
            self.before.come()
        return found


@dataclass
class ActivationTier:
    """Where a rank's activations lie while they are not used."""

    room: Room
    device: torch.device
    copies: Copies = field(default_factory=lambda: Copies(Ops(), named=False))
    _free: dict[tuple[int, torch.dtype], list[torch.Tensor]] = field(default_factory=lambda: defaultdict(list))
    _last: Kept | None = None
    _going: deque[tuple[Copy, torch.Tensor | None]] = field(default_factory=deque)
    """Copies on their way, and what they read on a GPU: that is let go of once the device's work waits for the copy,
    so that its memory is used again in order, and not only when the host sees that the copy is over."""
    _up: Any = None
    """CUDA's streams, made once they are wanted; torch.cuda has no types."""
    _down: Any = None

    def leave(self, tensor: torch.Tensor, place: Place = NOWHERE) -> Kept:
        """Let a tensor go, once all but the last one that left are gone; its memory is free when it is gone too."""
        flat = tensor.detach().reshape(-1)
        spare = self._free[flat.numel(), flat.dtype]
        buffer = spare.pop() if spare else self.room.zeros(flat.numel(), flat.dtype)
        if len(self._going) > AHEAD:
            self._wait_for_first()
        run = partial(self._copy_down, buffer, flat)
        copy = self.copies.start(place, "input_down", GOING[self.room.tier], DOWN, flat.nbytes, run)
        self._going.append((copy, flat if self.device.type == "cuda" else None))
        self._last = Kept(self, buffer, tensor.shape, place, self._last)
        return self._last

    def _copy_down(self, buffer: torch.Tensor, flat: torch.Tensor) -> Work:
        if self.device.type != "cuda":
            buffer.copy_(flat)
            return Done()
        self._down = self._down or torch.cuda.Stream(self.device)
        self._down.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(self._down):
            buffer.copy_(flat, non_blocking=True)
        return Passed(self._down.record_event())

    def all_gone(self) -> None:
        """Let the device's work wait until everything that left is gone."""
        while self._going:
            self._wait_for_first()

    def _wait_for_first(self) -> None:
        copy, _ = self._going.popleft()
        copy.wait()

    def begin(self) -> None:
        """Let come back what left last: the backward pass is about to begin."""
        if self._last is not None:
            self._last.come()

    def copy_back(self, kept: Kept) -> tuple[Copy, torch.Tensor]:
        """Bring a tensor's numbers back to the device."""
        found = torch.empty(kept.buffer.numel(), dtype=kept.buffer.dtype, device=self.device)
        run = partial(self._copy_up, found, kept.buffer)
        kind = COMING[self.room.tier]
        copy = self.copies.start(kept.place, "input_up", kind, UP, found.nbytes, run, phase="recompute")
        return copy, found.view(kept.shape)

    def _copy_up(self, found: torch.Tensor, buffer: torch.Tensor) -> Work:
        if self.device.type != "cuda":
            found.copy_(buffer)
            return Done()
        self._up = self._up or torch.cuda.Stream(self.device)
        if self._down is not None:
            self._up.wait_stream(self._down)  # it may not have gone yet
        self._up.wait_stream(torch.cuda.current_stream(self.device))  # whose memory this was
        with torch.cuda.stream(self._up):
            found.copy_(buffer, non_blocking=True)
        return Passed(self._up.record_event())

    def arrived(self, kept: Kept) -> None:
        """Take back the buffer of what has come."""
        self._free[kept.buffer.numel(), kept.buffer.dtype].append(kept.buffer)
        if self._last is kept:
            self._last = kept.before


def activations_of(job: Job, device: torch.device, copies: Copies) -> ActivationTier | None:
    """Return where the inputs of recomputed blocks lie; None: on the device."""
    offload = offload_of(job)
    if offload is None or offload.activations is None or not job.recompute:
        return None
    return ActivationTier(Room.of(offload, offload.activations, device), device, copies)
