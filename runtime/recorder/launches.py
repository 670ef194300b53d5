"""Which aten kernels run: a dispatch mode that counts what is launched.

Views launch nothing, and neither does making a tensor without filling it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode

WITHOUT_WORK = ("empty", "new_empty", "detach", "lift_fresh", "_unsafe_view", "alias")
Watch = Callable[[torch._ops.OpOverload, Sequence[Any], Mapping[str, Any], Any], None]


class Launches(TorchDispatchMode):
    """Counts launches; `watch`, if given, sees each with its arguments and result, and ops that are not aten's."""

    def __init__(self, watch: Watch | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch has no hints here
        self.count = 0
        self.watch = watch

    def __torch_dispatch__(
        self, func: Any, types: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        """Run an op, and count it if it launches a kernel."""
        del types
        result = func(*args, **(kwargs or {}))
        if launches(func):
            self.count += 1
        if self.watch is not None and (launches(func) or foreign(func)):
            self.watch(func, args, kwargs or {}, result)
        return result


@cache
def launches(func: torch._ops.OpOverload) -> bool:
    """Tell whether an op does work on the device."""
    name = func._schema.name.rpartition("::")[2]
    if name.startswith(WITHOUT_WORK) or func.namespace not in {"aten", "c10d"}:
        return False
    returned = [r.alias_info for r in func._schema.returns]
    # what is returned is part of an argument, and nothing was written
    return not any(alias is not None and not alias.is_write for alias in returned)


@cache
def foreign(func: torch._ops.OpOverload) -> bool:
    """Tell whether an op is another library's: how many kernels it launches is not known."""
    return func.namespace not in {"aten", "c10d", "prim", "prims", "profiler"}
