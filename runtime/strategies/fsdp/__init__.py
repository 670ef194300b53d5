"""Sharded data parallelism on PyTorch's FSDP2: a plain model, cut unit by unit over all ranks, or HSDP.

* `assembly`: makes the model of a job on a rank; `trainee`: one training step.
* `runtime.sharded`: what travels together, and FSDP2's calls by the named collectives.
* `refusals`: what a job may ask of the twin that PyTorch does not do.
"""

from runtime.strategies.fsdp.refusals import refusals

__all__ = ["RECORDED_ON", "refusals"]

RECORDED_ON = "fake"
"""FSDP2 knows no meta device, but makes do with tensors of the CPU that have no memory."""
