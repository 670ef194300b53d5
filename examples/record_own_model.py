"""The schedule of a model of your own on 4,096 GPUs, recorded on this machine and simulated.

    python examples/record_own_model.py own.json.gz
    fourfold simulate --schedule own.json.gz --machine frontier

`build` is what a training script does, without data: make the model under `auto_parallelize`, and
return one step. Nothing is allocated: tensors have shapes only.
"""

from __future__ import annotations

import sys
from pathlib import Path

import torch
from torch import nn

from runtime import auto_parallelize
from runtime.auto import Parallel
from runtime.parallel.mesh import Mesh
from runtime.recorder import record_step
from runtime.recorder.own import Step
from twin.schedule.recording import write_recording
from twin.strategies.four_d.grid import Grid

GRID = Grid(data=64, z=8, y=2, x=4)
RANK, ROWS, WIDTH, BLOCKS = 1234, 4096, 8192, 24


class Residual(nn.Module):
    """Blocks of two linears beside a residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
            for _ in range(BLOCKS)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Map (rows, WIDTH) to (rows, WIDTH)."""
        for block in self.blocks:
            x = x + block(x)
        return x


def build(mesh: Mesh) -> tuple[Parallel, Step]:
    """Make the model and its training step; `ROWS` are those of one replica."""
    with auto_parallelize(mesh) as parallel:
        model = Residual()
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    inputs = torch.randn(ROWS, WIDTH)

    def step() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16):
            model(inputs).square().mean().backward()
        parallel.reduce_gradients()
        parallel.clip_grad_norm_(1.0)
        optimizer.step()

    return parallel, step


if __name__ == "__main__":
    path = Path(sys.argv[1] if len(sys.argv) > 1 else "own.json.gz")
    recording = record_step(GRID, RANK, build)
    write_recording(path, recording, overwrite=True)
    sys.stdout.write(f"{len(recording.schedule.ops)} ops of rank {RANK} of {GRID} written to {path}\n")
