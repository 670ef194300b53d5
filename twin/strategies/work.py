"""Kernels of a transformer's layers on one rank, whatever the strategy: what each moves, from local sizes.

Byte counts of memory-bound kernels are one read or write of each tensor a kernel touches. Tokens, widths and
heads are those of the rank.
"""

from __future__ import annotations

from typing import Literal

from twin.description.attention import UNFUSED
from twin.description.job import Job
from twin.schedule.kernels import Attention, Memory
from twin.strategies.sizes import FP32_BYTES

LossPart = Literal["maximum", "sum", "target", "gradient"]

DOCUMENT_BYTES = 40
"""Of each token: where its document begins, and its position there, as whole numbers."""


def quantize(job: Job, elements: int, *, by_content: bool) -> Memory:
    """Round to 8 bits for the two products that read it; where these read one layout alone, once more transposed.

    With `by_content` the largest number is looked for before.
    """
    copies, read = eight_bit_copies(job), 1 + by_content
    moved = float(elements * (read * job.element_bytes + copies))
    return Memory(moved, kernels=copies + by_content, work="quantize/fp8")


def eight_bit_copies(job: Job) -> int:
    """Count the layouts in which 8-bit products of both passes want what they read: one where they read either."""
    eight = job.machine.device.gemm.eight_bits
    return 1 if eight is not None and eight.any_layout else 2


def norm_passes(job: Job) -> tuple[int, int]:
    """Count how often the residual stream's norms read or write what they normalise, forward and backward."""
    return _passes(job, job.model.norm)


def _passes(job: Job, kind: str) -> tuple[int, int]:
    """Count how often a norm of a kind reads or writes what it normalises, forward and backward.

    A GPU has one kernel for it. PyTorch has none of RMS norm for CPUs: there squares are summed, rows scaled and
    weighed one after the other, and the kernel of layer norm's gradient is put right by another pass (`runtime.model`).
    """
    return (5, 6) if kind == "rms" and job.machine.device.type == "cpu" else (2, 3)


def norm(job: Job, elements: int) -> Memory:
    """Norm over features that lie on one rank."""
    return Memory(float(norm_passes(job)[0] * elements * job.element_bytes), work="norm/normalize")


def norm_gradient(job: Job, elements: int, *, trains: bool = True) -> Memory:
    """Its gradient; `trains`: the gradients of its vectors are added to their sums."""
    vectors = trains * (1 + job.model.norm_biases)
    moved = float(norm_passes(job)[1] * elements * job.element_bytes)
    return Memory(moved, kernels=1 + trains + vectors, work="norm/gradient")


def head_norms(job: Job, elements: int, *, backward: bool) -> Memory:
    """Norms of each head's queries and keys, `elements` of both; or their gradients.

    The kernels want heads that lie side by side: they are copied out of what is packed.
    """
    both = float(elements * job.element_bytes)
    forward_passes, backward_passes = _passes(job, "rms")  # whatever the residual stream has
    if backward:
        return Memory(backward_passes * both, kernels=6 if job.lora is None else 4, work="norm/gradient")
    return Memory((2 + forward_passes) * both, kernels=4, work="norm/normalize")


def attention(
    job: Job, *, sequences: int, length: int, heads: int, kv_heads: int | None, backward: bool, mask: bool = False
) -> Attention:
    """Attention of one rank's heads over so many sequences of a length."""
    return Attention(
        sequences=sequences,
        sequence_length=length,
        heads=heads,
        head_size=job.model.head_size,
        form=job.attention,
        dropout=job.dropout > 0 and job.attention in UNFUSED,
        backward=backward,
        element_bytes=job.element_bytes,
        kv_heads=kv_heads,
        mask=mask,
    )


def dropout_mask(job: Job, rows: int, columns: int) -> Memory:
    """Draw dropout's mask, of one byte for an element: in three kernels over 32-bit numbers unless fused.

    Before it two numbers of each row are multiplied and added to.
    """
    each, kernels = (1, 5) if job.fused_elementwise else (17, 7)
    return Memory(float(rows * (each * columns + 40)), kernels, work="dropout_mask")


def residual(job: Job, elements: int) -> Memory:
    """Add to the residual stream what dropout's mask leaves."""
    mask = elements if job.dropout else 0
    return Memory(3 * float(elements * job.element_bytes) + mask, work="residual")


def residual_branch(job: Job, elements: int) -> Memory:
    """Add two gradients that meet where the residual stream branches."""
    return Memory(3 * float(elements * job.element_bytes), work="residual")


