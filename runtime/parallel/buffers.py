"""Memory for what is on its way between ranks, used again from step to step.

A device's allocator keeps freed memory by size. The C library's does not, and where tensors of megabytes come and go
beside others that PyTorch wants aligned its heap falls to pieces: with glibc 2.36 a rank of a small GPT over z = 4 grew
from 140 MB to 950 MB in 120 steps, of which 120 MB were in use, with a page fault for every 4 KiB. So on CPUs the
largest of them (gathered weights, gradients in flight, parts of an exchange) are taken from here.

* Nobody gives a buffer back: it is free when its storage has no owner but the pool. What gloo still sends owns it.
  Its threads let go a little after who waited goes on, so more memory is taken only after a moment.
* A buffer serves requests of its own size and type alone; as many stay as were ever in use at once. Of the sizes last
  asked for: generated texts, which grow, ask for ever new ones.
"""

from __future__ import annotations

import os
import time
import weakref
from dataclasses import dataclass, field

import torch

MIN_BYTES = 64 * 2**10
"""Smaller ones come from the C library: it serves them without asking the system."""
MOMENT_SECONDS = 5e-3
"""More than the scheduler of Linux keeps a thread from a core that others share."""
MAX_SIZES = 32
"""Of which buffers are kept: a training step asks for some ten."""


@dataclass
class _Buffer:
    flat: torch.Tensor
    storage: torch.UntypedStorage
    owners: int
    """Of the storage, while nobody uses it."""
    given: weakref.ref[torch.Tensor] | None = None
    """Who has it now."""

    @property
    def free(self) -> bool:
        """Tell whether nobody uses it."""
        return torch._C._storage_Use_Count(self.storage._cdata) == self.owners


@dataclass
class Buffers:
    """The buffers of one rank."""

    kept: bool = True
    """Keep them; else PyTorch's allocator does, or there is no memory at all (a recorder's tensors)."""
    _of: dict[tuple[int, torch.dtype], list[_Buffer]] = field(default_factory=dict)

    def take(self, elements: int, like: torch.Tensor, dtype: torch.dtype | None = None) -> torch.Tensor:
        """Return flat memory (elements,), of any content, on the device of `like` and of its type, or of another."""
        dtype = dtype or like.dtype
        if not self.kept or elements * dtype.itemsize < MIN_BYTES:
            return like.new_empty(elements, dtype=dtype)
        key = elements, dtype
        known = self._of[key] = self._of.pop(key, [])  # the last one now
        if len(self._of) > MAX_SIZES:
            del self._of[next(iter(self._of))]
        found = _free(known)
        if found is None:
            flat = like.new_empty(elements, dtype=dtype)
            storage = flat.untyped_storage()
            found = _Buffer(flat, storage, torch._C._storage_Use_Count(storage._cdata))
            known.append(found)
        given = found.flat.view(elements)
        found.given = weakref.ref(given)
        return given

    @property
    def nbytes(self) -> int:
        """Bytes of all buffers, in use or not."""
        return sum(buffer.flat.nbytes for buffers in self._of.values() for buffer in buffers)


def _free(known: list[_Buffer]) -> _Buffer | None:
    """Return a buffer that is free, or soon will be; None if all of them are in use."""
    last = time.monotonic() + MOMENT_SECONDS
    while True:
        for buffer in known:
            if buffer.free:
                return buffer
        given_back = any(buffer.given is None or buffer.given() is None for buffer in known)
        if not given_back or time.monotonic() > last:
            return None
        os.sched_yield()
