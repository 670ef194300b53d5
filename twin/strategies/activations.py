"""Activations that a block keeps for its backward pass, whatever the strategy."""

from __future__ import annotations

from twin.description.attention import UNFUSED
from twin.description.job import Job
from twin.strategies.sizes import FP32_BYTES


def block_activation_bytes(
    job: Job,
    *,
    tokens: int,
    sequences: int,
    heads: int,
    residual_width: int,
    mlp_up_width: int,
    mlp_width: int,
    kv_heads: int | None = None,
    normed_width: int | None = None,
    attention_parts: int = 1,
    mlp_parts: int = 1,
    products: bool = False,
    copies: bool = True,
) -> float:
    """Return what one block's backward pass needs of its forward pass, for the local sizes of a rank.

    Two norm inputs and outputs (m, residual width), q, k, v and attention output (m, heads · size), MLP before and
    after its activation (with SwiGLU gate and up before), norm statistics; unfused attention also keeps its shares
    (scores, normalised), and with dropout its mask and what it leaves of them; dropout before both residual sums a mask
    of bytes (m, residual width) each. Rotary positions turn queries and keys into new ones, and the old ones stay with
    the values, beside which they lie. Norms of queries and keys keep their inputs, and a number for each head. Where
    attention or the MLP's activation is divided among ranks, in so many parts, a rank keeps its own of what is between
    the linears and all that the linear behind reads. `normed_width` is that of what norms give, as linears read it,
    where that is not the residual stream's. With `products` what norms and the activation give is not kept, which is
    computed again. `copies`: unfused attention puts queries, keys and values of several sequences in order for its
    batched products, as it need not where sequences lie side by side token by token. Of a linear that does not train
    the input is kept only where it has an adapter, whose own product is kept too.
    """
    e = job.element_bytes
    keys = heads if kv_heads is None else kv_heads
    own = tokens / attention_parts
    attended = 2 * own * (heads + keys) * job.model.head_size
    if attention_parts > 1:
        attended += tokens * heads * job.model.head_size
    again = 2 * (residual_width if normed_width is None else normed_width) + mlp_width
    stream = 2 * residual_width + (0 if products else again)
    saved = e * (tokens * stream + attended + tokens * mlp_up_width / mlp_parts)
    if job.lora is not None:
        adapted = {linear: len(job.lora.of_linear(job.model, linear)) for linear in job.model.block_linears}
        kept = () if products else (("qkv", residual_width), ("mlp_up", residual_width), ("mlp_down", mlp_width))
        saved -= e * tokens * sum(width for linear, width in kept if not adapted[linear])
        saved += e * tokens * job.lora.rank * sum(adapted.values())
    saved += (2 if job.model.norm == "rms" else 4) * FP32_BYTES * tokens
    if job.dropout:
        saved += 2 * tokens * residual_width
    if job.model.qk_norm:
        saved += own * (heads + keys) * (e * job.model.head_size + FP32_BYTES)
    if job.model.positions == "rotary" or job.model.qk_norm:  # as they are turned, or were normalised
        saved += own * (heads + keys) * e * job.model.head_size
    if job.attention not in UNFUSED:
        return float(saved + FP32_BYTES * own * heads)
    # batched products want heads one behind the other: copies, of keys and values for each head of queries
    copied = 3 if sequences > 1 and copies else 2 * (keys < heads)
    saved += e * own * copied * heads * job.model.head_size
    return float(saved + score_bytes(job, sequences=sequences / attention_parts, heads=heads))


def score_bytes(job: Job, *, sequences: float, heads: int) -> float:
    """Return what unfused attention keeps of its scores; nothing if it has none."""
    if job.attention not in UNFUSED:
        return 0.0
    each = 2 * job.element_bytes + 1 if job.dropout else job.element_bytes
    return float(each * sequences * heads * job.model.sequence**2)


def score_gradient_bytes(job: Job, *, sequences: float, heads: int) -> float:
    """Return what unfused attention's backward pass needs beside what it kept: the gradients of shares and of scores.

    With dropout what it left of the shares is gone when the second of them comes.
    """
    if job.attention not in UNFUSED:
        return 0.0
    return float((1 if job.dropout else 2) * job.element_bytes * sequences * heads * job.model.sequence**2)
