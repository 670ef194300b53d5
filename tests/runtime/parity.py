"""One training run of a grid, to be compared with the serial model."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from runtime.data.goldfish import Goldfish
from runtime.step.trainee import MicroBatch
from runtime.strategies.four_d.assembly import trainee_in
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.trainee import FourDTrainee
from runtime.weights.store import ParameterStore
from twin.description.job import Job
from twin.description.train import Adam
from twin.strategies import load_job
from twin.strategies.four_d.grid import Grid

MODEL = {"layers": 2, "hidden": 64, "heads": 8, "sequence": 8, "vocabulary": 40}
SEQUENCES, STEPS = 16, 5
RATES = [2e-4, 6e-4, 1e-3, 8e-4, 4e-4]
GOLDFISH = Goldfish(k=3, h=3)
Pieces = dict[str, list[tuple[tuple[int, ...], np.ndarray]]]


def describe(grid: dict[str, int], **options: Any) -> Job:
    """The job of a case."""
    ranks = int(np.prod(list(grid.values())))
    options = {"model": MODEL, "machine": "laptop", "precision": "fp32", "recompute": False, **options}
    micro = SEQUENCES // (grid["data"] * grid["z"] * options.pop("micro_steps", 2))
    options["batch"] = {"sequences": SEQUENCES, "micro_sequences": micro}
    options["machine"] = {"extends": "laptop", "nodes": 8}
    return load_job({"ranks": ranks, "grid": grid, **options})


def windows(vocabulary: int = MODEL["vocabulary"]) -> list[torch.Tensor]:
    """The global batches (sequences, s + 1) of all steps."""
    generator = torch.Generator().manual_seed(7)
    shape = (STEPS, SEQUENCES, MODEL["sequence"] + 1)
    return list(torch.randint(0, vocabulary, shape, generator=generator))


def masks(goldfish: bool) -> list[torch.Tensor]:
    """Which targets count, for all steps."""
    if not goldfish:
        return [torch.ones(SEQUENCES, MODEL["sequence"]) for _ in range(STEPS)]
    return [GOLDFISH.keeps(window).float() for window in windows()]


def begins() -> list[torch.Tensor]:
    """Where each input's document begins, (sequences, s), for all steps: about every third token begins one."""
    generator = torch.Generator().manual_seed(11)
    shape = (SEQUENCES, MODEL["sequence"])
    places = torch.arange(MODEL["sequence"])
    return [torch.where(torch.rand(shape, generator=generator) < 0.3, places, 0).cummax(1).values for _ in range(STEPS)]


def build(job: Job, mesh: Any, dtype: torch.dtype) -> FourDTrainee:
    """Make model and optimizer of one rank."""
    master = torch.float32 if dtype == torch.bfloat16 else dtype
    context = FourDContext(job, mesh, torch.device("cpu"), dtype, master)
    return trainee_in(context, Adam())


def weights_of(store: ParameterStore) -> list[tuple[int, int, torch.Tensor]]:
    """The exact weights that this rank holds after a step: where they lie in the flat buffers, and they.

    Those of the other replicas' parts of several buckets come with the next step only.
    """
    if store.rounds or len(store.buckets) > 1:
        return [(place.start, place.stop, store.master_of(place)) for place in store.owned.ranges]
    return [(0, len(store.compute), store.compute)]


def pieces(trainee: FourDTrainee) -> Pieces:
    """The rectangles of full parameters that this rank holds."""
    store = trainee.context.store
    found: Pieces = {name: [] for name in store.parameters}
    for first, last, flat in weights_of(store):
        for name, parameter in store.parameters.items():
            begin, end = max(0, first - parameter.start), min(parameter.shard.stored, last - parameter.start)
            place = parameter.start + begin - first
            found[name] += [
                (r.offsets, flat[place + r.first :][: r.count].view(r.sizes).numpy().copy())
                for r in (parameter.shard.rectangles(begin, end) if begin < end else ())
            ]
    return found


def run(
    worker: Any, grid: dict[str, int], dtype: str, goldfish: bool = False, steps: int = STEPS, **options: Any
) -> tuple[list[float], list[float], Pieces]:
    """Train; returns losses, gradient norms, and this rank's pieces of the parameters."""
    job = describe(grid, **options)
    mesh = worker.mesh(Grid(**grid))
    trainee = build(job, mesh, getattr(torch, dtype))
    local = SEQUENCES // (job.concrete_grid.data * job.concrete_grid.z)
    size = job.concrete_micro_sequences
    losses, norms = [], []
    for step in range(steps):
        window, mask = windows(job.model.vocabulary)[step], masks(goldfish)[step]
        mask = mask.to(trainee.context.master_type)
        weights = mask / mask.sum()
        first = mesh.replica * local
        documents = begins()[step] if job.document_mask else None
        batch = [
            MicroBatch(
                step * SEQUENCES + i,
                window[i : i + size, :-1],
                window[i : i + size, 1:],
                weights[i : i + size],
                None if documents is None else documents[i : i + size],
            )
            for i in range(first, first + local, size)
        ]
        figures = trainee.step(batch, RATES[step])
        losses.append(figures.loss.item())
        norms.append(figures.gradient_norm.item())
    return losses, norms, pieces(trainee)
