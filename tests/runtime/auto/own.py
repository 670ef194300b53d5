"""A model of a user's own, serial and on a grid, with everything that does not divide."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from runtime.auto import Parallel, auto_parallelize
from twin.strategies.four_d.grid import Grid

ROWS, LENGTH, VOCABULARY, HIDDEN, CLASSES, STEPS = 8, 5, 12, 16, 7, 4


class Own(nn.Module):
    """Layers declared in another order than they run, of sizes that divide and do not."""

    def __init__(self, recompute: str = "") -> None:
        super().__init__()
        self.recompute = recompute
        self.output = nn.Linear(24, CLASSES)  # 7 rows: stays serial on some grids
        self.embedding = nn.Embedding(VOCABULARY, HIDDEN, padding_idx=0)
        self.tied = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        self.tied.weight = self.embedding.weight
        self.attention = nn.MultiheadAttention(HIDDEN, 2, batch_first=True)
        self.norm = nn.LayerNorm(HIDDEN)
        template = nn.Sequential(nn.Linear(HIDDEN, 32), nn.GELU(), nn.Linear(32, HIDDEN, bias=False))
        self.blocks = nn.ModuleList(copy.deepcopy(template) for _ in range(2))  # no hook sees copies
        self.odd = nn.Linear(9, 15)
        self.twice = nn.Linear(HIDDEN, HIDDEN)
        self.never = nn.Linear(HIDDEN, HIDDEN)
        self.frozen = nn.Linear(HIDDEN, HIDDEN).requires_grad_(False)
        self.join = nn.Linear(HIDDEN + 15, 24)

    def block(self, index: int, x: torch.Tensor) -> torch.Tensor:
        if not self.recompute or not torch.is_grad_enabled():
            return x + self.blocks[index](x)
        reentrant = self.recompute == "reentrant"
        return x + checkpoint(self.blocks[index], x, use_reentrant=reentrant)

    def forward(self, tokens: torch.Tensor, features: torch.Tensor) -> tuple[torch.Tensor, ...]:
        x = self.embedding(tokens)
        x = x + self.attention(self.norm(x), x, x, need_weights=False)[0]
        for index in (1, 0):
            x = self.block(index, x)
        x = self.twice(functional.gelu(self.twice(x)))
        x = self.frozen(x)
        words = self.tied(x)
        joined = torch.cat((x.mean(1), self.odd(features)), -1)
        return self.output(functional.relu(self.join(joined))), words


def make(seed: int = 5, **options: Any) -> Own:
    torch.manual_seed(seed)
    torch.set_default_dtype(torch.float64)
    try:
        return Own(**options)
    finally:
        torch.set_default_dtype(torch.float32)


def batches() -> list[dict[str, torch.Tensor]]:
    """Global batches of all steps."""
    generator = torch.Generator().manual_seed(11)

    def one() -> dict[str, torch.Tensor]:
        return {
            "tokens": torch.randint(0, VOCABULARY, (ROWS, LENGTH), generator=generator),
            "features": torch.randn(ROWS, 9, generator=generator, dtype=torch.float64),
            "classes": torch.randint(0, CLASSES, (ROWS,), generator=generator),
        }

    return [one() for _ in range(STEPS)]


def loss_of(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    classes, words = model(batch["tokens"], batch["features"])
    found = functional.cross_entropy(classes, batch["classes"])
    return found + 0.3 * functional.cross_entropy(words.flatten(0, 1), batch["tokens"].flatten())


def optimizer_of(decayed: list[nn.Parameter], others: list[nn.Parameter]) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        [{"params": decayed, "weight_decay": 0.1}, {"params": others, "weight_decay": 0.0}], lr=3e-3
    )


Outcome = tuple[list[float], list[float], dict[str, Any]]


def train_serial() -> Outcome:
    """Plain PyTorch, nothing of the runtime."""
    model = make()
    parameters = list(model.parameters())
    optimizer = optimizer_of([p for p in parameters if p.ndim >= 2], [p for p in parameters if p.ndim < 2])
    losses, norms = [], []
    for batch in batches():
        optimizer.zero_grad()
        loss = loss_of(model, batch)
        loss.backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.7)))
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses, norms, {n: t.numpy() for n, t in model.state_dict().items()}


def micro_batches(batch: dict[str, torch.Tensor], count: int) -> list[dict[str, torch.Tensor]]:
    parts = {name: tensor.chunk(count) for name, tensor in batch.items()}
    return [{name: parts[name][i] for name in parts} for i in range(count)]


def train(
    worker: Any, grid: dict[str, int], micro_steps: int = 1, recompute: str = "", peek: bool = False, **options: Any
) -> tuple[Outcome, list[str]]:
    """Train on a grid as the documentation says; `peek` evaluates between steps.

    Also returns which layers were cut.
    """
    with auto_parallelize(worker.mesh(Grid(**grid)), **options) as parallel:
        model = make(recompute=recompute)
    return run(parallel, model, micro_steps, peek), list(parallel.layers)


def run(parallel: Parallel, model: nn.Module, micro_steps: int = 1, peek: bool = False) -> Outcome:
    parameters = list(model.parameters())
    optimizer = optimizer_of(
        [p for p in parameters if parallel.decays(p)], [p for p in parameters if not parallel.decays(p)]
    )
    losses, norms = [], []
    for batch in parallel.local(batches()):
        optimizer.zero_grad()
        if peek:
            model.eval()
            with torch.no_grad():
                seen = loss_of(model, batch)
            model.train()
        total = torch.zeros((), dtype=torch.float64)
        for micro in micro_batches(batch, micro_steps):
            loss = loss_of(model, micro) / micro_steps
            loss.backward()
            total += loss.detach()
        if peek:
            torch.testing.assert_close(seen, total, rtol=1e-9, atol=0)
        parallel.reduce_gradients()
        norms.append(float(parallel.clip_grad_norm_(0.7)))
        optimizer.step()
        losses.append(float(parallel.mean(total)))
    return losses, norms, {n: t.numpy() for n, t in parallel.full_state_dict(model).items()}
