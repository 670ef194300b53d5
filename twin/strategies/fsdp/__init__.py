"""Sharded data parallelism: FSDP, HSDP, ZeRO-1 to 3, ZeRO++, as PyTorch and DeepSpeed do them."""

from twin.strategies.fsdp.strategy import Fsdp

STRATEGY = Fsdp()

__all__ = ["STRATEGY", "Fsdp"]
