"""Fabric programs that a grid of ranks and one rank of Lightning's own strategy run alike."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from twin.strategies.four_d.grid import Grid

if TYPE_CHECKING:
    from lightning_fabric import Fabric

Weights = dict[str, Any]
ROWS = 8


def linears(*widths: int) -> nn.Sequential:
    return nn.Sequential(
        *(part for n, m in pairwise(widths) for part in (nn.Linear(n, m, dtype=torch.float64), nn.Tanh()))
    )


class Program:
    """A generator (16 → 8 → 8) and a discriminator (8 → 8 → 4), made in two blocks or in one."""

    def __init__(self, fabric: Fabric, replica: int, replicas: int, *, blocks: int = 2) -> None:
        self.fabric, self.replica, self.replicas = fabric, replica, replicas
        torch.manual_seed(1)
        with fabric.init_module():
            models = [linears(16, 8, 8)]
            if blocks == 1:
                models.append(linears(8, 8, 4))
        if blocks == 2:
            with fabric.init_module():
                models.append(linears(8, 8, 4))
        self.models = models
        made = [fabric.setup(model, torch.optim.SGD(model.parameters(), lr=0.5)) for model in models]
        (self.one, self.one_optimizer), (self.other, self.other_optimizer) = made

    def backward(self, factor: float = 1.0) -> Any:
        """Go backward from the mean over this replica's rows, whose errors differ widely."""
        generator = torch.Generator().manual_seed(3)
        x = torch.randn(ROWS, 16, generator=generator, dtype=torch.float64)
        y = 30 * torch.randn(ROWS, 4, generator=generator, dtype=torch.float64)
        mine = slice(self.replica * ROWS // self.replicas, (self.replica + 1) * ROWS // self.replicas)
        loss = (self.other(self.one(factor * x[mine])) - y[mine]).square().mean()
        self.fabric.backward(loss)
        return loss

    def step(self) -> None:
        for optimizer in (self.one_optimizer, self.other_optimizer):
            optimizer.step()
            optimizer.zero_grad()

    def weights(self) -> Weights:
        found = [self.fabric.strategy.get_module_state_dict(model) for model in self.models]
        return {f"{i}.{name}": t.detach().clone().numpy() for i, state in enumerate(found) for name, t in state.items()}


def clipped_by_value(program: Program) -> Weights:
    program.backward()
    program.fabric.clip_gradients(program.one, program.one_optimizer, clip_val=0.1)
    program.fabric.clip_gradients(program.other, program.other_optimizer, clip_val=0.2)
    program.step()
    return program.weights()


def clipped_one(program: Program) -> Weights:
    """Clip the first model alone, by its own norm."""
    program.backward()
    norm = program.fabric.clip_gradients(program.one, program.one_optimizer, max_norm=0.3)
    program.step()
    return {"norm": norm.detach().numpy(), **program.weights()}


def trained(program: Program) -> Weights:
    for step in range(2):
        program.backward(1.0 + step)
        program.step()
    return program.weights()


def accumulated(program: Program) -> Weights:
    """Update the first model three times, the other one once by the sum of all."""
    for step in range(3):
        program.one_optimizer.zero_grad()
        program.backward(1.0 + step)
        program.one_optimizer.step()
    program.other_optimizer.step()
    return program.weights()


def by_closures(program: Program) -> Weights:
    """The optimizer itself asks for the backward pass."""
    program.one_optimizer.step(program.backward)
    return program.weights()


def not_finite(program: Program) -> Weights:
    program.backward(math.nan)
    try:
        program.fabric.clip_gradients(program.one, program.one_optimizer, max_norm=1.0)
    except RuntimeError:
        raised = True
    else:
        raised = False
    norm = program.fabric.clip_gradients(program.one, program.one_optimizer, max_norm=1.0, error_if_nonfinite=False)
    return {"raised": raised, "norm": norm.detach().numpy()}


PROGRAMS: tuple[Callable[[Program], Weights], ...] = (
    clipped_by_value,
    clipped_one,
    trained,
    accumulated,
    by_closures,
    not_finite,
)


def outcomes(fabric: Fabric, replica: int = 0, replicas: int = 1) -> dict[str, Weights]:
    """Run every program, with models of two blocks and of one."""
    return {
        f"{program.__name__}, {blocks}": program(Program(fabric, replica, replicas, blocks=blocks))
        for program in PROGRAMS
        for blocks in (2, 1)
    }


def on_a_grid(worker: Any, grid: dict[str, int]) -> dict[str, Weights]:
    from lightning_fabric import Fabric

    from runtime.auto.fabric import FabricStrategy

    mesh = worker.mesh(Grid(**grid))
    fabric = Fabric(accelerator="cpu", devices=1, strategy=FabricStrategy(mesh))
    fabric.launch()
    return outcomes(fabric, mesh.replica, mesh.grid.replicas)
