"""Megatron's tensor, sequence and pipeline parallelism, and DeepSpeed's pipeline."""
