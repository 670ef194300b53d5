"""Sizes that every strategy has in common: what AdamW in mixed precision keeps and moves."""

from collections.abc import Collection

from twin.description.job import Job

FP32_BYTES = 4
MOMENTS_BYTES = 8
"""Of an element: two moments of AdamW."""
OPTIMIZER_BYTES = FP32_BYTES + MOMENTS_BYTES
"""Of an element: fp32 master weight and two moments."""
ADAM_BYTES_PER_ELEMENT = 28
"""Read gradient, master weight and two moments; write the last three, all fp32."""


def optimizer_bytes(element_bytes: int) -> int:
    """Return what AdamW keeps of an element beside what layers compute with: in fp32 that is the master weight."""
    return OPTIMIZER_BYTES if element_bytes < FP32_BYTES else MOMENTS_BYTES


def block_flops(job: Job, but: Collection[str] = ()) -> float:
    """Return the flops of a block's forward pass over a step's tokens, of all ranks; without some of its linears."""
    model = job.model
    products = 0.0
    for name, (n, k) in model.block_linears.items():
        if name not in but:
            products += 2.0 * (n * k + (0 if job.lora is None else sum(job.lora.elements(model, name))))
    return job.tokens_per_step * (products + 4.0 * model.sequence * model.qkv_parts[0])


def accumulated_bytes(elements: int, reduce_bytes: int, *, first: bool) -> float:
    """Bytes that FSDP2 moves to add what a reduction brought to its sums, in fp32; the first time it only writes them.

    What came in fewer bytes a number is widened in a pass of its own.
    """
    widened = reduce_bytes + FP32_BYTES if reduce_bytes < FP32_BYTES else 0
    return float(elements * (widened + FP32_BYTES * (2 if first else 3)))
