"""A model of your own in Lightning Fabric, on a grid of ranks.

    torchrun --nproc-per-node 4 examples/fabric_model.py
    python examples/fabric_model.py                        (one rank; the losses are the same)

What the grid adds to a Fabric program is marked with an arrow.
"""

from __future__ import annotations

import os
import sys

import torch
from lightning_fabric import Fabric
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from runtime.auto.fabric import FabricStrategy

ROWS, WIDTH, BATCH = 96, 32, 24


def rows() -> TensorDataset:
    """Numbers, and what a fixed map makes of them."""
    generator = torch.Generator().manual_seed(2)
    inputs = torch.randn(ROWS, WIDTH, generator=generator)
    return TensorDataset(inputs, torch.tanh(inputs @ torch.randn(WIDTH, 8, generator=generator) / 4))


def main() -> None:
    """Train, and print the losses on rank 0."""
    ranks = int(os.environ.get("WORLD_SIZE", "1"))
    grid = {1: {}, 2: {"x": 2}, 4: {"z": 2, "x": 2}}[ranks]
    strategy = FabricStrategy(grid)  # <-
    fabric = Fabric(accelerator="cpu", devices=ranks, strategy=strategy)
    fabric.launch()
    fabric.seed_everything(1, verbose=False)
    with fabric.init_module():  # <- linears are cut when it ends
        model = nn.Sequential(nn.Linear(WIDTH, 64), nn.GELU(), nn.LayerNorm(64), nn.Linear(64, 8))
    wrapped, optimizer = fabric.setup(model, torch.optim.AdamW(model.parameters(), lr=1e-2))
    replicas = strategy.parallel.replicas
    loader = fabric.setup_dataloaders(DataLoader(rows(), batch_size=BATCH // replicas))
    for epoch in range(3):
        for inputs, targets in loader:
            optimizer.zero_grad()
            loss = nn.functional.mse_loss(wrapped(inputs), targets)
            fabric.backward(loss)
            fabric.clip_gradients(wrapped, optimizer, max_norm=1.0)
            optimizer.step()
        mean = fabric.all_reduce(loss.detach(), reduce_op="mean")
        if fabric.is_global_zero:
            sys.stdout.write(f"epoch {epoch}: loss of the last batch {mean:.5f}\n")
    if len(sys.argv) > 1:
        fabric.save(sys.argv[1], {"model": wrapped})


if __name__ == "__main__":
    main()
