"""The 4D algorithm: layers, gathers of weights, reduction of gradients, matrix products.

* `context`, `model`, `layers`: what a rank computes; `gathers`, `reduction`: how weights and gradients travel.
* `trainee`: one training step; `gemm`, `tuning`: how operands of products are stored.
"""

from __future__ import annotations

from runtime.step.optimizer import FUSED_ADAM, MakeAdam, Optimizer
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.model import GPT
from runtime.strategies.four_d.trainee import FourDTrainee
from twin.description.train import Adam

__all__ = ["CONTEXT", "TRAINED_WITH", "trainee_in"]

CONTEXT = FourDContext
"""What all of a rank's layers know."""

TRAINED_WITH = {"recompute_inputs": "device"}
"""Keys of which other values are for simulation."""


def trainee_in(context: FourDContext, settings: Adam, make_adam: MakeAdam = FUSED_ADAM) -> FourDTrainee:
    """Make the model of a job, with its optimizer, on one rank of a 4D mesh."""
    return FourDTrainee(context, GPT(context), Optimizer(context, settings, make_adam))
