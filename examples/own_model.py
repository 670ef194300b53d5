"""A model of your own, trained on a grid of ranks: a character model, a residual MLP.

    torchrun --nproc-per-node 4 examples/own_model.py
    python examples/own_model.py                        (one rank; the losses are the same)

It learns to continue the text of a module of the standard library from the last 16 characters.
`Characters` is plain PyTorch; what parallel training adds to `main` is marked with an arrow.
"""

from __future__ import annotations

import argparse
import logging
import os
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch import nn

from runtime import auto_parallelize
from runtime.launch.environment import from_environment
from runtime.launch.meeting import choose_device, join, open_store, set_threads
from twin.strategies.four_d.grid import Grid

WINDOW, ROWS, STEPS = 16, 240, 120


class Characters(nn.Module):
    """The next character from the last `WINDOW` ones."""

    def __init__(self, vocabulary: int, width: int = 128, blocks: int = 3) -> None:
        super().__init__()
        self.table = nn.Embedding(vocabulary, 24)
        self.enter = nn.Linear(24 * WINDOW, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))
            for _ in range(blocks)
        )
        self.head = nn.Linear(width, vocabulary)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map (rows, WINDOW) characters to (rows, vocabulary) logits."""
        x = self.enter(self.table(tokens).flatten(1))
        for block in self.blocks:
            x = x + block(x)
        logits: torch.Tensor = self.head(x)
        return logits


def grid_of(ranks: int) -> Grid:
    """Cut features over x by 2 and the weights over z by 2, as far as the ranks go."""
    x = 2 if ranks % 2 == 0 else 1
    z = 2 if ranks % (2 * x) == 0 else 1
    return Grid(data=ranks // x // z, z=z, x=x)


def main() -> None:
    """Train, and print the losses on rank 0."""
    logging.basicConfig(format="%(message)s")
    process = from_environment(os.environ)
    device = choose_device("auto", process)
    set_threads(process, None)
    if process.ranks > 1:
        join(process, open_store(process, 60), device, 60)

    text = Path(argparse.__file__).read_text(encoding="utf-8")
    letters = sorted(set(text))
    corpus = torch.tensor([letters.index(letter) for letter in text], device=device)

    torch.manual_seed(1)  # the same on every rank
    with auto_parallelize(grid_of(process.ranks)) as parallel:  # <- the model is made inside
        model = Characters(len(letters)).to(device)
    decayed = [p for p in model.parameters() if parallel.decays(p)]  # <- instead of p.ndim >= 2
    others = [p for p in model.parameters() if not parallel.decays(p)]
    optimizer = torch.optim.AdamW([{"params": decayed}, {"params": others, "weight_decay": 0.0}], lr=2e-3)

    order = torch.Generator().manual_seed(2)
    for step in range(STEPS):
        starts = torch.randint(len(text) - WINDOW, (ROWS,), generator=order).to(device)
        starts = parallel.part(starts)  # <- this replica's rows of the global batch
        windows = corpus[starts[:, None] + torch.arange(WINDOW + 1, device=device)]
        loss = nn.functional.cross_entropy(model(windows[:, :-1]), windows[:, -1])
        optimizer.zero_grad()
        loss.backward()
        parallel.reduce_gradients()  # <- the mean over all rows
        norm = parallel.clip_grad_norm_(1.0)  # <- of the full gradient
        optimizer.step()
        if step % 20 == 0 or step == STEPS - 1:
            mean = parallel.mean(loss)  # <- of all replicas; every rank calls it
            if process.rank == 0:
                sys.stdout.write(f"step {step:3}  loss {mean:.4f}  gradient norm {norm:.4f}\n")

    sys.stdout.flush()
    if process.ranks > 1:
        dist.barrier()
        os._exit(0)  # gloo's threads may abort a process that ends in the ordinary way


if __name__ == "__main__":
    main()
