"""Attention over a sequence that context ranks share.

The sequence is cut into 2·c chunks, of which rank i has chunks i and 2·c − 1 − i, so that each has as much of the
causal triangle as every other. With `ring` each of c steps is then as much work as causal attention over s/c
tokens: one over the own chunks, the others over half of what has come.
"""

from __future__ import annotations

from dataclasses import replace

from twin.schedule.emit import Emitter
from twin.schedule.kernels import Attention
from twin.strategies import work
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.local import Local

CONTEXT = "context"


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
    elif job.context_exchange == "ring":
        _ring(emit, local, kernel)
    elif job.context_exchange == "all_gather":
        _gathered(emit, local, kernel)
    else:
        _traded(emit, job, local, kernel)


def _keys_and_values(local: Local) -> float:
    """Bytes of keys and values of a context rank's tokens."""
    return 2.0 * local.tokens * local.kv_heads * local.job.model.head_size * local.job.element_bytes


def _ring(emit: Emitter, local: Local, kernel: Attention) -> None:
    """Keys and values go round while those that are there are worked on; backward their gradients too.

    c − 1 hops beside as many steps, then the last step: written as one all-gather, which is as many hops.
    """
    context = local.grid.context
    rounds = context * _keys_and_values(local) * (2 if kernel.backward else 1)
    name = emit.start("all_gather", CONTEXT, rounds, "ring")
    for step in range(context - 1):
        emit.compute(f"attention{step}", kernel)
    emit.wait(name)
    emit.compute(f"attention{context - 1}", kernel)


def _gathered(emit: Emitter, local: Local, kernel: Attention) -> None:
    """All keys and values are gathered before, their gradients scattered after: nothing runs beside."""
    context = local.grid.context
    size = context * _keys_and_values(local)
    emit.collective("all_gather", CONTEXT, size)
    emit.compute("attention", replace(kernel, sequences=kernel.sequences * context))
    if kernel.backward:
        emit.collective("reduce_scatter", CONTEXT, size)


def _traded(emit: Emitter, job: MegatronJob, local: Local, kernel: Attention) -> None:
    """Heads for sequence, and back: attention of fewer heads over all of it (Ulysses)."""
    context, e = local.grid.context, job.element_bytes
    queries = float(local.tokens * local.heads * job.model.head_size * e)
    keys = max(local.kv_heads, context) / local.kv_heads * _keys_and_values(local)
    emit.collective("all_to_all", CONTEXT, queries + (0.0 if kernel.backward else keys), "trade")
    heads = local.heads // context
    kv_heads = max(1, local.kv_heads // context)
    whole = replace(
        kernel, heads=heads, kv_heads=None if kv_heads == heads else kv_heads, sequence_length=job.model.sequence
    )
    emit.compute("attention", whole)
    emit.collective("all_to_all", CONTEXT, queries + (keys if kernel.backward else 0.0), "trade_back")
