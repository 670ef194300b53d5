"""Training speed on gloo ranks against PyTorch's own FSDP2, tensor parallelism, both, and DDP.

    python -m tests.benchmarks.train [rounds [part of a title]]

Same model, same batch, same processes; the two are timed in turn, so that a busy machine disturbs both
alike. Prints JSON: tokens/s of each at its best and its median step, and their ratios.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

RANKS, STEPS, WARM_UP = 4, 6, 2
PAIRS = {
    "z=4 against FSDP2": ({"data": 1, "z": 4, "y": 1, "x": 1}, "fsdp"),
    "y=4 against tensor parallelism": ({"data": 1, "z": 1, "y": 4, "x": 1}, "tp"),
    "x=4 against tensor parallelism": ({"data": 1, "z": 1, "y": 1, "x": 4}, "tp"),
    "z=2 y=2 against FSDP2 x TP": ({"data": 1, "z": 2, "y": 2, "x": 1}, "fsdp_tp"),
    "z=2 x=2 against FSDP2 x TP": ({"data": 1, "z": 2, "y": 1, "x": 2}, "fsdp_tp"),
    "data=4 against DDP": ({"data": 4, "z": 1, "y": 1, "x": 1}, "ddp"),
    "one rank against a plain loop": ({"data": 1, "z": 1, "y": 1, "x": 1}, "serial"),
}


def ours(worker: Any, grid: dict[str, int], windows: Any, **options: Any) -> Callable[[int], float]:
    """Make a function that trains on step i with the runtime."""
    import torch

    from runtime.context import Context
    from runtime.model import GPT
    from runtime.optimizer import Optimizer
    from runtime.optimizer_settings import AdamSettings
    from runtime.step import MicroBatch, Trainee
    from tests.benchmarks import peers
    from twin.description.grid import Grid
    from twin.description.load import load_job

    sizes = Grid(**grid)
    local = peers.SEQUENCES // (sizes.data * sizes.z)
    job = load_job({
        "model": {"layers": peers.LAYERS, "hidden": peers.HIDDEN, "heads": peers.HEADS,
                  "sequence": peers.SEQUENCE, "vocabulary": peers.VOCABULARY, "biases": False},
        "machine": "laptop", "ranks": sizes.ranks, "grid": grid, "precision": "fp32",
        "recompute": False, "batch": {"sequences": peers.SEQUENCES, "micro_sequences": local},
        "gather_unit": "block", **options,
    })  # fmt: skip
    mesh = worker.mesh(sizes)
    context = Context.of_job(job, mesh, torch.device("cpu"))
    trainee = Trainee(context, GPT(context), Optimizer(context, AdamSettings()))
    weight = 1.0 / (peers.SEQUENCES * peers.SEQUENCE)

    def step(index: int) -> float:
        window = windows[index % len(windows)][mesh.replica * local : (mesh.replica + 1) * local]
        weights = torch.full_like(window[:, 1:], weight, dtype=torch.float32)
        batch = [MicroBatch(0, window[:, :-1], window[:, 1:], weights)]
        return float(trainee.step(batch, 3e-4).loss)

    return step


def measure(worker: Any, grid: dict[str, int], peer: str, rounds: int) -> dict[str, list[float]]:
    """Time both, in turn; seconds of every step. Runs on every rank."""
    import resource

    import torch
    import torch.distributed as dist

    from tests.benchmarks import peers

    generator = torch.Generator().manual_seed(1)
    shape = (8, peers.SEQUENCES, peers.SEQUENCE + 1)
    windows = torch.randint(0, peers.VOCABULARY, shape, generator=generator)
    alone = peer == "serial"
    contestants = {
        "fourfold": lambda: ours(worker, grid, windows),
        "peer": lambda: peers.trainer(peer, windows),
    }
    steps, seconds, memory = {}, {name: [] for name in contestants}, {}
    for name, make in contestants.items():
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        steps[name] = make()
        losses = [steps[name](i) for i in range(WARM_UP)]
        memory[name] = [resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before, *losses]
    for _ in range(rounds):
        for name, step in steps.items():
            for index in range(STEPS):
                if not alone:
                    dist.barrier()
                begin = time.perf_counter()
                step(index)
                if not alone:
                    dist.barrier()
                seconds[name].append(time.perf_counter() - begin)
    return seconds


def main() -> None:
    from tests.benchmarks import peers
    from tests.runtime.pool import Pool

    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 4
    only = sys.argv[2] if len(sys.argv) > 2 else ""
    tokens, answer = peers.SEQUENCES * peers.SEQUENCE, {}
    pool = Pool(RANKS)
    for title, (grid, peer) in PAIRS.items():
        if only not in title:
            continue
        ranks = 1 if peer == "serial" else RANKS
        found = pool.run(
            "tests.benchmarks.train:measure", ranks, grid=grid, peer=peer, rounds=rounds
        )[0]
        row = {
            f"{name} tokens/s, {how}": round(tokens / pick(times))
            for name, times in found.items()
            for how, pick in (("best", min), ("median", statistics.median))
        }
        for how, pick in (("best", min), ("median", statistics.median)):
            row[f"ratio, {how}"] = round(pick(found["peer"]) / pick(found["fourfold"]), 3)
        answer[title] = row
        print(title, row, file=sys.stderr, flush=True)
    pool.close()
    print(json.dumps(answer, indent=1))


if __name__ == "__main__":
    main()
