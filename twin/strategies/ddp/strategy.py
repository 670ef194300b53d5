"""Plain data parallelism as a strategy: PyTorch's DistributedDataParallel."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from twin.description.problems import Problem
from twin.schedule.communicator import Communicator, Role
from twin.schedule.ops import Schedule
from twin.strategies import work
from twin.strategies.activations import block_activation_bytes
from twin.strategies.ddp import job as rules
from twin.strategies.ddp.job import DdpJob, Grid
from twin.strategies.ddp.schedule import generate
from twin.strategies.sizes import FP32_BYTES, optimizer_bytes
from twin.strategies.strategy import Strategy


class Ddp(Strategy[DdpJob]):
    """Every rank holds the whole model."""

    name = "ddp"
    options = DdpJob
    grid = Grid

    def check(self, job: DdpJob) -> list[Problem]:
        """Return what a job asks for that there is not."""
        return rules.check(job)

    def communicators(self, job: DdpJob) -> tuple[Communicator, ...]:
        """All replicas together."""
        return (Communicator.along(self.mesh(job), "data"),)

    def schedule(self, job: DdpJob, role: Role) -> Schedule:
        """Write a serial step with buckets of gradients."""
        del role  # there is one
        return generate(job)

    def memory(self, job: DdpJob, role: Role) -> Mapping[str, float]:
        """Count the whole model on every rank: weights, their gradients, fp32 sums, AdamW's states, activations."""
        del role
        model, e = job.model, job.element_bytes
        elements, micro = model.parameters, job.concrete_micro_sequences
        tokens = micro * model.sequence
        mlp_up = model.block_linears["mlp_up"][0]
        block = block_activation_bytes(
            job,
            tokens=tokens,
            sequences=micro,
            heads=model.heads,
            kv_heads=model.key_value_heads,
            residual_width=model.hidden,
            mlp_up_width=mlp_up,
            mlp_width=model.mlp_hidden,
        )
        gradients = e * tokens * (2 * model.hidden + mlp_up + model.mlp_hidden)
        logits = work.loss_bytes(job, tokens, model.vocabulary, in_place=True)
        # autograd makes a weight's gradient before it is added to its bucket: the head's beside that of the logits
        head = e * model.vocabulary * (tokens + model.hidden)
        return {
            "weights": float(e * elements),
            "gradients": float(FP32_BYTES * elements),
            "optimizer": float(optimizer_bytes(e) * elements),
            "activations": model.layers * block + max(gradients, logits, head),
            "buffers": float(e * elements),  # buckets, of which PyTorch's gradients are views
        }

    def candidates(self, job: DdpJob) -> Iterator[Grid]:
        """Yield the only grid there is."""
        yield Grid(data=job.ranks)