def dropped(job: Job, elements: int) -> Memory:
    """Dropout by a kernel of its own: read and write, and write the mask."""
    return Memory(float((2 * job.element_bytes + 1) * elements), work="dropout")


def residual_dropout(job: Job, elements: int) -> Memory:
    """Gradient of dropout: read the gradient and the mask, write what goes on."""
    return Memory(float((2 * job.element_bytes + 1) * elements), work="residual_dropout")


def rotary(job: Job, turned: int, positions: int) -> Memory:
    """Turn queries and keys (or their gradients back), `turned` elements of both, and read the tables for each.

    Fused it reads and writes both; in steps what is turned is read twice more and written again.
    """
    model, e = job.model, job.element_bytes
    both = float(turned * e)
    cosines, sines = (float(positions * width * e) for width in (model.head_size, model.rotary_size // 2))
    if job.fused_elementwise:
        return Memory(2 * both + 2 * (cosines + sines), kernels=2, work="rotary")
    again = 3 * both * model.rotary_size / model.head_size
    return Memory(2 * both + again + 2 * cosines + 4 * sines, kernels=6, work="rotary/steps")


_NORM_CHAIN, _NORM_GRADIENT_CHAIN, _ROTARY_CHAIN = 0.87 / 0.07, 0.87 / 0.04, 0.87 / 0.09
"""How often as many bytes a chain of eager kernels in fp32 moves as one kernel would. Measured: Hugging Face's chains
reach 0.07, 0.04 and 0.09 of an A100's memory rate by the bytes of one kernel (Liger-Kernel's benchmark, forward, full
less forward, and rotary positions), where an element-wise kernel reaches 0.87 by its own (NeuSight)."""


def norm_in_steps(job: Job, elements: int) -> Memory:
    """RMS norm as a chain: widen, square, mean, root, scale, narrow, weigh."""
    return Memory(_NORM_CHAIN * 2 * elements * job.element_bytes, kernels=8, work="norm/chain")


def norm_gradient_in_steps(job: Job, elements: int) -> Memory:
    """Its gradient, by a chain too."""
    return Memory(_NORM_GRADIENT_CHAIN * 3 * elements * job.element_bytes, kernels=14, work="norm/chain")


def rotary_in_steps(job: Job, turned: int) -> Memory:
    """Turn queries and keys as complex numbers in fp32, or their gradients back."""
    return Memory(_ROTARY_CHAIN * 2 * turned * job.element_bytes, kernels=6, work="rotary/chain")


def pack(job: Job, elements: int) -> Memory:
    """Pack the gradients of queries, keys and values into one tensor."""
    return Memory(2 * float(elements * job.element_bytes), work="pack")


def activation(job: Job, tokens: int, before: int, after: int, *, backward: bool) -> Memory:
    """From what MLP up gives, (m, before), to what MLP down takes, (m, after).

    SwiGLU reads twice that, gate and up, and writes one; backward reads the output's gradient too, and writes two.
    Where it is not fused, in two kernels, and four, which write both gradients where they belong.
    Backward of GELU reads its input and the gradient.
    """
    kind = job.model.mlp_kind
    if kind == "swiglu" and not job.fused_elementwise:
        moved = (11 if backward else 5) * float(tokens * after * job.element_bytes)
        return Memory(moved, kernels=4 if backward else 2, work="swiglu/steps")
    elements = tokens * (2 * before + after if backward else before + after)
    return Memory(float(elements * job.element_bytes), work=kind)


def bias(output_bytes: float) -> Memory:
    """Add a bias to what a product gave."""
    return Memory(2.0 * output_bytes, work="bias")


def bias_gradient(output_bytes: float) -> Memory:
    """Sum a gradient over tokens."""
    return Memory(output_bytes, kernels=2, work="bias_gradient")


def lookup(job: Job, elements: int, sequences: int, *, documents: bool = False) -> Memory:
    """Look tokens up in a table, add learned positions.

    Each position's row serves all sequences; those of documents are looked up token by token, and then added.
    """
    moved = float(elements * job.element_bytes)
    learned = job.model.positions == "learned"
    total = 2 * moved
    if learned:
        total += 5 * moved if documents else 2 * moved + moved / sequences
    return Memory(total, 1 + learned + (learned and documents), work="embedding/lookup")


def lookup_gradient(
    job: Job, elements: int, sequences: int, *, tokens: int, positions: int, first: bool, documents: bool = False
) -> Memory:
    """Scatter-add into the tables' gradients, which the first micro-step begins with zeros.

    `tokens` and `positions` are the elements of the two tables. In fp32: a narrow gradient is widened first. That of
    positions is summed over sequences, then added, unless they begin anew in every document.
    """
    e = job.element_bytes
    narrow, learned = e < FP32_BYTES, job.model.positions == "learned"
    moved = elements * (3 * FP32_BYTES + (e + FP32_BYTES if narrow else 0))
    if first:
        moved += tokens * FP32_BYTES
    table = positions * FP32_BYTES
    kernels = 1 + narrow + first
    if learned and documents:
        moved += 3 * elements * FP32_BYTES + (table if first else 0)
        kernels += 1 + first
    elif learned:
        each = elements // sequences * FP32_BYTES
        moved += elements * e + each + (table + each if first else 3 * each)
        kernels += 2
    return Memory(float(moved), kernels, work="embedding/gradient")


def lookup_gradient_by_autograd(job: Job, elements: int, *tables: int) -> Memory:
    """Scatter-add into new zeros as large as each of the tables, given by their elements: in compute precision."""
    e = job.element_bytes
    return Memory(float((len(tables) * elements + sum(tables)) * e), 1 + len(tables), work="embedding/gradient")


def loss(job: Job, tokens: int, vocabulary: int) -> dict[LossPart, Memory]:
    """Cross-entropy of a rank's part of the vocabulary: maximum, sum of exponentials, the target's logit, gradient."""
    narrow = job.element_bytes < FP32_BYTES
    cast = job.element_bytes + FP32_BYTES if narrow else 0
    logits, per_token = float(tokens * vocabulary), float(tokens * FP32_BYTES)
    if job.loss_rows is not None:
        e, pieces = job.element_bytes, -(-tokens // job.loss_rows)
        return {
            "maximum": Memory(logits * e, 1 + narrow, work="loss/maximum"),
            # widen, subtract, exp, sum
            "sum": Memory(logits * (e + 6 * FP32_BYTES), 4 * pieces + 1, work="loss/sum"),
            "target": Memory(2 * per_token + tokens, work="loss/target"),
            # the same but for the sum, then softmax − 1, back to where the logits lay
            "gradient": Memory(logits * (2 * e + 8 * FP32_BYTES), 6 * pieces + 4, work="loss/gradient"),
        }
    return {
        "maximum": Memory(logits * (cast + FP32_BYTES), 1 + narrow, work="loss/maximum"),  # to fp32, max
        "sum": Memory(logits * 5 * FP32_BYTES, 3, work="loss/sum"),  # subtract, exp, sum
        # the logit where it is this rank's, by a mask of one byte
        "target": Memory(2 * per_token + tokens, work="loss/target"),
        # softmax − 1, cast
        "gradient": Memory(logits * (2 * FP32_BYTES + cast), kernels=5 + narrow, work="loss/gradient"),
    }


def loss_bytes(job: Job, tokens: int, vocabulary: int, *, in_place: bool) -> float:
    """Count what the loss of a rank's logits needs at its peak.

    `in_place`: as this runtime does, they, a copy in fp32 that becomes exponentials and then the gradient, and that as
    they are; fp32 logits need nothing more. Else as programs of PyTorch's `cross_entropy` do: they, their gradient, and
    both in fp32. So many tokens at a time the gradient lies where the logits lay.
    """
    e = job.element_bytes
    if job.loss_rows is not None:
        widened = min(tokens, job.loss_rows)
        return float(vocabulary * (tokens * e + widened * 2 * FP32_BYTES))
    if in_place:
        return float(tokens * vocabulary * (2 * e + FP32_BYTES if e < FP32_BYTES else e))
    return float(tokens * vocabulary * (2 * e + 2 * FP32_BYTES))


def accumulation(job: Job, elements: int, sum_bytes: int, *, first: bool) -> Memory:
    """Add a gradient to its sum, of so many bytes a number; the first time only write it."""
    return Memory(float(elements * (job.element_bytes + sum_bytes * (1 if first else 2))), work="accumulate")


def gradient_norm(elements: int) -> Memory:
    """Read all gradients, in fp32."""
    return Memory(float(elements * FP32_BYTES), kernels=4, work="clip/norm")


def gradient_scale(elements: int) -> Memory:
    """Shorten them."""
    return Memory(2.0 * elements * FP32_BYTES, kernels=4, work="clip/scale")
