"""Memory of one rank of a 4D grid, by category.

Letters: m tokens of a micro-step, e bytes of a number in compute precision. Parameters are
kept as one e-byte copy for compute, an fp32 gradient sum, and the optimizer's fp32 master
weight (where the copy for compute is not it) and two moments, of the own part where replicas
share the optimizer's states: 6 + 12/data bytes of each in bf16. Of weights that do not train there is the copy for
compute alone. `tests/runtime/test_memory_held.py`
counts what the runtime holds.
"""

from __future__ import annotations

from twin.description.offload import Tier
from twin.strategies import work
from twin.strategies.activations import block_activation_bytes, score_gradient_bytes
from twin.strategies.beyond import Held
from twin.strategies.four_d.away import elements_away, elements_here
from twin.strategies.four_d.buckets import own_elements
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.reduction import update_spans
from twin.strategies.four_d.shapes import Shapes, document_mask_bytes
from twin.strategies.four_d.trained import Trained
from twin.strategies.sizes import FP32_BYTES, optimizer_bytes


def memory_by_category(job: FourDJob) -> dict[str, float]:
    """Count the peak bytes of one rank."""
    shapes = Shapes(job)
    e = job.element_bytes
    trained = Trained(job, shapes)
    elements, frozen = trained.elements, shapes.local_elements if job.lora is not None else 0
    own = _own(job, shapes)
    used = {
        "weights": float(e * (elements + frozen)),
        "gradients": float(FP32_BYTES * elements),
        "optimizer": float(optimizer_bytes(e) * own),
        "activations": activation_bytes(job, shapes),
        "gathered weights": gathered_bytes(job, shapes),
        "buffers": _buffers(job, shapes, own),
    }
    if job.offload is None:
        return used
    states = optimizer_bytes(e)
    return _held(job, shapes, own).on_device(job.offload, used, states_bytes=states, gradients_stay=True)


def tiers(job: FourDJob) -> dict[Tier, dict[str, float]]:
    """Count the bytes of a rank beyond its device."""
    shapes = Shapes(job)
    if job.offload is None:
        left = job.recomputed_layers - 1 if job.recompute_inputs == "host" else 0
        inputs = float(job.element_bytes * shapes.tokens * shapes.hidden_x * max(0, left))
        return {"host": {"activations": inputs}} if inputs else {}
    own = _own(job, shapes)
    states = optimizer_bytes(job.element_bytes)
    return _held(job, shapes, own).tiers(job.offload, states_bytes=states, gradients_stay=True)


