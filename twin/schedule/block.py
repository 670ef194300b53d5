"""One transformer block, the embedding and the loss, forward and backward.

Section 3 of the algorithm. The residual stream is (m, h/G_x), replicated over y.
Byte counts of memory-bound ops are one read or write of each tensor a kernel touches.
"""

from __future__ import annotations

from collections.abc import Callable

from twin.description.job import Job
from twin.schedule import linear as linear4d
from twin.schedule.emit import Emitter
from twin.schedule.kernels import Attention, Memory
from twin.schedule.shapes import FP32_BYTES, Linear, Shapes


def norm_forward(emit: Emitter, job: Job, shapes: Shapes) -> None:
    """Layer norm over features split over x: an all-reduce of two sums per token."""
    activation = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    if shapes.grid.x > 1:
        emit.compute("statistics", Memory(activation))
        emit.collective("all_reduce", "x", 2 * shapes.tokens * FP32_BYTES)
    emit.compute("normalize", Memory(2 * activation))


def norm_backward(emit: Emitter, job: Job, shapes: Shapes) -> None:
    """Gradient of the layer norm: the same two sums per token, then dx and the vectors' gradients."""
    activation = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    if shapes.grid.x > 1:
        emit.compute("statistics", Memory(2 * activation))
        emit.collective("all_reduce", "x", 2 * shapes.tokens * FP32_BYTES)
    emit.compute("gradient", Memory(5 * activation, kernels=2))


def _attention(job: Job, shapes: Shapes, *, backward: bool) -> Attention:
    return Attention(
        sequences=shapes.sequences, sequence_length=job.model.sequence, heads=shapes.heads_y,
        head_size=job.model.head_size, form=job.attention, dropout=job.dropout > 0, backward=backward,
        element_bytes=job.element_bytes,
    )  # fmt: skip


def _residual(job: Job, residual: float) -> Memory:
    """Add to the residual stream, or two gradients that meet there.

    Dropout (or its gradient) has a mask of one byte, and unless fused is a kernel of its own.
    """
    mask = residual / job.element_bytes if job.dropout else 0.0
    if job.dropout and not job.fused_elementwise:
        return Memory(5 * residual + mask, kernels=2)
    return Memory(3 * residual + mask)


def block_forward(emit: Emitter, job: Job, shapes: Shapes, linears: tuple[Linear, ...],
                  use_weight: Callable[[int, Emitter], None]) -> None:  # fmt: skip
    """Forward of one block; `use_weight(i, emit)` makes linear i's gathered weight available."""
    residual = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    inner = float(shapes.tokens * shapes.mlp_y * job.element_bytes)

    def apply(index: int) -> None:
        under = emit.under(linears[index].name)
        use_weight(index, under)
        linear4d.forward(under, job, linears[index], shapes.tokens)

    residual_add = _residual(job, residual)
    norm_forward(emit.under("norm1"), job, shapes)
    apply(0)
    emit.compute("attention", _attention(job, shapes, backward=False))
    apply(1)
    emit.compute("residual1", residual_add)
    norm_forward(emit.under("norm2"), job, shapes)
    apply(2)
    emit.compute("gelu", Memory(2 * inner))
    apply(3)
    emit.compute("residual2", residual_add)


def block_backward(emit: Emitter, job: Job, shapes: Shapes, linears: tuple[Linear, ...],
                   use_weight: Callable[[int, Emitter], None]) -> list[str]:  # fmt: skip
    """Backward of one block; returns the reduce-scatters still in flight."""
    residual = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    inner = float(shapes.tokens * shapes.mlp_y * job.element_bytes)
    pending: list[str | None] = []

    def apply(index: int) -> None:
        under = emit.under(linears[index].name)
        use_weight(index, under)
        pending.append(linear4d.backward(under, job, linears[index], shapes.tokens))

    apply(3)
    emit.compute("gelu", Memory(3 * inner))
    apply(2)
    norm_backward(emit.under("norm2"), job, shapes)
    emit.compute("residual2", _residual(job, residual))
    apply(1)
    emit.compute("attention", _attention(job, shapes, backward=True))
    apply(0)
    norm_backward(emit.under("norm1"), job, shapes)
    emit.compute("residual1", _residual(job, residual))
    return [name for name in pending if name is not None]


def embedding_forward(emit: Emitter, job: Job, shapes: Shapes) -> None:
    """Look tokens up in the local table (V, h/G_x) and add positions: no communication."""
    activation = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    emit.compute("lookup", Memory(5 * activation, kernels=3))


def embedding_backward(emit: Emitter, job: Job, shapes: Shapes) -> None:
    """Scatter-add into the tables' gradients."""
    activation = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    emit.compute("gradient", Memory(5 * activation, kernels=3))


def loss(emit: Emitter, job: Job, shapes: Shapes) -> None:
    """Cross-entropy with the vocabulary split over y: max, sum of exponentials, target's logit."""
    e = job.element_bytes
    logits = float(shapes.tokens * shapes.vocabulary_y)
    per_token = float(shapes.tokens * FP32_BYTES)
    emit.compute("maximum", Memory(logits * (e + 2 * FP32_BYTES), kernels=2))  # to fp32, max
    if shapes.grid.y > 1:
        emit.collective("all_reduce", "y", per_token, "maximum/all_reduce_y")
    emit.compute("sum", Memory(logits * 5 * FP32_BYTES, kernels=3))  # subtract, exp, sum
    if shapes.grid.y > 1:
        emit.collective("all_reduce", "y", per_token, "sum/all_reduce_y")
    emit.compute("target", Memory(3 * per_token, kernels=3))
    if shapes.grid.y > 1:
        emit.collective("all_reduce", "y", per_token, "target/all_reduce_y")
    emit.compute("gradient", Memory(logits * (3 * FP32_BYTES + e), kernels=3))  # softmax − 1, cast
