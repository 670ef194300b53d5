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

DOCUMENT_BYTES = 40
"""Of each token: where its document begins, and its position there, as whole numbers."""


def norm_forward(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Norm over features split over x: an all-reduce of two sums per token, of one for RMS norm.

    Then two kernels, by each token's numbers and by each feature's; unsplit it is one.
    """
    activation = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    if shapes.grid.x == 1:
        emit.compute("normalize", Memory(2 * activation, work="norm/normalize"))
        return
    sums = _sums(job)  # between the large kernels are small ones, over one number of each token
    emit.compute("statistics", Memory(sums * activation, kernels=2 * sums, work="norm/statistics/split"))
    emit.collective("all_reduce", "x", sums * shapes.tokens * FP32_BYTES)
    kernels = 5 if sums == 1 else 11
    emit.compute("normalize", Memory(4 * activation, kernels, work="norm/normalize/split"))


def norm_backward(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Gradient of the norm: as many sums per token, then dx and the vectors' gradients.

    Split, the kernel takes the features of a rank for all of them, and one or two more complete what it gives.
    """
    activation = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    trains = job.lora is None  # and so vectors whose gradients are added to their sums
    vectors = trains * (1 + job.model.norm_biases)
    if shapes.grid.x == 1:
        emit.compute("gradient", Memory(3 * activation, kernels=1 + trains + vectors, work="norm/gradient"))
        return
    sums = _sums(job)
    narrow = job.element_bytes < FP32_BYTES
    kernels = 3 + narrow if sums == 1 else 7 + 2 * narrow
    emit.compute("statistics", Memory((3 + sums) * activation, kernels, work="norm/statistics/split"))
    emit.collective("all_reduce", "x", sums * shapes.tokens * FP32_BYTES)
    passes, kernels = (6, 8) if sums == 1 else (8, 11)
    emit.compute("gradient", Memory(passes * activation, kernels - (not trains) + vectors, work="norm/gradient/split"))


def _sums(job: FourDJob) -> int:
    """Count the sums over features that a norm needs of each token."""
    return 1 if job.model.norm == "rms" else 2


def head_norms(emit: Emitter, job: FourDJob, shapes: Shapes, *, backward: bool) -> None:
    """Norms of each head's queries and keys, which no axis splits; or their gradients.

    The kernels want heads that lie side by side: they are copied out of what is packed.
    """
    if not job.model.qk_norm:
        return
    both = float(shapes.tokens * shapes.turned_y * job.element_bytes)
    if backward:
        emit.compute("qk_norm", Memory(3 * both, kernels=6 if job.lora is None else 4, work="norm/gradient"))
    else:
        emit.compute("qk_norm", Memory(4 * both, kernels=4, work="norm/normalize"))


def _pack(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Pack the gradients of queries, keys and values into one tensor."""
    packed = float(shapes.tokens * sum(job.model.qkv_parts) // shapes.grid.y * job.element_bytes)
    emit.compute("pack", Memory(2 * packed, work="pack"))


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


def _mask(emit: Emitter, job: FourDJob, name: str, rows: int, columns: int) -> None:
    """Draw dropout's mask, of one byte for an element: in three kernels over 32-bit numbers unless fused.

    Before it two numbers of each row are multiplied and added to.
    """
    each, kernels = (1, 5) if job.fused_elementwise else (17, 7)
    emit.compute(f"{name}_mask", Memory(float(rows * (each * columns + 40)), kernels, work="dropout_mask"))


def _residual(emit: Emitter, job: FourDJob, shapes: Shapes, name: str) -> None:
    """Add to the residual stream what dropout's mask leaves."""
    elements = shapes.tokens * shapes.hidden_x
    residual, mask = float(elements * job.element_bytes), elements if job.dropout else 0
    if job.dropout:
        _mask(emit, job, name, shapes.tokens, shapes.hidden_x)
    emit.compute(name, Memory(3 * residual + mask, work="residual"))


def _residual_dropout(emit: Emitter, job: FourDJob, name: str, residual: float) -> None:
    """Gradient of dropout: read the gradient and the mask, write what goes on."""
    if job.dropout:
        moved = 2 * residual + residual / job.element_bytes
        emit.compute(f"{name}_dropout", Memory(moved, work="residual_dropout"))


def _rotary(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Turn queries and keys (or their gradients back), and read the tables for each.

    Fused it reads and writes both; in steps what is turned is read twice more and written again.
    """
    model, e = job.model, job.element_bytes
    if model.positions != "rotary":
        return
    both = float(shapes.tokens * shapes.turned_y * e)
    positions = shapes.tokens if job.document_mask else model.sequence
    cosines, sines = (float(positions * width * e) for width in (model.head_size, model.rotary_size // 2))
    if job.fused_elementwise:
        emit.compute("rotary", Memory(2 * both + 2 * (cosines + sines), kernels=2, work="rotary"))
        return
    again = 3 * both * model.rotary_size / model.head_size
    emit.compute("rotary", Memory(2 * both + again + 2 * cosines + 4 * sines, kernels=6, work="rotary/steps"))


def _activation(emit: Emitter, job: FourDJob, shapes: Shapes, *, backward: bool) -> None:
    """From what MLP up gives, (m, 4h/G_y), to what MLP down takes, of the same size.

    SwiGLU reads twice that, gate and up, and writes one; backward reads the output's gradient
    too, and writes two: where it is not fused, in two kernels, and four. Backward of GELU reads its input and
    the gradient.
    """
    before, after = shapes.mlp_up_y, shapes.mlp_y
    kind = job.model.mlp_kind
    if kind == "swiglu" and not job.fused_elementwise:
        moved = (11 if backward else 5) * float(shapes.tokens * after * job.element_bytes)
        emit.compute(kind, Memory(moved, kernels=4 if backward else 2, work="swiglu/steps"))
        return
    elements = shapes.tokens * (2 * before + after if backward else before + after)
    emit.compute(kind, Memory(float(elements * job.element_bytes), work=kind))


def block_forward(
    emit: Emitter, job: FourDJob, shapes: Shapes, linears: tuple[Linear, ...], use_weight: Callable[[Linear], None]
) -> None:
    """Forward of one block; `use_weight` makes a linear's gathered weight available."""

    def apply(index: int) -> None:
        linear = linears[index]
        use_weight(linear)
        linear4d.forward(emit.under(linear.name), job, linear, shapes.tokens)

    norm_forward(emit.under("norm1"), job, shapes)
    apply(0)
    head_norms(emit, job, shapes, backward=False)
    _rotary(emit, job, shapes)
    attention = _attention(job, shapes, backward=False)
    if attention.dropout:
        length = attention.sequence_length
        _mask(emit, job, "scores", attention.sequences * attention.heads * length, length)
    emit.compute("attention", attention)
    apply(1)
    _residual(emit, job, shapes, "residual1")
    norm_forward(emit.under("norm2"), job, shapes)
    apply(2)
    _activation(emit, job, shapes, backward=False)
    apply(3)
    _residual(emit, job, shapes, "residual2")


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
    _pack(emit, job, shapes)
    apply(0)
    norm_backward(emit.under("norm1"), job, shapes)
    if parallel:
        emit.compute("residual2", Memory(3 * residual, work="residual"))
    emit.compute("residual1", Memory(3 * residual, work="residual"))


def documents(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Mask and positions of a micro-step's documents, from where each begins: made once for all layers.

    Of each score a boolean is written, read, written without the future, and read for the mask, which is in compute
    precision; rotary positions pick a row of cosines and sines for each token.
    """
    if not job.document_mask:
        return
    e, model = job.element_bytes, job.model
    moved = document_mask_bytes(job, shapes) * (4 + e) / e + model.sequence**2 + DOCUMENT_BYTES * shapes.tokens
    turned = model.positions == "rotary"
    if turned:
        moved += 2.0 * shapes.tokens * (model.head_size + model.rotary_size // 2) * e
    emit.compute("mask", Memory(moved, kernels=10 if turned else 8, work="documents/mask"))


def embedding_forward(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Look tokens up in the local table (V, h/G_x), add learned positions: no communication.

    Positions that begin anew in every document are looked up too.
    """
    activation = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    learned = job.model.positions == "learned"
    # each position's row serves all sequences; those of documents are looked up token by token, and then added
    moved = 2 * activation
    if learned:
        moved += 5 * activation if job.document_mask else 2 * activation + activation / shapes.sequences
    kernels = 1 + learned + (learned and job.document_mask)
    emit.compute("lookup", Memory(moved, kernels, work="embedding/lookup"))


def embedding_backward(emit: Emitter, job: FourDJob, shapes: Shapes, *, first: bool) -> None:
    """Scatter-add into the tables' gradients, which the first micro-step begins with zeros.

    In fp32: a narrow gradient is widened first. That of positions is summed over sequences, then added, unless they
    begin anew in every document.
    """
    elements, e = shapes.tokens * shapes.hidden_x, job.element_bytes
    narrow, learned = e < FP32_BYTES, job.model.positions == "learned"
    moved = elements * (3 * FP32_BYTES + (e + FP32_BYTES if narrow else 0))
    if first:
        moved += shapes.token_elements * FP32_BYTES
    table = (shapes.table_elements - shapes.token_elements) * FP32_BYTES
    kernels = 1 + narrow + first
    if learned and job.document_mask:
        moved += 3 * elements * FP32_BYTES + (table if first else 0)
        kernels += 1 + first
    elif learned:
        each = elements // shapes.sequences * FP32_BYTES
        moved += elements * e + each + (table + each if first else 3 * each)
        kernels += 2
    emit.compute("gradient", Memory(float(moved), kernels, work="embedding/gradient"))


def loss(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Cross-entropy with the vocabulary split over y: max, sum of exponentials, target's logit."""
    narrow = job.element_bytes < FP32_BYTES
    cast = job.element_bytes + FP32_BYTES if narrow else 0
    logits = float(shapes.tokens * shapes.vocabulary_y)
    per_token = float(shapes.tokens * FP32_BYTES)
    emit.compute("maximum", Memory(logits * (cast + FP32_BYTES), 1 + narrow, work="loss/maximum"))  # to fp32, max
    if shapes.grid.y > 1:
        emit.collective("all_reduce", "y", per_token, "maximum/all_reduce_y")
    emit.compute("sum", Memory(logits * 5 * FP32_BYTES, 3, work="loss/sum"))  # subtract, exp, sum
    if shapes.grid.y > 1:
        emit.collective("all_reduce", "y", per_token, "sum/all_reduce_y")
    # the logit where it is this rank's, by a mask of one byte
    emit.compute("target", Memory(2 * per_token + shapes.tokens, work="loss/target"))
    if shapes.grid.y > 1:
        emit.collective("all_reduce", "y", per_token, "target/all_reduce_y")
    moved = logits * (2 * FP32_BYTES + cast)
    emit.compute("gradient", Memory(moved, kernels=5 + narrow, work="loss/gradient"))  # softmax − 1, cast
