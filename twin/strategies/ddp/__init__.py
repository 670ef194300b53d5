"""Plain data parallelism: a serial model on every rank, gradients reduced in buckets beside the backward pass."""

from twin.strategies.ddp.strategy import Ddp

STRATEGY = Ddp()

__all__ = ["STRATEGY", "Ddp"]
