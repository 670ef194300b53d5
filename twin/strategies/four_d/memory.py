"""Memory of one rank of a 4D grid, by category.

Letters: m tokens of a micro-step, e bytes of a number in compute precision. Parameters are
kept as one e-byte copy for compute, an fp32 gradient sum, and the optimizer's fp32 master
weight and two moments.
"""

from __future__ import annotations

from twin.strategies.activations import block_activation_bytes
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.shapes import Shapes
from twin.strategies.sizes import FP32_BYTES, OPTIMIZER_BYTES


def memory_by_category(job: FourDJob) -> dict[str, float]:
    """Count the peak bytes of one rank."""
    shapes = Shapes(job)
    e = job.element_bytes
    elements = shapes.local_elements
    parts = job.concrete_grid.data if job.data_reduction.mode == "sharded" else 1
    own = -(-elements // parts)
    return {
        "weights": float(e * elements) if e < FP32_BYTES else 0.0,  # fp32 computes on the master
        "gradients": float(FP32_BYTES * (elements + (own if parts > 1 else 0))),
        "optimizer": float(OPTIMIZER_BYTES * own),
        "activations": activation_bytes(job, shapes),
        "gathered weights": gathered_bytes(job, shapes),
        "buffers": buffer_bytes(job, shapes),
    }


def block_bytes(job: FourDJob, shapes: Shapes) -> float:
    """What one block's backward pass needs of its forward pass on one rank."""
    return block_activation_bytes(
        job,
        tokens=shapes.tokens,
        sequences=shapes.sequences,
        heads=shapes.heads_y,
        residual_width=shapes.hidden_x,
        mlp_up_width=shapes.mlp_up_y,
        mlp_width=shapes.mlp_y,
    )


def activation_bytes(job: FourDJob, shapes: Shapes) -> float:
    """Saved activations of all blocks plus the working set of one block or of the loss."""
    m, e = shapes.tokens, job.element_bytes
    block = block_bytes(job, shapes)
    residual = float(e * m * shapes.hidden_x)
    kept = job.model.layers * (residual if job.recompute else block)
    gradients = e * m * (2 * shapes.hidden_x + shapes.mlp_up_y + shapes.mlp_y)
    block_working = (block if job.recompute else 0.0) + gradients
    logits = float(m * shapes.vocabulary_y * (2 * e + 2 * FP32_BYTES))
    return kept + max(block_working, logits)


def gathered_bytes(job: FourDJob, shapes: Shapes) -> float:
    """Weights gathered over z: cached blocks, the block at work, and the prefetched units."""
    if shapes.grid.z == 1:
        return 0.0
    cached = min(job.cache_gathered_layers, job.model.layers) * shapes.block_gathered_elements
    largest = shapes.largest_unit_elements
    ahead = (job.overlap.prefetch_depth if job.overlap.all_gather else 0) * largest
    # The recomputed block keeps its four weights for its backward; without recomputation one unit
    # at a time is in use. The head's is gathered ahead of its use and kept to its backward.
    at_work = shapes.block_gathered_elements if job.recompute else largest + ahead
    head = shapes.head.gathered_elements + ahead
    return float(job.element_bytes * (cached + max(at_work, largest + ahead, head)))


def buffer_bytes(job: FourDJob, shapes: Shapes) -> float:
    """Gradients in compute precision: partial ones in flight over z, and all finished ones.

    Where the most reduce-scatters are in flight one more gradient is there, whose own is to start.
    """
    e = job.element_bytes
    finished = e * shapes.local_elements
    if shapes.grid.z == 1:
        return float(finished)
    return float(finished + e * _most_in_flight(job, shapes))


def _most_in_flight(job: FourDJob, shapes: Shapes) -> int:
    """Elements of the largest partial gradients that are there at once."""
    units = shapes.gather_units(shapes.block_linears(0))[::-1]
    several = job.scatters_in_flight + 1
    blocks = min(job.model.layers, -(-several // len(units)) + 1)  # blocks are alike
    sizes = [shapes.head.gathered_elements] + blocks * [unit.gathered_elements for unit in units]
    return max(sum(sizes[i : i + several]) for i in range(len(sizes)))
