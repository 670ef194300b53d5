"""Plain data parallelism on PyTorch's DistributedDataParallel: a serial model on every rank.

* `assembly`: makes the model of a job on a replica; `trainee`: one training step.
"""

__all__ = ["RECORDED_ON"]

RECORDED_ON = "cpu"
"""DDP copies the order of its buckets, which tensors of the meta device do not let it."""
