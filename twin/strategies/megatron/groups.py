"""Who talks with whom: axes of the grid, stages that are neighbours, and the ends of the pipeline.

Neighbours are pairs of ranks. A rank has two, so pairs form several partitions: those that begin at an even stage,
at an odd one, and the pair that closes the ring, over which chunks of interleaving go on.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from twin.description.grid import Mesh
from twin.schedule.communicator import Communicator, Ints, Role
from twin.strategies.megatron.attention import INNER, OUTER
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.place import Neighbour, streams

DATA, EMBEDDING = "data", "pipeline_embedding"
GATHER, SCATTER, REPLICATE = "data_gather", "data_scatter", "data_replicate"
"""Of weights that are cut: who gathers them, who scatters their gradients, who holds the same part."""
BOTH = "data_weights"
"""Who does the first two where one communicator does."""


def gather(job: MegatronJob) -> str:
    """Name the communicator that gathers weights."""
    return BOTH if job.separate_reduction_group is False else GATHER


def scatter(job: MegatronJob) -> str:
    """Name the one that scatters their gradients."""
    return BOTH if job.separate_reduction_group is False else SCATTER


def everyone(job: MegatronJob) -> str:
    """Name the communicator of all ranks, whose time is booked under the outermost axis that is cut."""
    cut = (axis for axis, size in zip(job.mesh.axes, job.mesh.sizes, strict=True) if size > 1)
    return f"{next(cut, job.mesh.axes[-1])}_everyone"


def replica(job: MegatronJob) -> str:
    """Name that of the ranks that hold one copy of the model, by the outer of their two axes that is cut."""
    return f"{'pipeline' if job.concrete_grid.pipeline > 1 else 'tensor'}_model"


def communicators(job: MegatronJob) -> tuple[Communicator, ...]:
    """Return all of them; those of one rank do no harm."""
    mesh = job.mesh
    ranks = np.arange(mesh.ranks, dtype=np.int64).reshape(mesh.sizes)

    def over(name: str, *axes: str) -> Communicator:
        inner = [mesh.axes.index(axis) for axis in mesh.axes if axis in axes]
        outer = [i for i in range(ranks.ndim) if i not in inner]
        size = int(np.prod([mesh.sizes[i] for i in inner]))
        return Communicator.of(name, ranks.transpose([*outer, *inner]).reshape(-1, size))

    found = [
        over("tensor", "tensor"),
        over("context", "context"),
        over(DATA, "data", "context") if job.order != "dualpipe" else _both_directions(ranks, mesh),
        over(replica(job), "pipeline", "tensor"),
        over(everyone(job), *mesh.axes),
    ]
    if 1 < job.traders < job.concrete_grid.context:
        cut = found[1].members.reshape(len(found[1].members), -1, job.traders)
        found.append(Communicator.of(INNER, cut.reshape(-1, job.traders)))
        found.append(Communicator.of(OUTER, cut.transpose(0, 2, 1).reshape(-1, cut.shape[1])))
    if job.weight_parts > 1:
        found += _sharing(job, found[2].members)
    if job.concrete_grid.pipeline == 1:
        return tuple(found)
    stages = [role.ranks for role in roles(job)]
    found.append(Communicator.of(EMBEDDING, np.stack([stages[0], stages[-1]], axis=1)))
    return (*found, *_neighbours(job, stages))


def _sharing(job: MegatronJob, data: Ints) -> Iterator[Communicator]:
    """Those of weights that are cut over parts of data × context ranks; gathers and scatters may have a stream each."""
    parts = job.weight_parts
    cut = data.reshape(len(data), -1, parts)
    for name in dict.fromkeys((gather(job), scatter(job))):
        yield Communicator.of(name, cut.reshape(-1, parts))
    yield Communicator.of(REPLICATE, cut.transpose(0, 2, 1).reshape(-1, cut.shape[1]))


def _both_directions(ranks: Ints, mesh: Mesh) -> Communicator:
    """DualPipe's ranks r and P − 1 − r hold the same two stages: they and their replicas sum gradients."""
    by_stage = ranks.transpose([mesh.axes.index(axis) for axis in ("pipeline", "tensor", "data", "context")])
    pairs = np.concatenate([by_stage, by_stage[::-1]], axis=2)[: len(by_stage) // 2]
    return Communicator.of(DATA, pairs.reshape(-1, pairs.shape[2] * pairs.shape[3]))


def _neighbours(job: MegatronJob, stages: Sequence[Ints]) -> Iterator[Communicator]:
    """Those of messages; one partition serves the streams of both directions."""
    partitions = {neighbour: np.concatenate(pairs) for neighbour, pairs in _pairs(stages) if pairs}
    for stream in streams(job):
        for neighbour, members in partitions.items():
            yield Communicator(f"{stream}_{neighbour}", members, f"pipeline_{neighbour}")


def _pairs(stages: Sequence[Ints]) -> Iterator[tuple[Neighbour, list[Ints]]]:
    last = len(stages) - 1
    by_begin: dict[int, list[Ints]] = {0: [], 1: []}
    for begin in range(last):
        by_begin[begin % 2].append(np.stack([stages[begin], stages[begin + 1]], axis=1))
    yield "even", by_begin[0]
    yield "odd", by_begin[1]
    yield "wrap", [np.stack([stages[0], stages[last]], axis=1)]


def roles(job: MegatronJob) -> tuple[Role, ...]:
    """One for each rank of the pipeline."""
    mesh = job.mesh
    ranks = np.arange(mesh.ranks, dtype=np.int64).reshape(mesh.sizes)
    by_stage = np.moveaxis(ranks, mesh.axes.index("pipeline"), 0).reshape(mesh.size("pipeline"), -1)
    return tuple(Role(f"stage{number}", np.sort(own)) for number, own in enumerate(by_stage))
