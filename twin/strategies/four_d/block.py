"""One transformer block, the embedding and the loss, forward and backward.

Section 3 of the algorithm. The residual stream is (m, h/G_x), replicated over y.
Byte counts of memory-bound ops are one read or write of each tensor a kernel touches.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from twin.schedule.emit import Emitter
from twin.schedule.kernels import Attention, Memory
from twin.strategies import work
from twin.strategies.four_d import linear as linear4d
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.linear import GradientScatters
from twin.strategies.four_d.shapes import Linear, Shapes, document_mask_bytes
from twin.strategies.sizes import FP32_BYTES


def norm_forward(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Norm over features split over x: an all-reduce of two sums per token, of one for RMS norm.

    Then two kernels, by each token's numbers and by each feature's; unsplit it is one.
    """
    activation = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    if shapes.grid.x == 1:
        emit.compute("normalize", work.norm(job, shapes.tokens * shapes.hidden_x))
        return
    sums = _sums(job)  # between the large kernels are small ones, over one number of each token
    emit.compute("statistics", Memory(sums * activation, kernels=2 * sums, work="norm/statistics/split"))
    emit.collective("all_reduce", "x", sums * shapes.tokens * FP32_BYTES)
    kernels = 5 if sums == 1 else 11
    emit.compute("normalize", Memory(4 * activation, kernels, work="norm/normalize/split"))