def _own(job: FourDJob, shapes: Shapes) -> int:
    """Return the elements that a rank updates: of replicas that share states its part."""
    if job.gathers_ahead:
        return own_elements(job, shapes)
    parts = job.concrete_grid.data if job.data_reduction.sharded else 1
    return -(-Trained(job, shapes).elements // parts)


def _buffers(job: FourDJob, shapes: Shapes, own: int) -> float:
    """Count the bytes of gradients on their way, over z and over data.

    A reduce-scatter of everything over data brings a rank's part beside the sums, of buckets into its place among them.
    gloo's direct exchange brings every member's part, and those of buckets stay until the backward pass is over.
    """
    over_z = buffer_bytes(job, shapes)
    if job.concrete_grid.data == 1 or not job.data_reduction.sharded:
        return over_z
    on_cpu = job.machine.device.type == "cpu"
    if job.gathers_ahead:
        return over_z + (float(FP32_BYTES * own * job.concrete_grid.data) if on_cpu else 0.0)
    return max(over_z, float(FP32_BYTES * (Trained(job, shapes).elements if on_cpu else own)))


def _held(job: FourDJob, shapes: Shapes, own: int) -> Held:
    layers = job.recomputed_layers
    kept = [float(job.element_bytes * shapes.tokens * shapes.hidden_x)] * layers
    trained = Trained(job, shapes)
    frozen = shapes.local_elements if job.lora is not None else 0
    unit = max(each.shard_elements for each in shapes.gather_units(shapes.block_linears(0)))
    sharded = job.data_reduction.sharded and job.concrete_grid.data > 1
    return Held(
        element_bytes=job.element_bytes,
        own=own,
        weights=trained.elements + frozen,
        unit=unit,
        kept_bytes=kept,
        bucket=own,
        lands=job.machine.device.type != "cpu",
        micro_steps=job.micro_steps,
        away=elements_away(shapes),
        here=elements_here(job, shapes),
        spans=[end - begin for begin, end in update_spans(job, shapes, own, sharded=sharded)],
    )


def block_bytes(job: FourDJob, shapes: Shapes, *, products: bool = False) -> float:
    """What one block's backward pass needs of its forward pass on one rank; `products`: and does not compute again."""
    flat = shapes.grid.x if shapes.flat else 1
    return block_activation_bytes(
        job,
        tokens=shapes.tokens,
        sequences=shapes.sequences,
        heads=shapes.heads_y // flat,
        kv_heads=None if shapes.kv_heads_y is None else shapes.kv_heads_y // flat,
        residual_width=shapes.hidden_x,
        normed_width=shapes.hidden_x * flat,
        mlp_up_width=shapes.mlp_up_y // flat,
        mlp_width=shapes.mlp_y // flat,
        attention_parts=shapes.parts_of_attention // flat,
        mlp_parts=shapes.parts_of_mlp // flat,
        products=products,
    )


def _attention_kept_bytes(job: FourDJob, shapes: Shapes) -> float:
    """What a block keeps of attention, with the sums of its rows, and of its projection."""
    e, size, heads = job.element_bytes, job.model.head_size, shapes.heads_y
    attended = shapes.tokens * heads * (e * size + FP32_BYTES) / shapes.parts_of_attention
    return float(attended + e * shapes.tokens * shapes.hidden_x)


def activation_bytes(job: FourDJob, shapes: Shapes, *, loss_in_place: bool = True) -> float:
    """Saved activations of all blocks, the mask of documents, and the working set of one block or of the loss."""
    m, e = shapes.tokens, job.element_bytes
    block = block_bytes(job, shapes)
    residual = float(e * m * shapes.hidden_x)
    again = job.recomputed_layers
    inputs = residual * (min(1, again) if job.recompute_inputs == "host" else again)
    inputs += job.attention_kept_layers * _attention_kept_bytes(job, shapes)
    lean = job.products_kept_layers
    kept = (job.model.layers - again - lean) * block + lean * block_bytes(job, shapes, products=True)
    inner = shapes.mlp_up_y + shapes.mlp_y
    # cut over x too, with the gradient of the residual stream gathered, and summed, whole
    inner = inner // shapes.grid.x + shapes.hidden_x * shapes.grid.x if shapes.flat else inner
    # and with what a linear read there again
    inner += shapes.hidden_x * shapes.grid.x if shapes.flat and lean else 0
    scores = score_gradient_bytes(job, sequences=shapes.sequences / shapes.parts_of_attention, heads=shapes.heads_y)
    # what the MLP kept is gone when attention's turn comes
    gradients = e * m * 2 * shapes.hidden_x + max(e * m * inner, scores - e * m * inner)
    logits = work.loss_bytes(job, m, shapes.vocabulary_y, in_place=loss_in_place)
    # the first block that is computed again finds those behind it, which were kept, gone; what it reads is among inputs
    # (with halves the other half is at work on another block)
    here = block - (0.0 if job.overlap.halves else residual)
    here -= _attention_kept_bytes(job, shapes) if job.attention_kept_layers else 0.0
    at_most = max(kept + gradients, kept + logits, (here if again else 0.0) + gradients)
    return inputs + document_mask_bytes(job, shapes) + at_most


def gathered_bytes(job: FourDJob, shapes: Shapes) -> float:
    """Weights gathered over z: cached blocks, the block at work, and the prefetched units.

    What travels in fp32 is there in both types while it is rounded.
    """
    if shapes.grid.z == 1:
        return 0.0
    e, travelling = job.element_bytes, job.gather_element_bytes
    largest, head = _at_once(job, shapes), shapes.head.gathered_elements
    cached = min(job.cache_gathered_layers, job.model.layers) * shapes.block_gathered_elements
    unit = shapes.largest_unit_elements
    ahead = travelling * (job.overlap.prefetch_depth if job.overlap.all_gather else 0) * unit
    both = travelling > e
    rounded = travelling * unit if both else 0
    in_a_pass = e * largest + ahead + rounded
    # The recomputed block keeps its four weights for its backward; without recomputation one unit
    # at a time is in use. The head's is gathered ahead of its use and kept to its backward.
    again = job.recomputed_layers > 0
    at_work = e * shapes.block_gathered_elements + rounded if again else in_a_pass
    if again and job.overlap.across_blocks:
        at_work += ahead
    at_head = e * head + max(ahead, travelling * head if both else 0)
    return float(e * cached + max(at_work, in_a_pass, at_head))


def _in_a_turn(job: FourDJob, shapes: Shapes) -> bool:
    """Tell whether a half comes past two linears before the other has its turn: where nothing is reduced over x."""
    return job.overlap.halves and shapes.grid.x == 1 and job.gather_unit == "linear"


def _at_once(job: FourDJob, shapes: Shapes) -> int:
    """Count the elements of weights in use at once in a pass: those of a unit, or of a half's turn."""
    if not _in_a_turn(job, shapes):
        return shapes.largest_unit_elements
    qkv, projection, up, down = (linear.gathered_elements for linear in shapes.block_linears(0))
    return max(qkv + projection, up + down)


def buffer_bytes(job: FourDJob, shapes: Shapes) -> float:
    """Gradients in compute precision that are on their way to the fp32 sums: partial ones in flight over z.

    Where the most reduce-scatters are in flight one more gradient is there, whose own is to start. Without z each
    weight's is added as soon as it is there; in fp32 the product itself adds to the sum.
    """
    e = job.element_bytes
    if job.lora is not None:
        return float(e * max(each.elements for each in Trained(job, shapes).adapters)) if e < FP32_BYTES else 0.0
    if shapes.grid.z > 1:
        return float(_most_in_flight(job, shapes))
    if e >= FP32_BYTES:
        return 0.0
    return float(e * max(linear.gathered_elements for linear in (*shapes.block_linears(0), shapes.head)))


def _most_in_flight(job: FourDJob, shapes: Shapes) -> int:
    """Bytes of the largest partial gradients that are there at once: those in flight, and the next as it is made ready.

    That one is copied where a unit puts several weights' into one buffer, and again where it is widened.
    """
    e, travelling = job.element_bytes, job.scatter_element_bytes
    units = shapes.gather_units(shapes.block_linears(0))[::-1]
    several = job.scatters_in_flight + 1 + _in_a_turn(job, shapes)  # laid down, until the second half adds to it
    blocks = min(job.model.layers, -(-several // len(units)) + 1)  # blocks are alike
    sent = [shapes.head_unit, *blocks * units]
    sizes = [unit.gathered_elements for unit in sent]
    return max(
        travelling * sum(sizes[max(0, i + 1 - several) : i + 1])
        + e * sizes[i] * ((travelling > e) + (len(unit.linears) > 1))
        for i, unit in enumerate(sent)
    )
