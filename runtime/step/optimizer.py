"""AdamW with decay groups, on the store's flat buffers.

* PyTorch's fused AdamW works on two flat tensors: what decays (matrices) and what does not.
* With states sharded over replicas each rank keeps master weights and moments of its parts of the flat buffers only;
  what layers compute with is gathered straight into its place, here or by the strategy when it is needed.
* Clipping by the norm of the full gradient: every rank sums squares of what is its own to
  count, and one scalar is reduced over each axis.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from runtime.parallel.ops import Place
from runtime.step.context import Context
from twin.description.train import Adam
from twin.schedule.kernels import Memory

MOMENTS = ("exp_avg", "exp_avg_sq")
CLIP = Place("clip")
OPTIMIZER = Place("")
ADAM_PASSES = 7
"""Reads gradient, weight and two moments, writes the last three."""

MakeAdam = Callable[..., torch.optim.AdamW]
FUSED_ADAM: MakeAdam = partial(torch.optim.AdamW, fused=True)


class Optimizer:
    """Updates a rank's master weights, or its parts of them."""

    def __init__(self, context: Context, settings: Adam, make_adam: MakeAdam = FUSED_ADAM) -> None:
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
        self._moments = self._made_moments()
        self._prepare(make_adam)
        self._attach(0)

    def _made_moments(self) -> dict[str, torch.Tensor]:
        """Make both moments of what this rank owns."""
        store = self.context.store
        return {
            name: torch.zeros(self.owned.elements, dtype=store.master_type, device=store.device) for name in MOMENTS
        }

    def _prepare(self, make_adam: MakeAdam) -> None:
        """Make what updates it."""
        store, settings = self.context.store, self.settings
        self._weights = [torch.nn.Parameter(store.master_of(slice(*span))) for span in self.spans]
        both: dict[float, list[torch.nn.Parameter]] = {}
        for weight, (begin, _) in zip(self._weights, self.spans, strict=True):
            both.setdefault(settings.weight_decay if begin < store.decayed else 0.0, []).append(weight)
        groups = [{"params": weights, "weight_decay": decay} for decay, weights in both.items()]
        self._adam: torch.optim.AdamW | None = None
        if groups:  # what a rank owns may be padding alone
            self._adam = make_adam(groups, lr=0.0, betas=(settings.beta1, settings.beta2), eps=settings.epsilon)

    def step(self, learning_rate: float) -> torch.Tensor:
        """Clip and update; the next step overwrites the gradients.

        Returns the norm of the full gradient, a scalar tensor. If it is not finite the weights stay as
        they are (as with a loss that is not), in this step and all that follow; `stopped` says so.
        """
        ops, store = self.context.ops, self.context.store
        size = self._gradient_bytes
        norm = self._norm()
        self.stopped |= ~(torch.isfinite(norm) & torch.isfinite(store.loss[0]))
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
        store = self.context.store
        if self._adam is not None:
            # As torch.amp.GradScaler does it: the kernel leaves the weights as they are, and the
            # host need not look.
            self._adam.grad_scale = None  # type: ignore[attr-defined]  # known to fused kernels only
            self._adam.found_inf = self.stopped.float()  # type: ignore[attr-defined]
            for group in self._adam.param_groups:
                group["lr"] = learning_rate
            for weight, (begin, end) in zip(self._weights, self.spans, strict=True):
                weight.grad = store.gradient[begin:end]
            self._adam.step()
        store.publish()

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
        self._attach(steps)

    def _attach(self, steps: int) -> None:
        """Let AdamW keep its moments in the flat buffers."""
        for weight, (begin, end) in zip(self._weights, self.spans, strict=True):
            assert self._adam is not None
            inside = self.owned.inside(slice(begin, end))
            self._adam.state[weight] = {
                "step": torch.tensor(float(steps), dtype=torch.float32, device=weight.device),
                **{name: flat[inside] for name, flat in self._moments.items()},
            }