def norm_again(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """What a norm gave, from its input and the statistics that are kept: no sums of others are wanted."""
    elements = shapes.tokens * shapes.hidden_x
    if shapes.grid.x == 1:
        emit.compute("normalize", work.norm(job, elements))
        return
    moved = 4.0 * elements * job.element_bytes
    emit.compute("normalize", Memory(moved, kernels=2 * _sums(job), work="norm/normalize/split"))


def norm_backward(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Gradient of the norm: as many sums per token, then dx and the vectors' gradients.

    Split, the kernel takes the features of a rank for all of them, and one or two more complete what it gives.
    """
    activation = float(shapes.tokens * shapes.hidden_x * job.element_bytes)
    trains = job.lora is None  # and so vectors whose gradients are added to their sums
    vectors = trains * (1 + job.model.norm_biases)
    if shapes.grid.x == 1:
        emit.compute("gradient", work.norm_gradient(job, shapes.tokens * shapes.hidden_x, trains=trains))
        return
    sums = _sums(job)
    narrow = job.element_bytes < FP32_BYTES
    kernels = 3 + narrow if sums == 1 else 7 + 2 * narrow
    emit.compute("statistics", Memory((3 + sums) * activation, kernels, work="norm/statistics/split"))
    emit.collective("all_reduce", "x", sums * shapes.tokens * FP32_BYTES)
    passes, kernels = (work.norm_passes(job)[1] + 3, 8) if sums == 1 else (8, 11)
    emit.compute("gradient", Memory(passes * activation, kernels - (not trains) + vectors, work="norm/gradient/split"))


def _sums(job: FourDJob) -> int:
    """Count the sums over features that a norm needs of each token."""
    return 1 if job.model.norm == "rms" else 2


def head_norms(emit: Emitter, job: FourDJob, shapes: Shapes, *, backward: bool) -> None:
    """Norms of each head's queries and keys, which no axis splits; or their gradients."""
    if job.model.qk_norm:
        turned = shapes.tokens * shapes.turned_y // shapes.parts_of_attention
        emit.compute("qk_norm", work.head_norms(job, turned, backward=backward))


def _pack(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Pack the gradients of queries, keys and values into one tensor."""
    packed = shapes.tokens * sum(job.model.qkv_parts) // shapes.grid.y // shapes.parts_of_attention
    emit.compute("pack", work.pack(job, packed))


def _attention(job: FourDJob, shapes: Shapes, *, backward: bool) -> Attention:
    return work.attention(
        job,
        sequences=shapes.attention.sequences,
        length=job.model.sequence,
        heads=shapes.attention.heads,
        kv_heads=shapes.attention.kv_heads,
        backward=backward,
        mask=job.document_mask,
    )


def _residual(emit: Emitter, job: FourDJob, shapes: Shapes, name: str, *, summed: bool = True) -> None:
    """Add to the residual stream what dropout's mask leaves; or make the mask alone, which the gradient wants."""
    if job.dropout:
        emit.compute(f"{name}_mask", work.dropout_mask(job, shapes.tokens, shapes.hidden_x))
    if summed:
        emit.compute(name, work.residual(job, shapes.tokens * shapes.hidden_x))


def _residual_dropout(emit: Emitter, job: FourDJob, shapes: Shapes, name: str) -> None:
    """Gradient of dropout."""
    if job.dropout:
        emit.compute(f"{name}_dropout", work.residual_dropout(job, shapes.tokens * shapes.hidden_x))


def _rotary(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Turn queries and keys, or their gradients back."""
    if job.model.positions == "rotary":
        positions = (shapes.attention.sequences if job.document_mask else 1) * job.model.sequence
        turned = shapes.tokens * shapes.turned_y // shapes.parts_of_attention
        emit.compute("rotary", work.rotary(job, turned, positions))


def _activation(emit: Emitter, job: FourDJob, shapes: Shapes, *, backward: bool) -> None:
    """From what MLP up gives, (m, 4h/G_y), to what MLP down takes, of the same size; or a part of m."""
    tokens = shapes.tokens // shapes.parts_of_mlp
    kernel = work.activation(job, tokens, shapes.mlp_up_y, shapes.mlp_y, backward=backward)
    emit.compute(job.model.mlp_kind, kernel)


def block_forward(
    emit: Emitter,
    job: FourDJob,
    shapes: Shapes,
    linears: tuple[Linear, ...],
    use_weight: Callable[[Linear], None],
    *,
    attention_kept: bool = False,
    stops_early: bool = False,
) -> None:
    """Forward of one block; `use_weight` makes a linear's gathered weight available.

    `attention_kept`: it runs again, while what attention and its projection gave is there and its output is not wanted.
    `stops_early`: it runs again, and its output is not wanted: only what its last product reads, and dropout's mask.
    """

    def apply(index: int) -> None:
        linear, under = linears[index], emit.under(linears[index].name)
        use_weight(linear)
        unread = stops_early and index == len(linears) - 1
        if unread or (attention_kept and linear.transposed):  # its weight's gradient reads what it read
            linear4d.read(under, job, linear, shapes.tokens)
        else:
            linear4d.forward(under, job, linear, shapes.tokens)

    norm_forward(emit.under("norm1"), job, shapes)
    apply(0)
    head_norms(emit, job, shapes, backward=False)
    _rotary(emit, job, shapes)
    attention = _attention(job, shapes, backward=False)
    if attention.dropout:
        length = attention.sequence_length
        mask = work.dropout_mask(job, attention.sequences * attention.heads * length, length)
        emit.compute("scores_mask", mask)
    if not attention_kept:
        emit.compute("attention", attention)
    apply(1)
    _residual(emit, job, shapes, "residual1")
    norm_forward(emit.under("norm2"), job, shapes)
    apply(2)
    _activation(emit, job, shapes, backward=False)
    apply(3)
    _residual(emit, job, shapes, "residual2", summed=not (attention_kept or stops_early))


def block_backward(
    emit: Emitter,
    job: FourDJob,
    shapes: Shapes,
    linears: tuple[Linear, ...],
    use_weight: Callable[[Linear], None],
    scatters: GradientScatters,
    again: Emitter | None = None,
) -> None:
    """Backward of one block; `scatters` takes its weight gradients, `again` what was not kept of norms and activation.

    Where the residual stream branches the two gradients that meet are added; it branches twice at the block's begin if
    attention and MLP are parallel.
    """
    branch = work.residual_branch(job, shapes.tokens * shapes.hidden_x)
    parallel = job.model.residual == "parallel"
    units = shapes.gather_units(linears)

    def apply(index: int) -> None:
        linear = linears[index]
        use_weight(linear)
        input_again = partial(_input_again, again, job, shapes, linear)
        linear4d.backward(emit, job, linear, shapes.tokens, units, scatters, input_again)

    _residual_dropout(emit, job, shapes, "residual2")
    apply(3)
    _activation(emit, job, shapes, backward=True)
    apply(2)
    norm_backward(emit.under("norm2"), job, shapes)
    if not parallel:
        emit.compute("residual2", branch)
    _residual_dropout(emit, job, shapes, "residual1")
    apply(1)
    emit.compute("attention", _attention(job, shapes, backward=True))
    _rotary(emit, job, shapes)
    head_norms(emit, job, shapes, backward=True)
    _pack(emit, job, shapes)
    apply(0)
    norm_backward(emit.under("norm1"), job, shapes)
    if parallel:
        emit.compute("residual2", branch)
    emit.compute("residual1", branch)


def _input_again(again: Emitter | None, job: FourDJob, shapes: Shapes, linear: Linear) -> None:
    """Compute again what a linear read, unless attention gave it."""
    if again is None or linear.name == "projection":
        return
    if linear.name == "mlp_down":
        _activation(again, job, shapes, backward=False)
    else:
        norm_again(again.under("norm1" if linear.name == "qkv" else "norm2"), job, shapes)
    linear4d.gather_input(again.under(linear.name), job, linear, shapes.tokens)


def documents(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Mask and positions of a micro-step's documents, from where each begins: made once for all layers.

    Of each score a boolean is written, read, written without the future, and read for the mask, which is in compute
    precision; rotary positions pick a row of cosines and sines for each token.
    """
    if not job.document_mask:
        return
    e, model = job.element_bytes, job.model
    moved = document_mask_bytes(job, shapes) * (4 + e) / e + model.sequence**2 + work.DOCUMENT_BYTES * shapes.tokens
    turned = model.positions == "rotary"
    if turned:
        moved += 2.0 * shapes.tokens * (model.head_size + model.rotary_size // 2) * e
    emit.compute("mask", Memory(moved, kernels=10 if turned else 8, work="documents/mask"))


def embedding_forward(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Look tokens up in the local table (V, h/G_x), add learned positions: no communication.

    Positions that begin anew in every document are looked up too.
    """
    elements = shapes.tokens * shapes.hidden_x
    emit.compute("lookup", work.lookup(job, elements, shapes.sequences, documents=job.document_mask))


def embedding_backward(emit: Emitter, job: FourDJob, shapes: Shapes, *, first: bool) -> None:
    """Scatter-add into the tables' gradients, which the first micro-step begins with zeros."""
    kernel = work.lookup_gradient(
        job,
        shapes.tokens * shapes.hidden_x,
        shapes.sequences,
        tokens=shapes.token_elements,
        positions=shapes.table_elements - shapes.token_elements,
        first=first,
        documents=job.document_mask,
    )
    emit.compute("gradient", kernel)


def loss(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Cross-entropy with the vocabulary split over y: max, sum of exponentials, target's logit."""
    kernels = work.loss(job, shapes.tokens, shapes.vocabulary_y)
    for part, kernel in kernels.items():
        emit.compute(part, kernel)
        if shapes.grid.y > 1 and part != "gradient":
            emit.under(part).collective("all_reduce", "y", shapes.tokens * FP32_BYTES)
