"""What aten kernels are in the twin's words: matrix products, attention, and what is bounded by memory.

* A convolution is the product of its unfolded input and its weight, one for each group; of one channel for each
  group it is bounded by memory.
* A layer of an LSTM that is one kernel is what it would be step by step, for a step waits for the one before.
* What looks rows up in a table moves these rows, not the table.
* Whatever else multiplies is said to be unknown (`unknown`): its flops are not in the schedule.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

import torch
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import flop_registry

from twin.schedule.kernels import Attention, Gemm, Kernel, Memory, Mode

Given = Mapping[str, Any]
"""Arguments by the names that the op's schema has for them."""

PRODUCTS = {
    "mm": (0, 1),
    "_int_mm": (0, 1),
    "_scaled_mm": (0, 1),
    "addmm": (1, 2),
    "bmm": (0, 1),
    "baddbmm": (1, 2),
    "addbmm": (1, 2),
}
"""Which arguments are multiplied."""
VECTORS = {"mv": 0, "addmv": 1, "dot": 0, "vdot": 0}
"""Products with a vector, which read each number once, and the first argument that is multiplied."""
LOOKED_UP = ("embedding", "_embedding_bag", "_embedding_bag_forward_only", "index", "index_select", "gather", "take")
"""What reads rows of its first argument: those that it names."""
WRITTEN_TO = ("index_put_", "_index_put_impl_", "index_add_", "index_copy_", "scatter_", "scatter_add_")
"""What writes rows of its first argument."""
MULTIPLIES = re.compile(
    r"mm$|matmul|linear$|linear_backward$|conv(?!ert)|attention|rnn|lstm_layer|_?cdist|^_fft|cholesky|triangular|ormqr|"
    r"^_?linalg_(?!vector_norm|check_errors)"
)
"""Names of what has flops beyond those of element-wise work."""


def arguments(func: Any, args: Sequence[Any], kwargs: Given) -> dict[str, Any]:
    """Name the arguments of an op, with the values of those that were left out."""
    expected = func._schema.arguments
    named = {a.name: a.default_value for a in expected}
    return named | {a.name: value for a, value in zip(expected, args, strict=False)} | dict(kwargs)


def name_of(func: Any) -> str:
    """Name an op without its namespace."""
    name: str = func._schema.name.rpartition("::")[2]
    return name


def unknown(func: Any) -> bool:
    """Tell whether an op that `kernels_of` does not know has flops, or may have: it is not PyTorch's."""
    multiplies = func._overloadpacket in flop_registry or MULTIPLIES.search(name_of(func))
    return func.namespace != "aten" or bool(multiplies)


def kernels_of(func: Any, args: Sequence[Any], kwargs: Given, result: Any) -> list[Kernel]:
    """Describe what has flops; empty for everything else."""
    name, found = name_of(func), list[Kernel]()
    backward = name.endswith("_backward")
    if name in PRODUCTS:
        a, b = (args[index] for index in PRODUCTS[name])
        *batch, m, k = a.shape
        e, wide = a.element_size(), result.element_size()
        found = [Gemm(m, b.shape[-1], k, mode_of(a, b), prod(batch), e, result_bytes=None if wide == e else wide)]
    elif name in VECTORS:
        found = [Memory(moved_bytes((args, kwargs), result), 1, 2.0 * args[VECTORS[name]].numel())]
    elif name.startswith("_scaled_dot_product"):
        found = [_attention(arguments(func, args, kwargs), backward=backward)]
    elif name in ("convolution", "convolution_backward"):
        given = arguments(func, args, kwargs)
        found = _Convolution.of(given, result).kernels(given, result)
    elif name in ("mkldnn_rnn_layer", "mkldnn_rnn_layer_backward"):
        found = _recurrent(args, backward=backward)
    elif name == "_trilinear":
        found = [_trilinear(arguments(func, args, kwargs))]
    return found


def _attention(given: Given, *, backward: bool) -> Attention:
    query, key, value = given["query"], given["key"], given["value"]
    sequences, heads, length, size = query.shape
    keys, kv_heads, masks = key.shape[2], key.shape[1], (given.get("attn_mask"), given.get("attn_bias"))
    return Attention(
        sequences,
        length,
        heads,
        (size + value.shape[3] + 1) // 2,  # two products of each: those of scores and those of values
        backward=backward,
        element_bytes=query.element_size(),
        kv_heads=None if kv_heads == heads else kv_heads,
        mask=any(mask is not None for mask in masks),
        causal=bool(given["is_causal"]) and keys == length,
        key_length=None if keys == length else keys,
    )


