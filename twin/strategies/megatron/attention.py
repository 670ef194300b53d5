"""Attention over a sequence that context ranks share.

The sequence is cut into 2·c chunks, of which rank i has chunks i and 2·c − 1 − i, so that each has as much of the
causal triangle as every other. With `ring` each of c steps is then as much work as causal attention over s/c
tokens: one over the own chunks, the others over half of what has come.
"""

from __future__ import annotations

from dataclasses import replace

from twin.schedule.emit import Emitter
from twin.schedule.kernels import Attention, Memory
from twin.strategies import work
from twin.strategies.megatron.balanced import balanced
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.local import Local

CONTEXT, INNER, OUTER = "context", "context_inner", "context_outer"
WIDE = 4
"""Bytes of an element of sums."""


def attention(emit: Emitter, job: MegatronJob, local: Local, *, backward: bool) -> None:
    """Write attention of one block, with what moves between context ranks."""
    kernel = work.attention(
        job,
        sequences=local.sequences,
        length=local.length,
        heads=local.heads,
        kv_heads=local.grouped,
        backward=backward,
    )
    if local.grid.context == 1:
        if kernel.dropout and not backward:
            mask = work.dropout_mask(job, kernel.sequences * kernel.heads * kernel.sequence_length, local.length)
            emit.compute("scores_mask", mask)
        emit.compute("attention", kernel)
        return
    if job.attends_to_parts:
        kernel = replace(kernel, form=job.attention_of_parts)
    if job.context_exchange == "all_gather":
        _gathered(emit, local, kernel)
    elif job.context_exchange == "balanced":
        balanced(emit, CONTEXT, local.grid.context, _keys_and_values(local), kernel)
    elif job.traders == 1:
        _ring(emit, CONTEXT, local.grid.context, _keys_and_values(local), kernel)
    else:
        _traded(emit, job, local, kernel)


def _keys_and_values(local: Local) -> float:
    """Bytes of keys and values of a context rank's tokens."""
    return 2.0 * local.tokens * local.kv_heads * local.job.model.head_size * local.job.element_bytes


def _ring(emit: Emitter, communicator: str, ranks: int, keys_and_values: float, kernel: Attention) -> None:
    """Keys and values go round while those that are there are worked on; backward their gradients too."""
    queries, e = _elements(kernel), kernel.element_bytes
    if not kernel.backward:
        emit.compute("keys_and_values", Memory(2 * keys_and_values, work="copy"))
    for step in range(ranks):
        coming = home = ""
        if step < ranks - 1:
            coming = emit.start("shift", communicator, keys_and_values, f"ring{step}")
        if step and kernel.backward:
            home = emit.start("shift", communicator, keys_and_values, f"ring{step}_gradients")
        emit.compute(f"attention{step}", kernel)
        if home:
            emit.wait(home)
        if kernel.backward:
            emit.compute(f"sum{step}", Memory(sum_bytes(queries, keys_and_values / e, e), work="sum"))
        elif step:
            emit.compute(f"merge{step}", Memory(merge_bytes(queries, e, step, ranks - 1), work="merge"))
        if coming:
            emit.wait(coming)


def _elements(kernel: Attention) -> float:
    """Elements of a kernel's queries."""
    return float(kernel.sequences * kernel.sequence_length * kernel.heads * kernel.head_size)


def merge_bytes(elements: float, e: int, step: int, last: int) -> float:
    """Return what merging two outputs of attention moves, by 32 bits.

    The new one is brought to these, so is the first, and the whole back at the end.
    """
    casts = 1 + (step == 1) + (step == last) if e < WIDE else 0
    return elements * (3 * WIDE + casts * (WIDE + e))


def sum_bytes(queries: float, keys_and_values: float, e: int) -> float:
    """Return what adding gradients to sums moves: of queries by 32 bits, of keys and values as they are sent."""
    return queries * (2 * WIDE + e) + keys_and_values * 3 * e


def _gathered(emit: Emitter, local: Local, kernel: Attention) -> None:
    """All keys and values are gathered before, their gradients scattered after: nothing runs beside."""
    context = local.grid.context
    size = context * _keys_and_values(local)
    if not kernel.backward:
        emit.compute("keys_and_values", Memory(2 * size / context, work="copy"))
    emit.collective("all_gather", CONTEXT, size)
    emit.compute("order", Memory(2 * size, work="copy"))
    emit.compute("attention", replace(kernel, sequences=kernel.sequences * context))
    if kernel.backward:
        emit.compute("scatter_order", Memory(2 * size, work="copy"))
        emit.collective("reduce_scatter", CONTEXT, size)
    else:
        e = kernel.element_bytes
        emit.compute("merge", Memory(merge_bytes(_elements(kernel), e, 1, 1), work="merge"))


def _traded(emit: Emitter, job: MegatronJob, local: Local, kernel: Attention) -> None:
    """Heads for sequence, and back: attention of fewer heads over more of it (Ulysses).

    Hierarchical: among neighbouring ranks only; what they have together goes round in a ring of others.
    """
    traders, e = job.traders, job.element_bytes
    around = local.grid.context // traders
    communicator = CONTEXT if around == 1 else INNER
    queries = float(local.tokens * local.heads * job.model.head_size * e)
    copies = max(local.kv_heads, traders) / local.kv_heads
    keys = copies * _keys_and_values(local)
    _trade(emit, communicator, queries + (0.0 if kernel.backward else keys), "trade")
    heads = local.heads // traders
    kv_heads = max(1, local.kv_heads // traders)
    whole = replace(
        kernel, heads=heads, kv_heads=None if kv_heads == heads else kv_heads, sequence_length=local.length * traders
    )
    if around == 1:
        emit.compute("attention", whole)
    else:
        _ring(emit, OUTER, around, keys, whole)
    _trade(emit, communicator, queries + (keys if kernel.backward else 0.0), "trade_back")


def _trade(emit: Emitter, communicator: str, size: float, name: str) -> None:
    """An all-to-all, between copies that put side by side what a rank gets, and what has come where it belongs."""
    emit.compute(f"{name}_order", Memory(2 * size, work="copy"))
    emit.collective("all_to_all", communicator, size, name)
    emit.compute(f"{name}_placed", Memory(2 * size, work="copy"))
