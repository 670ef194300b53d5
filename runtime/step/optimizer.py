"""AdamW with decay groups, on the store's flat buffers.

* PyTorch's fused AdamW (`adamw`) works on two flat tensors: what decays (matrices) and what does not.
* With states sharded over replicas each rank keeps master weights and moments of its parts of the flat buffers only;
  what layers compute with is gathered straight into its place, here or by the strategy when it is needed.
* Clipping by the norm of the full gradient: every rank sums squares of what is its own to
  count, and one scalar is reduced over each axis.
"""

from __future__ import annotations

import itertools

import torch

from runtime.parallel.ops import Place
from runtime.step import adamw
from runtime.step.context import Context
from twin.description.train import Adam
from twin.schedule.kernels import Memory

MOMENTS = ("exp_avg", "exp_avg_sq")
CLIP = Place("clip")
OPTIMIZER = Place("")
ADAM_PASSES = 7
"""Reads gradient, weight and two moments, writes the last three."""


class Optimizer:
    """Updates a rank's master weights, or its parts of them."""

    def __init__(self, context: Context, settings: Adam) -> None:
        self.context, self.settings = context, settings
        store, parts = context.store, context.optimizer_parts
        self.sharded = parts > 1
        self.replicas = context.mesh.grid.replicated_over
        self.owned = store.owned
        # what decays comes first in the flat buffers
        decays = self.owned.within(0, store.decayed), self.owned.within(store.decayed, store.used)
        self.spans = [(span.start, span.stop) for spans in decays for span in spans]
        self.stopped = torch.zeros((), dtype=torch.bool, device=store.device)
        """True if a gradient has not been finite: nothing is updated any more."""
        self.updated = torch.zeros((), dtype=torch.int64, device=store.device)
        """Steps whose gradients were finite, until the first whose was not: that one's number, counted from 0."""
        self._moments = self._made_moments()
        self._prepare()
        self._count_from(0)

    def _made_moments(self) -> dict[str, torch.Tensor]:
        """Make both moments of what this rank owns."""
        store = self.context.store
        return {
            name: torch.zeros(self.owned.elements, dtype=store.master_type, device=store.device) for name in MOMENTS
        }

    def _prepare(self) -> None:
        """Put together what is updated together."""
        store = self.context.store
        self._steps = torch.zeros((), dtype=torch.float32, device=store.device)
        """Updates so far."""
        both: dict[float, adamw.Alike] = {}
        for flat in itertools.starmap(slice, self.spans):
            decay = self.settings.weight_decay if flat.start < store.decayed else 0.0
            alike = both.setdefault(decay, adamw.Alike(decay, [], []))
            alike.parts.append(self._tensors(flat))
            alike.gradients.append(store.gradient[flat])
        self._alike = tuple(both.values())

    def _tensors(self, flat: slice) -> adamw.Tensors:
        """Return weights and both moments of owned elements, where they lie."""
        first, second = (self._moments[name][self.owned.inside(flat)] for name in MOMENTS)
        return self.context.store.master_of(flat), first, second

    def step(self, learning_rate: float) -> torch.Tensor:
        """Clip and update; the next step overwrites the gradients.

        Returns the norm of the full gradient, a scalar tensor. If it is not finite the weights stay as
        they are (as with a loss that is not), in this step and all that follow; `stopped` says so.
        """
        ops, store = self.context.ops, self.context.store
        size = self._gradient_bytes
        norm = self._norm()
        self.stopped |= ~(torch.isfinite(norm) & torch.isfinite(store.loss[0]))
        self.updated += ~self.stopped
        if self.context.job.clip_gradients:
            ops.compute(
                CLIP, "scale", lambda: self._scale(norm), lambda: Memory(2 * size, work="clip/scale"), phase="optimizer"
            )
        self._named_update(learning_rate)
        if self.sharded and self.context.shares_at_once:
            self._share()
        return norm

    @property
    def _gradient_bytes(self) -> float:
        """Bytes of the gradient of what this rank owns."""
        return float(self.owned.elements * self.context.store.master_type.itemsize)

    def _norm(self) -> torch.Tensor:
        """The norm of the full gradient: no element counted twice, one scalar sum an axis."""
        context, store = self.context, self.context.store

        def squares() -> torch.Tensor:
            total = store.gradient.new_zeros(1)
            for first, last in store.ranges_counted_once():
                for place in self.owned.within(first, last):
                    total += torch.linalg.vector_norm(store.gradient[place]) ** 2
            return total

        total = context.ops.compute(
            CLIP, "norm", squares, lambda: Memory(self._gradient_bytes, work="clip/norm"), phase="optimizer"
        )
        over = [*context.sharded_over, *([self.replicas] if self.sharded else [])]
        for communicator in over:
            if context.mesh.size(communicator) > 1:
                context.collectives.all_reduce(CLIP, communicator, total, phase="optimizer").wait()
        return (total / context.counted_copies).sqrt()[0] if context.counted_copies > 1 else total.sqrt()[0]

    def _scale(self, norm: torch.Tensor) -> None:
        factor = torch.clamp(self.settings.clip_norm / (norm + 1e-6), max=1.0)
        for begin, end in self.spans:
            self.context.store.gradient[begin:end].mul_(factor)

    def _named_update(self, learning_rate: float) -> None:
        """Update everything, under a name."""

        def describe() -> Memory:
            store = self.context.store
            copied = store.master_type.itemsize + store.compute_type.itemsize if store.rounds else 0
            return Memory(ADAM_PASSES * self._gradient_bytes + self.owned.elements * copied, work="adamw")

        self.context.ops.compute(OPTIMIZER, "adamw", lambda: self._update(learning_rate), describe, phase="optimizer")

    def _update(self, learning_rate: float) -> None:
        stopped = self.stopped.float()
        adamw.update(self._alike, self._steps, self.settings, learning_rate=learning_rate, stopped=stopped)
        self.context.store.publish()

    def _share(self) -> None:
        """Gather what the other replicas updated, straight into its place."""
        store = self.context.store
        whole, (own,) = store.compute[: store.elements], self.owned.ranges
        self.context.collectives.all_gather(OPTIMIZER, self.replicas, whole[own], into=whole, phase="optimizer").wait()

    def states(self) -> dict[str, torch.Tensor]:
        """Return both moments of what this rank owns, each (elements owned,): the live buffers."""
        return self._moments

    def load_states(self, moments: dict[str, torch.Tensor], steps: int) -> None:
        """Put both moments of what this rank owns back, as they were after so many steps."""
        for name, flat in moments.items():
            self._moments[name].copy_(flat)
        self.stopped.zero_()
        self.updated.fill_(steps)
        self._count_from(steps)

    def _count_from(self, steps: int) -> None:
        """Take it that there have been so many updates."""
        self._steps.fill_(float(steps))
