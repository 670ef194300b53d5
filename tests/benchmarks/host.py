"""Host time per block: one rank of 4D against a plain PyTorch loop, with tensors so small that they take no time.

    python -m tests.benchmarks.host [--rounds N] [--device cuda] [--json] [--out FILE.json]

A block's share is the difference between models of many blocks and of few, by their number: forward, backward,
recomputation, clipping, update. All take turns in one process, so that a busy machine disturbs all alike. The plain
loop computes in bf16 under autocast and recomputes with `torch.utils.checkpoint`, as its documents do. On a GPU the
host is what such models wait for.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import json
import os
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.benchmarks.processes import machine

FEW, MANY = 4, 16
HIDDEN, HEADS, SEQUENCE, VOCABULARY = 32, 4, 16, 64
STEPS, WARM_UP = 12, 3
CASES: dict[str, tuple[str, bool]] = {
    "fp32": ("fp32", False),
    "fp32, recomputed": ("fp32", True),
    "bf16": ("bf16", False),
    "bf16, recomputed": ("bf16", True),
}
PLAIN = "plain loop"
OURS = "four_d"
Step = Callable[[int], Any]


def ours(precision: str, recompute: bool, layers: int, device: str) -> Step:
    """Make a function that trains step i on one rank of a 4D grid."""
    import torch

    from runtime.parallel.mesh import Mesh
    from runtime.step.trainee import MicroBatch
    from runtime.strategies import ranks_of, trains
    from twin.description.train import Adam
    from twin.strategies import load_job

    shape = {"layers": layers, "hidden": HIDDEN, "heads": HEADS, "sequence": SEQUENCE, "vocabulary": VOCABULARY}
    job = load_job(
        {
            "model": shape | {"biases": False},
            "machine": "laptop",
            "ranks": 1,
            "grid": dict.fromkeys(("data", "z", "y", "x"), 1),
            "precision": precision,
            "recompute": recompute,
            "batch": {"sequences": 1, "micro_sequences": 1},
        }
    )
    where = torch.device(device)
    trainee = trains(job)(job, Mesh.create(ranks_of(job), timeout_seconds=60.0), where, Adam())
    tokens = torch.randint(0, VOCABULARY, (1, SEQUENCE + 1), generator=torch.Generator().manual_seed(0)).to(where)
    weights = torch.full((1, SEQUENCE), 1.0 / SEQUENCE, device=where)
    batch = [MicroBatch(0, tokens[:, :-1], tokens[:, 1:], weights)]
    return lambda _index: float(trainee.step(batch, 3e-4).loss)


def plain(precision: str, recompute: bool, layers: int, device: str) -> Step:
    """Make a function that trains step i as a plain loop does."""
    import torch
    from torch import nn
    from torch.utils.checkpoint import checkpoint

    from tests.benchmarks import peers

    class Plain(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens, self.positions = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(SEQUENCE, HIDDEN)
            self.blocks = nn.ModuleList(peers.Block(HIDDEN, HEADS) for _ in range(layers))
            self.norm, self.head = nn.LayerNorm(HIDDEN, bias=False), nn.Linear(HIDDEN, VOCABULARY, bias=False)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1], device=x.device))
            for block in self.blocks:
                x = checkpoint(block, x, use_reentrant=False) if recompute else block(x)
            logits: torch.Tensor = self.head(self.norm(x))
            return logits

    torch.manual_seed(0)
    model = Plain().to(device)
    groups = peers.grouped(model)
    adam = peers.adam_of(groups)
    tokens = torch.randint(0, VOCABULARY, (1, SEQUENCE + 1), device=device)
    inputs, targets = tokens[:, :-1], tokens[:, 1:]

    def step(_index: int) -> float:
        narrow = torch.autocast(device, torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
        with narrow:
            loss = peers.mean_loss(model(inputs), targets)
        loss.backward()
        peers.clip(list(groups.values()))
        adam.step()
        adam.zero_grad()
        return float(loss.detach())

    return step


def per_block(steps: dict[str, dict[int, Step]], rounds: int) -> dict[str, tuple[float, float]]:
    """Time all in turn; seconds that a block adds to a step of each, at best and in the median."""
    taken: dict[str, dict[int, list[float]]] = {name: {layers: [] for layers in of} for name, of in steps.items()}
    for round_ in range(rounds + 1):
        for name, of in steps.items():
            for layers, step in of.items():
                for index in range(WARM_UP if round_ == 0 else STEPS):
                    begin = time.perf_counter()
                    step(index)
                    if round_:
                        taken[name][layers].append(time.perf_counter() - begin)
    found = {}
    for name, of_layers in taken.items():
        best, median = (
            (pick(of_layers[MANY]) - pick(of_layers[FEW])) / (MANY - FEW) for pick in (min, statistics.median)
        )
        found[name] = (best, median)
    return found


def main() -> None:
    """Measure all cases and print a table."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--rounds", type=int, default=8, help=f"of {STEPS} steps of each")
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options.add_argument("--json", action="store_true")
    options.add_argument("--out", type=Path)
    chosen = options.parse_args()
    import torch

    torch.set_num_threads(1)
    load = os.getloadavg()[0]
    answer: dict[str, dict[str, tuple[float, float]]] = {}
    for case, (precision, recompute) in CASES.items():
        makers = {PLAIN: plain, OURS: ours}
        steps = {
            name: {n: make(precision, recompute, n, chosen.device) for n in (FEW, MANY)}
            for name, make in makers.items()
        }
        answer[case] = per_block(steps, chosen.rounds)
    if chosen.out:
        found = {
            "machine": f"{machine()}, PyTorch {torch.__version__}, on {chosen.device}",
            "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
            "load": round(load, 1),
            "cases": answer,
        }
        chosen.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    if chosen.json:
        print(json.dumps(answer, indent=1))
        return
    print(f"| host time of a block, µs: best (median) | {PLAIN} | {OURS} | ratio |\n|---|---|---|---|")
    for case, found in answer.items():
        cells = [f"{best * 1e6:.0f} ({median * 1e6:.0f})" for best, median in found.values()]
        best, median = (own / other for own, other in zip(found[OURS], found[PLAIN], strict=True))
        print(f"| {case} | {' | '.join(cells)} | {best:.2f} ({median:.2f}) |")


if __name__ == "__main__":
    main()
