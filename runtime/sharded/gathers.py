"""FSDP2's all-gathers by the named collectives: what it calls for a unit, and what it waits for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch.distributed.fsdp._fully_shard._fsdp_api import (
    AllGather,  # `set_custom_all_gather` takes it; exported nowhere
)
from torch.utils._python_dispatch import TorchDispatchMode

from runtime.parallel.collectives import Handle
from runtime.parallel.ops import Place
from runtime.sharded.context import ShardedContext
from twin.schedule.kernels import Memory
from twin.schedule.ops import Phase


class Gather(AllGather):
    """The all-gathers of one unit."""

    def __init__(self, context: ShardedContext, place: Place, copies: Copies, apart: Place | None = None) -> None:
        self.context, self.copies = context, copies
        self._beside, self._apart = place.under("weights"), (apart or place).under("weights")
        self.place = self._beside
        """Where the gather under way stands: in a pass, or apart from all."""

    def allocate(self, size: Sequence[int | torch.SymInt], *, dtype: torch.dtype, device: torch.device) -> torch.Tensor:
        """Make memory for the whole unit; FSDP2 copies this rank's shards into their place in it."""
        return torch.empty(*size, dtype=dtype, device=device)

    def __call__(
        self, output_tensor: torch.Tensor, input_tensor: torch.Tensor, group: dist.ProcessGroup, async_op: bool = False
    ) -> dist.Work:
        """Start gathering; whether asynchronously is not asked, since FSDP2 waits for whatever is returned."""
        del group, async_op
        context = self.context
        self.place = self._apart if context.ops.micro is None else self._beside
        handle = context.collectives.all_gather(
            self.place, context.sharing.gather, input_tensor, into=output_tensor, phase=context.phase
        )
        return Arriving(handle, self)

    def arrived(self) -> None:
        """Take note that the next copy out of what was gathered is this unit's."""
        self.copies.place, self.copies.phase = self.place, self.context.phase


class Arriving(dist.Work):
    """A gather that is under way, as FSDP2 wants to have it."""

    def __init__(self, handle: Handle, gather: Gather) -> None:
        super().__init__()
        self._handle, self._gather = handle, gather

    def wait(self, timeout: timedelta | None = None) -> bool:
        """Wait for it."""
        del timeout
        self._handle.wait()
        self._gather.arrived()
        return True


class Copies(TorchDispatchMode):
    """Gives names to FSDP2's own copies, while somebody listens: out of what was gathered, into what is reduced."""

    def __init__(self, context: ShardedContext) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no hints here
        self.context = context
        self.place = self.bucket = Place("")
        self.phase = context.phase
        self.packing: Phase = "bwd"
        """To which phase what is packed belongs."""
        self._named: Mapping[Any, Callable[..., Any]] = {
            torch.ops.fsdp.split_with_sizes_copy.default: self._copy_out,
            torch.ops.fsdp.chunk_cat.default: self._pack,
        }

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an op, under its name if it has one."""
        del types
        named = self._named.get(func)
        if named is None:
            return func(*args, **(kwargs or {}))
        return named(lambda: func(*args, **(kwargs or {})), args, kwargs or {})

    def _copy_out(self, run: Callable[[], Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        del kwargs
        moved = 2.0 * args[0].nbytes
        copied = Memory(moved, work="copy")
        return self.context.ops.compute(self.place, "copy_out", run, lambda: copied, phase=self.phase)

    def _pack(self, run: Callable[[], Any], args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
        packed = Memory(float(sum(part.nbytes for part in args[0]) + kwargs["out"].nbytes), work="accumulate")
        return self.context.ops.compute(self.bucket, "pack", run, lambda: packed, phase=self.packing)
