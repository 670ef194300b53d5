"""Memory beyond the device: the host's, or a file on its drives, as flat tensors of the CPU.

Tensors in the host's memory are pinned where a GPU copies from and to them. A file has all its room before it is used,
so that a full disk is said at once and not by a signal in the middle of a step; it has no name any more once it is
open, so that nothing is left of it however the process ends.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path

import torch
from torch._subclasses.fake_tensor import FakeTensor

from runtime.step.host_memory import available_bytes
from twin.description.job import Job
from twin.description.offload import Offload, Tier
from twin.description.problems import DescriptionError, fail
from twin.description.units import format_memory
from twin.strategies import strategy_of

KEY = "offload"


def offload_of(job: Job) -> Offload | None:
    """Return a job's `offload:`, which not every strategy has."""
    found: Offload | None = getattr(job, "offload", None)
    return found


@dataclass(frozen=True)
class Room:
    """Where a rank keeps what its device does not."""

    tier: Tier
    device: torch.device
    """Whose copies come and go."""
    directory: Path | None = None
    """Of files, on drives of the host."""

    @classmethod
    def of(cls, offload: Offload, tier: Tier, device: torch.device) -> Room:
        """Read it from a job; raises DescriptionError where a directory is wanted and none is named."""
        if tier == "disk" and offload.directory is None:
            raise fail(f"{KEY}.directory", "is missing: name a directory on the drives that `disk` means")
        return cls(tier, device, None if offload.directory is None else Path(offload.directory))

    def zeros(self, elements: int, kind: torch.dtype) -> torch.Tensor:
        """Return a flat tensor of zeros there; raises DescriptionError if there is no room."""
        if self.device.type == "meta":
            return torch.zeros(elements, dtype=kind, device="meta")
        if isinstance(torch.empty(0), FakeTensor):  # a step is recorded: nothing is kept, in memory or in a file
            return torch.zeros(elements, dtype=kind)
        size = elements * torch.empty((), dtype=kind).element_size()
        if self.tier == "host":
            return self._in_memory(elements, kind, size)
        assert self.directory is not None
        return _in_file(self.directory, elements, kind, size)

    def _in_memory(self, elements: int, kind: torch.dtype, size: int) -> torch.Tensor:
        pinned, free = self.device.type == "cuda", available_bytes()
        if pinned:  # PyTorch takes pinned memory in powers of two
            size = 1 << max(size - 1, 0).bit_length()
        if free is not None and size > free:
            remedy = (
                f"needs {format_memory(size)} of the host's memory, of which {format_memory(free)} are free; use disk"
            )
            raise fail(KEY, remedy, "host")
        try:
            return torch.zeros(elements, dtype=kind, pin_memory=pinned)
        except RuntimeError as error:
            remedy = (
                f"{format_memory(size)} of the host's memory could not be had ({str(error).splitlines()[0]}); use disk"
            )
            raise fail(KEY, remedy, "host") from None


def check_room(job: Job, local_ranks: int) -> None:
    """Refuse a job whose ranks on this host want more than there is, or files where none can be made.

    Raises DescriptionError. What another program takes later is noticed when it is asked for.
    """
    offload = offload_of(job)
    if offload is None:
        return
    strategy = strategy_of(job)
    wanted = strategy.tiers(job, strategy.roles(job)[0])
    lying = int(sum(wanted.get("host", {}).values())) * local_ranks
    # checkpoints are written from a copy of the states, wherever those lie; ranks that hold the same ones share that
    states = sum(of.get("optimizer", 0.0) for of in wanted.values())
    copied = int(states / strategy.state_copies(job)) * local_ranks
    free = available_bytes()
    if free is not None and lying + copied > free:
        remedy = (
            f"{local_ranks} ranks want {format_memory(lying + copied)} of this host's memory ({format_memory(copied)} "
            f"of it to write checkpoints from), of which {format_memory(free)} are free; use "
            f"{'disk, or ' if lying >= copied else ''}fewer ranks on a host"
        )
        raise fail(KEY, remedy)
    if offload.directory is None:
        return
    directory, on_disk = Path(offload.directory), int(sum(wanted.get("disk", {}).values())) * local_ranks
    try:
        directory.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=directory):
            room = shutil.disk_usage(directory).free
    except OSError as error:
        raise _refused(directory, on_disk, error) from None
    if on_disk > room:
        remedy = f"{local_ranks} ranks want {format_memory(on_disk)} there, of which {format_memory(room)} are free"
        raise fail(f"{KEY}.directory", f"{remedy}; name another directory, or use host", offload.directory)


def _in_file(directory: Path, elements: int, kind: torch.dtype, size: int) -> torch.Tensor:
    """Map a file of zeros that has no name."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        number, name = tempfile.mkstemp(prefix="fourfold-", suffix=".tier", dir=directory)
    except OSError as error:
        raise _refused(directory, size, error) from None
    try:
        os.posix_fallocate(number, 0, max(size, 1))
        return torch.from_file(name, shared=True, size=elements, dtype=kind)
    except OSError as error:
        raise _refused(directory, size, error) from None
    finally:
        os.close(number)
        Path(name).unlink()


def _refused(directory: Path, size: int, error: OSError) -> DescriptionError:
    remedy = (
        f"no file of {format_memory(size)} could be made there: {error.strerror}; name another directory, or use host"
    )
    return fail(f"{KEY}.directory", remedy, str(directory))
