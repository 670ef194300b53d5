"""Two schedules held against each other, op by op.

Equal means: the same ops in the same order, each with the same name, phase, layer, and what its cost depends
on: kernel and its sizes, or collective, stream and bytes. How many device kernels a memory-bound
op consists of is detail and not compared.
"""

from __future__ import annotations

from collections import Counter
from difflib import unified_diff

from twin.schedule.kernels import Attention, Gemm, Kernel
from twin.schedule.ops import Compute, Schedule, Simple, Start

MAX_COMPARED = 2000
"""Ops of each side, from the first difference on, that are laid side by side."""
MAX_LINES = 200
CONTEXT = 3


def difference(recorded: Schedule, generated: Schedule) -> str:
    """Return a unified diff with counts, or nothing if the schedules are equal."""
    ours = [_line(name, op) for name, op in recorded.named()]
    theirs = [_line(name, op) for name, op in generated.named()]
    if ours == theirs:
        return ""
    first = next((i for i, (a, b) in enumerate(zip(ours, theirs, strict=False)) if a != b), min(len(ours), len(theirs)))
    begin = max(0, first - CONTEXT)
    window = slice(begin, begin + MAX_COMPARED)
    lines = list(unified_diff(theirs[window], ours[window], "generated", "recorded", "", "", CONTEXT, lineterm=""))
    if len(lines) > MAX_LINES:
        lines = [*lines[:MAX_LINES], f"… {len(lines) - MAX_LINES} more lines"]
    return "\n".join([_counts(ours, theirs, first), *lines])


def _counts(ours: list[str], theirs: list[str], first: int) -> str:
    more, less = Counter(ours) - Counter(theirs), Counter(theirs) - Counter(ours)
    what = (
        f"{more.total()} of {len(ours):,} ops are recorded only, {less.total()} of {len(theirs):,} generated only"
        if more or less
        else f"the same {len(ours):,} ops in another order"
    )
    return f"{what}; the first difference is at op {first} (counted from 0)"


def _line(name: str, op: Simple) -> str:
    where = op.phase if op.layer is None else f"{op.phase}, layer {op.layer}"
    match op:
        case Compute():
            return f"compute {name} [{where}] {_kernel(op.kernel)}"
        case Start():
            return f"start   {name} [{where}] {op.kind} on {op.communicator}, {_number(op.bytes)} bytes"
    return f"wait    {name} [{where}]"


def _kernel(kernel: Kernel) -> str:
    match kernel:
        case Gemm():
            batch = "" if kernel.batch == 1 else f"{kernel.batch} times "
            added = ", added to what is there" if kernel.adds else ""
            wide = "" if kernel.result_bytes is None else f" to {kernel.result_bytes} bytes"
            sizes = f"{batch}{kernel.m}×{kernel.n}×{kernel.k} of {kernel.element_bytes} bytes"
            promoted = ", sums promoted" if kernel.promotes else ""
            return f"gemm {kernel.mode} {sizes}{wide}{added}{promoted}"
        case Attention():
            return (
                f"{kernel.form} attention{' backward' if kernel.backward else ''}"
                f"{'' if kernel.causal else ' of all tokens'}"
                f"{' with dropout' if kernel.dropout else ''}{' with a mask' if kernel.mask else ''}, "
                f"{kernel.sequences} sequences of {kernel.sequence_length}, "
                f"{'' if kernel.key_length is None else f'{kernel.key_length} keys, '}"
                f"{kernel.heads} heads of {kernel.head_size}, "
                f"{'' if kernel.kv_heads is None else f'{kernel.kv_heads} of keys, '}"
                f"{kernel.element_bytes} bytes"
            )
    flops = f", {_number(kernel.flops)} flops" if kernel.flops else ""
    work = f", {kernel.work}" if kernel.work else ""
    return f"memory {_number(kernel.bytes)} bytes{flops}{work}"


def _number(value: float) -> str:
    return f"{value:,.0f}" if value == int(value) else repr(value)