@dataclass(frozen=True)
class _Convolution:
    """W[rows, columns] of each group meets an unfolded input (positions, columns); transposed, it is the way back."""

    positions: int
    rows: int
    columns: int
    groups: int
    element_bytes: int

    @classmethod
    def of(cls, given: Given, result: Any) -> _Convolution:
        weight, groups = given["weight"], given["groups"]
        output = given.get("grad_output", result)
        narrow = given["input"] if given["transposed"] else output  # where a number is the sum of a window
        positions = narrow.shape[0] * prod(narrow.shape[2:])
        return cls(positions, weight.shape[0] // groups, prod(weight.shape[1:]), groups, weight.element_size())

    def kernels(self, given: Given, result: Any) -> list[Kernel]:
        to_input, to_weight, to_bias = given.get("output_mask", (False, False, False))
        gradient: Any = given.get("grad_output")
        found = []
        if gradient is None or to_input:
            unfolds = (gradient is None) != given["transposed"]
            found.append(self._unfolded() if unfolds else self._folded())
        if to_weight:
            found.append(Gemm(self.rows, self.columns, self.positions, "NT", self.groups, self.element_bytes))
        if found and self.rows == 1 and self.groups > 1:
            moved = moved_bytes((given["input"], given["weight"], gradient), result)
            one: list[Kernel] = [Memory(moved, len(found), sum(product.flops for product in found))]
        else:
            one = [*found]
        return [*one, Memory(float(gradient.nbytes))] if to_bias else one

    def _unfolded(self) -> Gemm:
        return Gemm(self.positions, self.rows, self.columns, "TN", self.groups, self.element_bytes)

    def _folded(self) -> Gemm:
        return Gemm(self.positions, self.columns, self.rows, "NN", self.groups, self.element_bytes)


def _recurrent(args: Sequence[Any], *, backward: bool) -> list[Kernel]:
    """List products of a layer: inputs of all steps at once, then states step by step."""
    inputs, _, recurrent = args[:3]
    (steps, sequences, features), (gates, hidden), e = inputs.shape, recurrent.shape, inputs.element_size()
    if not backward:
        states = Gemm(sequences, gates, hidden, "TN", 1, e)
        return [Gemm(steps * sequences, gates, features, "TN", 1, e), *[states] * steps]
    states = Gemm(sequences, hidden, gates, "NN", 1, e)
    of_input = Gemm(steps * sequences, features, gates, "NN", 1, e)
    of_weights = (Gemm(gates, size, steps * sequences, "NT", 1, e) for size in (features, hidden))
    return [*[states] * steps, of_input, *of_weights]


def _trilinear(given: Given) -> Gemm:
    """Describe the sum of the products of three tensors, which are repeated along some dimensions."""
    shapes = []
    for tensor in ("i1", "i2", "i3"):
        shape = list(given[tensor].shape)
        for dim in sorted(given[tensor.replace("i", "expand")]):
            shape.insert(dim, 1)
        shapes.append(shape)
    full = [max(sizes) for sizes in zip(*shapes, strict=True)]
    first, *kept = [size for dim, size in enumerate(full) if dim not in given["sumdim"]]
    summed = prod(full[dim] for dim in given["sumdim"])
    return Gemm(first, prod(kept), summed, "TN", 1, given["i1"].element_size())


def mode_of(a: torch.Tensor, b: torch.Tensor) -> Mode:
    """Say how the operands of a product, (…, m, k) and (…, k, n), are stored.

    >>> x, weight, gradient = torch.ones(2, 3), torch.ones(4, 3), torch.ones(2, 4)
    >>> mode_of(x, weight.t()), mode_of(gradient, weight), mode_of(gradient.t(), x)
    ('TN', 'NN', 'NT')
    """
    if _by_columns(a):
        return "NT"  # with the other one by columns too, which no mode is for, it is this one that is dear to read
    return "TN" if _by_columns(b) else "NN"


def _by_columns(matrix: torch.Tensor) -> bool:
    return matrix.stride(-2) == 1 and matrix.stride(-1) != 1


def bytes_of(func: Any, args: Sequence[Any], kwargs: Given, result: Any) -> float:
    """Bytes that a kernel without flops reads and writes: of tables, the rows that it is about."""
    name = name_of(func)
    if name in LOOKED_UP:
        _, *others = args
        written = moved_bytes((), result)
        rows = args[1].numel() * args[0][:1].nbytes if name.startswith("_embedding_bag") else written  # a bag is a sum
        return moved_bytes((others, kwargs), ()) + rows + written
    if name in WRITTEN_TO:
        given = [t for t in tree_leaves((args[1:], kwargs)) if isinstance(t, torch.Tensor)]
        rows = sum(t.nbytes for t in given if t.dtype == args[0].dtype)
        return moved_bytes(given, ()) + 2.0 * rows  # they are read, and written
    return moved_bytes((args, kwargs), result)


def moved_bytes(read: Any, written: Any) -> float:
    """Bytes of all tensors that go in, and of those that come out."""
    tensors = [*tree_leaves(read), *tree_leaves(written)]
    return float(sum(t.nbytes for t in tensors if isinstance(t, torch.Tensor)))
