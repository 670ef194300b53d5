"""Bytes of tensors that are alive, and the most there were: every storage that an op makes, until it is freed."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves


class Live(TorchDispatchMode):
    """Counts storages as ops make and free them; once each, however many tensors look at one.

    What is resized by no op, as FSDP2 does, is not followed.
    """

    def __init__(self) -> None:
        super().__init__()
        self.sizes: dict[int, int] = {}
        self.now = self.peak = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        for leaf in tree_leaves(found):
            if isinstance(leaf, torch.Tensor):
                self._see(leaf.untyped_storage())
        return found

    def _see(self, storage: torch.UntypedStorage) -> None:
        key = storage._cdata
        if key not in self.sizes:
            self.sizes[key] = storage.nbytes()
            weakref.finalize(storage, self._gone, key)
            self.now += self.sizes[key]
            self.peak = max(self.peak, self.now)

    def _gone(self, key: int) -> None:
        self.now -= self.sizes.pop(key)
