"""Tensor, pipeline and data parallelism of PyTorch's own pieces, composed as torchtitan composes them.

* `ranks`: who holds what; `layers`, `tensor`: what tensor ranks share; `pipeline`, `messages`: PyTorch's schedules.
* `assembly`: makes the stages of a rank; `gradients`: what becomes of weight gradients; `trainee`: one training step.
* `refusals`: what is simulated only.
"""

from runtime.strategies.megatron.ranks import Ranks
from runtime.strategies.megatron.refusals import refusals

__all__ = ["RECORDED_ON", "TRAINED_WITH", "ranks_of", "refusals"]

TRAINED_WITH = {"flavour": "torch"}
RECORDED_ON = "fake"
"""FSDP2 knows no meta device, but makes do with tensors of the CPU that have no memory."""
ranks_of = Ranks.of
