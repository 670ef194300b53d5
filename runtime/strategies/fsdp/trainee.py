"""One training step with PyTorch's FSDP2: `fully_shard` gathers, reduces and frees; here are names, sums, and the loss.

What is called here and what FSDP2 does by itself: it decides when each unit is gathered, one ahead in both passes, and
when its gradients are reduced (`gathers`, `reductions` give its calls to the named collectives).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial

import torch

from runtime.model.backward import backward_from
from runtime.model.cross_entropy import cross_entropy
from runtime.model.plain import PlainGPT
from runtime.sharded.gathers import Copies, Gather
from runtime.sharded.reductions import Reductions, Scatter
from runtime.sharded.units import Shards, Unit
from runtime.step.optimizer import Optimizer
from runtime.step.trainee import Gradients, MicroBatch, StepFigures, Trainee
from runtime.strategies.fsdp.alone import Sums
from runtime.strategies.fsdp.context import FsdpContext


class FsdpTrainee(Trainee):
    """A plain model, of which FSDP2 gathers a unit at a time; on one rank the model alone."""

    context: FsdpContext
    model: PlainGPT

    def __init__(
        self, context: FsdpContext, model: PlainGPT, optimizer: Optimizer, units: list[Unit], shards: Shards | None
    ) -> None:
        self.context, self.model, self.optimizer, self.units = context, model, optimizer, units
        self.shards = shards
        self._held = False
        self._copies = Copies(context)
        self._gradients: Reductions | Sums
        if shards is None:
            self._gradients = Sums(context, model, units)
        else:
            self._gradients = Reductions(context, self._copies)
            for unit in units:
                self._take_over(unit, self._gradients)

    def _take_over(self, unit: Unit, reductions: Reductions) -> None:
        """Let FSDP2 gather and reduce a unit by the named collectives."""
        context, cut = self.context, unit.cut
        cut.set_custom_all_gather(Gather(context, unit.place, self._copies))
        cut.set_custom_reduce_scatter(Scatter(reductions, unit))
        cut.set_gradient_divide_factor(1.0)
        if context.replicas > 1:
            cut.set_all_reduce_hook(reductions.sum_over_replicas)
        for name in unit.members:
            parameter = context.store.parameters[name]
            self.model.get_parameter(name).register_post_accumulate_grad_hook(partial(reductions.arrived, parameter))

    def step(self, batch: Sequence[MicroBatch], learning_rate: float) -> StepFigures:
        """Train on one global batch, of which `batch` is this rank's part."""
        self._refresh()
        return super().step(batch, learning_rate)

    def backward(self, batch: Sequence[MicroBatch]) -> Gradients:
        """Run all micro-steps; gradients are reduced in each."""
        context, store = self.context, self.context.store
        store.begin_step()
        for index, micro in enumerate(batch):
            context.first_sequence = micro.first_sequence
            with context.ops.micro_step(index, tuple(micro.tokens.shape)), self._named():
                logits = self.model(micro.tokens, micro.documents)
                targets, weights = micro.targets.reshape(-1), micro.weights.reshape(-1)
                loss, gradient = cross_entropy(context, logits, targets, weights, with_gradient=True)
                context.phase = "bwd"
                assert gradient is not None
                context.inputs_back()
                held = [logits, gradient]
                del logits, gradient
                backward_from(held)
                self._gradients.end()
                context.phase, context.documents = "fwd", None
                store.loss.add_(loss)
        return self._gradients

    def _named(self) -> AbstractContextManager[object]:
        """FSDP2's copies have names only where somebody hears them."""
        return nullcontext() if self.context.ops.listener is None or self.shards is None else self._copies

    @torch.no_grad()
    def loss(
        self, tokens: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, documents: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the weighted sum of this replica's token losses."""
        with nullcontext() if self._held else self.holding():
            logits = self.model(tokens, documents)
        self.context.documents = None
        found, _ = cross_entropy(self.context, logits, targets.reshape(-1), weights.reshape(-1), with_gradient=False)
        return found

    @torch.no_grad()
    def last_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the next tokens' logits."""
        length = tokens.shape[1]
        with nullcontext() if self._held else self.holding():
            logits: torch.Tensor = self.model(tokens)[length - 1 :: length]
        return logits.float().cpu()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keep gathered weights."""
        self._refresh()
        cut = [] if self.shards is None else self.units
        for unit in cut:
            unit.cut.set_reshard_after_forward(False, recurse=False)
        self._held = True
        try:
            yield
        finally:
            self._held = False
            for unit in cut:
                unit.cut.set_reshard_after_forward(not unit.keep, recurse=False)
            if self.shards is not None:
                self.shards.forget()

    def _refresh(self) -> None:
        if self.shards is not None:
            self.shards.refresh()
