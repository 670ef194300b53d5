"""The 4D algorithm: layers, gathers of weights, reduction of gradients, matrix products.

* `context`, `model`, `layers`: what a rank computes; `gathers`, `reduction`: how weights and gradients travel.
* `trainee`: one training step; `gemm`, `tuning`: how operands of products are stored.
"""

from __future__ import annotations

import torch

from runtime.parallel.mesh import Mesh
from runtime.step.optimizer import FUSED_ADAM, MakeAdam, Optimizer
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.model import GPT
from runtime.strategies.four_d.trainee import FourDTrainee
from twin.description.train import Adam
from twin.strategies.four_d.job import FourDJob

__all__ = ["TRAINED_WITH", "trainee_of"]

TRAINED_WITH = {"recompute_inputs": "device"}
"""Keys of which other values are for simulation."""


def trainee_of(
    job: FourDJob,
    mesh: Mesh,
    device: torch.device,
    settings: Adam,
    *,
    compile_: bool = False,
    initialised: bool = True,
    make_adam: MakeAdam = FUSED_ADAM,
) -> FourDTrainee:
    """Make the model of a job, with its optimizer, on one rank of a 4D mesh."""
    context = FourDContext.of_job(job, mesh, device, compile_=compile_, initialised=initialised)
    model = GPT(context)
    return FourDTrainee(context, model, Optimizer(context, settings, make_adam))
