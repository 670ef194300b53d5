"""One transformer block, the embedding and the loss, forward and backward.

Section 3 of the algorithm. The residual stream is (m, h/G_x), replicated over y.
Byte counts of memory-bound ops are one read or write of each tensor a kernel touches.
"""

from __future__ import annotations

from collections.abc import Callable

from twin.description.attention import UNFUSED
from twin.schedule.emit import Emitter
from twin.schedule.kernels import Attention, Memory
from twin.strategies.four_d import linear as linear4d
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.linear import GradientScatters
from twin.strategies.four_d.shapes import Linear, Shapes, document_mask_bytes
from twin.strategies.sizes import FP32_BYTES


def norm_forward(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Norm over features split over x: an all-reduce of two sums per token, of one for RMS norm."""
    activation = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    if shapes.grid.x > 1:
        emit.compute("statistics", Memory(activation, work="norm/statistics/split"))
        emit.collective("all_reduce", "x", _sums(job) * shapes.tokens * FP32_BYTES)
    emit.compute("normalize", Memory(2 * activation, work=_split("norm/normalize", shapes)))


def norm_backward(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Gradient of the norm: as many sums per token, then dx and the vectors' gradients."""
    activation = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    if shapes.grid.x > 1:
        emit.compute("statistics", Memory(2 * activation, work="norm/statistics/split"))
        emit.collective("all_reduce", "x", _sums(job) * shapes.tokens * FP32_BYTES)
    passes, kernels = norm_gradient_passes(job)
    emit.compute("gradient", Memory(passes * activation, kernels, work=_split("norm/gradient", shapes)))


def norm_gradient_passes(job: FourDJob) -> tuple[int, int]:
    """Return how often a norm's gradient reads or writes an activation, and its kernels: fewer for dx alone."""
    return (5, 2) if job.lora is None else (3, 1)


def _sums(job: FourDJob) -> int:
    """Count the sums over features that a norm needs of each token."""
    return 1 if job.model.norm == "rms" else 2


def head_norms(emit: Emitter, job: FourDJob, shapes: Shapes, *, backward: bool) -> None:
    """Norms of each head's queries and keys, which no axis splits; or their gradients."""
    if not job.model.qk_norm:
        return
    both = float(shapes.tokens * shapes.turned_y * job.element_bytes)
    if backward:
        passes, kernels = norm_gradient_passes(job)
        emit.compute("qk_norm", Memory(passes * both, 2 * kernels, work="norm/gradient"))
    else:
        emit.compute("qk_norm", Memory(2 * both, kernels=2, work="norm/normalize"))


def _split(work: str, shapes: Shapes) -> str:
    """Name the kind of work of a norm: over features that are split it is another one."""
    return f"{work}/split" if shapes.grid.x > 1 else work


def _attention(job: FourDJob, shapes: Shapes, *, backward: bool) -> Attention:
    return Attention(
        sequences=shapes.sequences,
        sequence_length=job.model.sequence,
        heads=shapes.heads_y,
        head_size=job.model.head_size,
        form=job.attention,
        dropout=job.dropout > 0 and job.attention in UNFUSED,
        backward=backward,
        element_bytes=job.element_bytes,
        kv_heads=shapes.kv_heads_y,
        mask=job.document_mask,
    )


def _residual(job: FourDJob, residual: float) -> Memory:
    """Add to the residual stream what dropout leaves, whose mask has one byte for an element.

    Unless fused, dropout is a kernel of its own.
    """
    mask = residual / job.element_bytes if job.dropout else 0.0
    if job.dropout and not job.fused_elementwise:
        return Memory(5 * residual + mask, kernels=2, work="residual")
    return Memory(3 * residual + mask, work="residual")


def _residual_dropout(emit: Emitter, job: FourDJob, name: str, residual: float) -> None:
    """Gradient of dropout: read the gradient and the mask, write what goes on."""
    if job.dropout:
        moved = 2 * residual + residual / job.element_bytes
        emit.compute(f"{name}_dropout", Memory(moved, work="residual_dropout"))


def _rotary(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Turn queries and keys (or their gradients back): read and write both, a kernel each."""
    if job.model.positions == "rotary":
        both = shapes.tokens * shapes.turned_y * job.element_bytes
        emit.compute("rotary", Memory(2.0 * both, kernels=2, work="rotary"))


def _activation(emit: Emitter, job: FourDJob, shapes: Shapes, *, backward: bool) -> None:
    """From what MLP up gives, (m, 4h/G_y), to what MLP down takes, of the same size.

    SwiGLU reads twice that, gate and up, and writes one; backward reads the output's gradient
    too, and writes two. Backward of GELU reads its input and the gradient.
    """
    before, after = shapes.mlp_up_y, shapes.mlp_y
    elements = shapes.tokens * (2 * before + after if backward else before + after)
    kind = job.model.mlp_kind
    emit.compute(kind, Memory(float(elements * job.element_bytes), work=kind))


def block_forward(
    emit: Emitter, job: FourDJob, shapes: Shapes, linears: tuple[Linear, ...], use_weight: Callable[[Linear], None]
) -> None:
    """Forward of one block; `use_weight` makes a linear's gathered weight available."""
    residual = float(shapes.tokens * shapes.hidden_x * job.element_bytes)

    def apply(index: int) -> None:
        linear = linears[index]
        use_weight(linear)
        linear4d.forward(emit.under(linear.name), job, linear, shapes.tokens)

    residual_add = _residual(job, residual)
    norm_forward(emit.under("norm1"), job, shapes)
    apply(0)
    head_norms(emit, job, shapes, backward=False)
    _rotary(emit, job, shapes)
    emit.compute("attention", _attention(job, shapes, backward=False))
    apply(1)
    emit.compute("residual1", residual_add)
    norm_forward(emit.under("norm2"), job, shapes)
    apply(2)
    _activation(emit, job, shapes, backward=False)
    apply(3)
    emit.compute("residual2", residual_add)


def block_backward(
    emit: Emitter,
    job: FourDJob,
    shapes: Shapes,
    linears: tuple[Linear, ...],
    use_weight: Callable[[Linear], None],
    scatters: GradientScatters,
) -> None:
    """Backward of one block; `scatters` takes its weight gradients.

    Where the residual stream branches the two gradients that meet are added; it branches twice at the block's begin if
    attention and MLP are parallel.
    """
    residual = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    parallel = job.model.residual == "parallel"
    units = shapes.gather_units(linears)

    def apply(index: int) -> None:
        linear = linears[index]
        use_weight(linear)
        linear4d.backward(emit, job, linear, shapes.tokens, units, scatters)

    _residual_dropout(emit, job, "residual2", residual)
    apply(3)
    _activation(emit, job, shapes, backward=True)
    apply(2)
    norm_backward(emit.under("norm2"), job, shapes)
    if not parallel:
        emit.compute("residual2", Memory(3 * residual, work="residual"))
    _residual_dropout(emit, job, "residual1", residual)
    apply(1)
    emit.compute("attention", _attention(job, shapes, backward=True))
    _rotary(emit, job, shapes)
    head_norms(emit, job, shapes, backward=True)
    apply(0)
    norm_backward(emit.under("norm1"), job, shapes)
    if parallel:
        emit.compute("residual2", Memory(3 * residual, work="residual"))
    emit.compute("residual1", Memory(3 * residual, work="residual"))


def documents(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Mask and positions of a micro-step's documents, from where each begins: made once for all layers.

    Of each score a boolean is written, read, written without the future, and read for the mask, which is in compute
    precision; rotary positions pick a cosine and a sine of 8 bytes for each of their planes.
    """
    if not job.document_mask:
        return
    moved = document_mask_bytes(job, shapes) * (4 + job.element_bytes) / job.element_bytes
    turned = job.model.rotary_size
    moved += 16.0 * shapes.tokens * turned
    emit.compute("mask", Memory(moved, kernels=10 if turned else 8, work="documents/mask"))


def embedding_forward(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Look tokens up in the local table (V, h/G_x), add learned positions: no communication.

    Positions that begin anew in every document are looked up too.
    """
    activation = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    learned = job.model.positions == "learned"
    moved, kernels = (5 * activation, 3) if learned else (2 * activation, 1)
    if learned and job.document_mask:
        moved += 2 * activation
    emit.compute("lookup", Memory(moved, kernels, work="embedding/lookup"))


def embedding_backward(emit: Emitter, job: FourDJob, shapes: Shapes, *, first: bool) -> None:
    """Scatter-add into the tables' gradients, which the first micro-step begins with zeros.

    Positions are summed over the sequences first, unless they begin anew in every document.
    """
    activation = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    learned = job.model.positions == "learned"
    zeros = float(shapes.table_elements * FP32_BYTES) if first else 0.0
    moved = (3 + learned * (3 if job.document_mask else 2)) * activation + zeros
    emit.compute("gradient", Memory(moved, kernels=2 + learned, work="embedding/gradient"))


def loss(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Cross-entropy with the vocabulary split over y: max, sum of exponentials, target's logit."""
    e = job.element_bytes
    logits = float(shapes.tokens * shapes.vocabulary_y)
    per_token = float(shapes.tokens * FP32_BYTES)
    emit.compute("maximum", Memory(logits * (e + 2 * FP32_BYTES), 2, work="loss/maximum"))  # to fp32, max
    if shapes.grid.y > 1:
        emit.collective("all_reduce", "y", per_token, "maximum/all_reduce_y")
    emit.compute("sum", Memory(logits * 5 * FP32_BYTES, 3, work="loss/sum"))  # subtract, exp, sum
    if shapes.grid.y > 1:
        emit.collective("all_reduce", "y", per_token, "sum/all_reduce_y")
    emit.compute("target", Memory(3 * per_token, kernels=3, work="loss/target"))
    if shapes.grid.y > 1:
        emit.collective("all_reduce", "y", per_token, "target/all_reduce_y")
    moved = logits * (3 * FP32_BYTES + e)
    emit.compute("gradient", Memory(moved, kernels=3, work="loss/gradient"))  # softmax − 1, cast
