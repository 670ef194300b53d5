"""The schedule of a job's own training step on one of its ranks.

The model lies on the meta device, or on what its strategy takes in its place: tensors have a shape and no memory, and
kernels do nothing.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch

from runtime.recorder.launches import Launches
from runtime.recorder.listener import ScheduleListener
from runtime.recorder.world import fake_world, without_numbers
from runtime.step.context import PRECISIONS, Context
from runtime.step.trainee import MicroBatch
from runtime.strategies import ranks_of, recorded_on, trains
from twin.description.job import Job
from twin.description.problems import fail
from twin.description.train import Adam
from twin.schedule.recording import Recording, check

LEARNING_RATE = 1e-3
FAKE = "fake"
"""In place of a device: the CPU's tensors without memory, for libraries that know no meta device."""


def record(job: Job, rank: int = 0) -> Recording:
    """Run the runtime's training step on one rank of a job's world and write down what it does.

    Grid and micro-batch must be concrete. There are no peers, no data and no numbers: memory and time are
    those of the bookkeeping. Raises DescriptionError for what the runtime cannot train.
    """
    if job.precision not in PRECISIONS:
        raise fail("precision", "the runtime trains in bf16 or fp32; record those", job.precision)
    grid = job.concrete_grid
    make, kind = trains(job), recorded_on(job)
    fake = kind == FAKE
    with fake_world(ranks_of(job), rank) as mesh, without_numbers() if fake else nullcontext():
        device = torch.device("cpu" if fake else kind)
        trainee = make(job, mesh, device, Adam(), initialised=False)
        context = trainee.context
        batch = batch_of(job, context)
        for _ in range(trainee.warm_up_steps):
            trainee.step(batch, LEARNING_RATE)
        launches = Launches()
        listener = context.ops.listener = ScheduleListener(launches)
        with launches:
            trainee.step(batch, LEARNING_RATE)
    check(listener.schedule, grid.mesh)
    described = job.model_dump(mode="json", by_alias=True)
    return Recording(grid.mesh, rank, listener.schedule, described)


def batch_of(job: Job, context: Context) -> list[MicroBatch]:
    """Make micro-batches of the right shapes."""
    shape = job.concrete_micro_sequences, job.model.sequence
    tokens = torch.zeros(shape, dtype=torch.int64, device=context.device)
    weights = torch.ones(shape, dtype=context.master_type, device=context.device)
    first = context.mesh.replica * job.micro_steps
    documents = torch.zeros_like(tokens) if job.document_mask else None
    return [
        MicroBatch((first + micro) * shape[0], tokens, tokens, weights, documents) for micro in range(job.micro_steps)
    ]
