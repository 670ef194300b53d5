"""Tensor × pipeline × context × data parallelism, as Megatron-LM and DeepSpeed do it."""

from twin.strategies.megatron.strategy import Megatron

STRATEGY = Megatron()

__all__ = ["STRATEGY", "Megatron"]
