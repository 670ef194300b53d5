"""What the kernels of a training step read and write, counted one by one.

Moved means, of each aten kernel that runs:

* every element of every tensor that goes in is read once, and every element that comes out is written once;
* what is broadcast counts what it holds: dims without a stride once;
* what works in place reads and writes; what only fills or copies into a tensor does not read that tensor;
* what looks up or adds to some rows of a table moves those rows, not the table;
* views, allocations and changes of metadata move nothing.

So a kernel with a temporary of its own counts as a better one would. A kernel written once in aten and run as two on
a GPU counts its tensors once, as the measured rates do, and two kernels.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
from torch.utils._pytree import tree_leaves

from runtime.parallel.ops import Op
from runtime.recorder.launches import Launches
from twin.schedule.kernels import Kernel

T = TypeVar("T")
FILL = {"zero_", "fill_", "copy_", "normal_", "uniform_", "bernoulli_"}
"""What is written is not read."""
SHAPED = {"new_zeros", "zeros_like", "ones_like", "full_like", "new_ones", "new_full"}
"""What is given says the shape alone."""
TOUCH = {"embedding", "gather", "index", "index_select", "scatter_add_", "index_add_", "index_put_"}
"""The first argument is a table, of which only as many elements are touched as go in or come out beside it."""
TWO = {"native_layer_norm_backward", "_fused_rms_norm_backward"}
"""On a GPU the input's gradient and the vectors' are kernels of their own."""


def held(tensor: torch.Tensor) -> int:
    """Bytes that a tensor's elements take, those that are broadcast once."""
    elements = 1
    for size, stride in zip(tensor.shape, tensor.stride(), strict=True):
        elements *= size if stride or not size else 1
    return elements * tensor.element_size()


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    return (leaf for leaf in tree_leaves(value) if isinstance(leaf, torch.Tensor))


def _place(tensor: torch.Tensor) -> tuple[Any, ...]:
    return tensor.untyped_storage()._cdata, tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def moved(func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> int:
    """Bytes that one aten kernel reads and writes."""
    name = func._schema.name.rpartition("::")[2]
    given = [*zip(func._schema.arguments, args, strict=False)]
    given += [(argument, kwargs[argument.name]) for argument in func._schema.arguments if argument.name in kwargs]
    read: dict[Any, torch.Tensor] = {}
    written: dict[Any, torch.Tensor] = {}
    table = given[0][1] if name in TOUCH else None
    for argument, value in given:
        writes = argument.alias_info is not None and argument.alias_info.is_write
        if name == "_fused_adamw_" and argument.name == "grads":
            writes = False  # only where it divides by the scale of a loss, which is never here
        for tensor in _tensors(value):
            if tensor is table:
                continue
            if writes:
                written[_place(tensor)] = tensor
            if name not in SHAPED and not (writes and (argument.kwarg_only or name in FILL)):
                read[_place(tensor)] = tensor
    in_place = {_place(t) for t in written.values()}
    if table is not None and _place(table) in {_place(t) for t in _tensors(result)}:
        # rows of the table are read and written, as many as there are values
        return sum(map(held, read.values())) + 2 * max(t.numel() for t in read.values()) * table.element_size()
    fresh = {_place(t): t for t in _tensors(result) if _place(t) not in in_place}
    out = sum(map(held, fresh.values()))
    touched = out if table is not None else 0
    return touched + out + sum(map(held, read.values())) + sum(map(held, written.values()))


@dataclass(frozen=True)
class Counted:
    """A named op as it was described and as it was."""

    op: Op
    bytes: int
    names: tuple[str, ...]
    """Of the aten kernels that ran."""

    @property
    def kernels(self) -> int:
        """Kernels on a GPU."""
        return len(self.names) + sum(name in TWO for name in self.names)

    @property
    def kernel(self) -> Kernel:
        """What it was described as."""
        assert self.op.kernel is not None
        return self.op.kernel


@dataclass
class Counter:
    """A `runtime.parallel.ops.Listener` that counts what each op moves."""

    found: list[Counted] = field(default_factory=list)
    unnamed: int = 0
    """Bytes moved by what has no name; collectives apart."""
    in_autograd: bool = False
    _running: list[tuple[str, int]] | None = None

    def __post_init__(self) -> None:
        self.launches = Launches(self._saw)

    def _saw(self, func: Any, args: Sequence[Any], kwargs: Mapping[str, Any], result: Any) -> None:
        if func.namespace == "c10d":
            return
        count = moved(func, args, kwargs, result)
        if self._running is None:
            self.unnamed += count
        else:
            self._running.append((func._schema.name.rpartition("::")[2], count))

    def compute(self, op: Op, run: Callable[[], T]) -> T:
        """Do device work and count it."""
        self._running = []
        result = run()
        names, counts = [name for name, _ in self._running], [count for _, count in self._running]
        self.found.append(Counted(op, sum(counts), tuple(names)))
        self._running = None
        return result

    def start(self, _op: Op, run: Callable[[], T]) -> T:
        """Start a collective, whose copies are its own."""
        return self._apart(run)

    wait = start

    def _apart(self, run: Callable[[], T]) -> T:
        before, self._running = self._running, []
        try:
            return run()
        finally:
            self._running = before

    def as_one(self, function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        """Count a function as the one kernel that torch.compile is to make of it, and its gradient as another."""

        def run(*inputs: Any) -> torch.Tensor:
            if torch.is_grad_enabled() and any(tensor.requires_grad for tensor in _tensors(inputs)):
                result: torch.Tensor = _AsOne.apply(self, function, *inputs)
                return result
            return self.one(lambda: function(*inputs), inputs)

        return run

    def one(self, run: Callable[[], T], read: Any) -> T:
        """Count what is read and what comes out, and nothing between."""
        result = self._apart(run)
        tensors = {_place(tensor): tensor for tensor in (*_tensors(read), *_tensors(result))}
        if self._running is not None:
            self._running.append(("fused", sum(map(held, tensors.values()))))
        return result


class _AsOne(torch.autograd.Function):
    """A function, and its gradient, each counted as one kernel."""

    @staticmethod
    def forward(ctx: Any, counter: Counter, function: Callable[..., torch.Tensor], *inputs: Any) -> torch.Tensor:
        with torch.enable_grad():
            leaves = [
                one.detach().requires_grad_(one.requires_grad) if isinstance(one, torch.Tensor) else one
                for one in inputs
            ]
            output = counter.one(lambda: function(*leaves), leaves)
        ctx.counter, ctx.leaves, ctx.output = counter, leaves, output
        return output.detach()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        wanted = [leaf for leaf in _tensors(ctx.leaves) if leaf.requires_grad]
        found = iter(ctx.counter.one(lambda: torch.autograd.grad(ctx.output, wanted, gradient), (ctx.leaves, gradient)))
        return (None, None, *(next(found) if any(leaf is w for w in wanted) else None for leaf in ctx.leaves))
