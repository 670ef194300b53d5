"""One training step with PyTorch's own parallelism: passes of stages in the order of PyTorch's schedules.

What is called here and what PyTorch does by itself: `pipelining` says which pass runs when and sends messages,
`fully_shard` gathers, reduces and frees, DTensor moves what tensor ranks share.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import nn

from runtime.model.backward import backward_from
from runtime.model.cross_entropy import cross_entropy
from runtime.model.plain import PlainGPT
from runtime.parallel.ops import Place
from runtime.sharded.gathers import Copies, Gather
from runtime.sharded.reductions import Reductions, Scatter
from runtime.sharded.units import Shards, Unit
from runtime.step.optimizer import Optimizer
from runtime.step.trainee import Gradients, MicroBatch, Trainee
from runtime.strategies.megatron.context import MegatronContext
from runtime.strategies.megatron.forward import forward
from runtime.strategies.megatron.gradients import Sums
from runtime.strategies.megatron.pipeline import Stage, Work, schedule_of
from runtime.strategies.megatron.zigzag import taken
from twin.strategies.megatron.linear import TENSOR
from twin.strategies.megatron.place import Stage as Part

REDUCE = Place("")


class MegatronTrainee(Trainee):
    """The stages of one rank."""

    context: MegatronContext
    model: nn.ModuleList

    def __init__(
        self,
        context: MegatronContext,
        parts: Sequence[tuple[Part, PlainGPT]],
        optimizer: Optimizer,
        sums: Sums,
        units: Sequence[Unit],
        shards: Sequence[Shards],
    ) -> None:
        self.context, self.optimizer, self.sums = context, optimizer, sums
        self.parts, self.units, self.shards = sorted(parts, key=lambda part: part[0].number), units, shards
        self.model = nn.ModuleList(model for _, model in self.parts)
        self._held = False
        self._work = Work()
        self._copies = Copies(context)
        self._reductions = Reductions(context, self._copies, place_of=_gradients)
        for unit in units:
            self._take_over(unit, next(part for part, model in self.parts if unit.members[0] in model.names))
        self._schedule: Any = None
        if context.ranks.pipeline > 1:
            stages = [Stage(context, model, place, self._work, sums, self._reducing) for place, model in self.parts]
            self._schedule = schedule_of(stages, self._loss)

    def _take_over(self, unit: Unit, part: Part) -> None:
        """Let FSDP2 gather and reduce a unit by the named collectives."""
        context, cut = self.context, unit.cut
        apart = Place(f"stage{part.number}/{unit.place.path}", unit.place.layer)
        cut.set_custom_all_gather(Gather(context, unit.place, self._copies, apart))
        cut.set_custom_reduce_scatter(Scatter(self._reductions, unit))
        cut.set_gradient_divide_factor(1.0)
        if context.replicas > 1:
            cut.set_all_reduce_hook(self._reductions.sum_over_replicas)
        for name in unit.members:
            parameter = context.store.parameters[name]
            weight = next(model.parameter(name) for _, model in self.parts if name in model.names)
            weight.register_post_accumulate_grad_hook(partial(self._reductions.arrived, parameter))

    def backward(self, batch: Sequence[MicroBatch]) -> Gradients:
        """Run all micro-steps, in the order of the schedule."""
        context = self.context
        self._refresh()
        context.store.begin_step()
        context.sequences = context.job.concrete_micro_sequences
        self._work.batch = [self._own(micro) for micro in batch]
        with self._copies if context.ops.listener is not None and self.units else nullcontext():
            if self._schedule is None:
                for index in range(len(batch)):
                    self._pass(index)
            else:
                self._pipeline()
        return Complete(context)

    def _own(self, micro: MicroBatch) -> MicroBatch:
        """Take this rank's tokens of sequences that it shares."""
        if not self.context.shares_sequences:
            return micro
        of = self.context.places(micro.tokens.shape[1])
        tokens, targets, weights = (taken(each, of, 1) for each in (micro.tokens, micro.targets, micro.weights))
        return replace(micro, tokens=tokens, targets=targets, weights=weights)

    def _pass(self, index: int) -> None:
        """Run one micro-step where every layer is on this rank."""
        context, micro, model = self.context, self._work.batch[index], self.parts[0][1]
        context.first_sequence = micro.first_sequence
        with context.acting("F", 0, index):
            logits = model(micro.tokens)
            loss, gradient = self._judged(logits, micro)
        with context.acting("B", 0, index):
            held = [logits, gradient]
            del logits, gradient
            backward_from(held)
            self._reductions.end()
        self.sums.collect(model)
        self._add(loss)

    def _pipeline(self) -> None:
        """Run the schedule."""
        batch = self._work.batch
        first, last = self.parts[0][0].first, self.parts[-1][0].last
        tokens = [torch.cat([micro.tokens for micro in batch])] if first else []
        target = torch.zeros(len(batch)) if last else None  # the loss finds its own, but PyTorch wants one
        self._schedule.step(*tokens, target=target, return_outputs=False)

    def _loss(self, logits: torch.Tensor, _target: torch.Tensor) -> torch.Tensor:
        """Return the loss of the micro-batch whose forward pass the last stage has run."""
        part, index = self.parts[-1][0], self._work.latest
        with self.context.acting("F", part.chunk, index):
            loss, gradient = self._judged(logits, self._work.batch[index])
        self._add(loss)
        held = [gradient]
        del gradient  # the schedule keeps the loss, and what made it, until the step is over
        known: torch.Tensor = _Known.apply(logits, loss, held)
        return known

    def _judged(self, logits: torch.Tensor, micro: MicroBatch) -> tuple[torch.Tensor, torch.Tensor]:
        targets, weights = micro.targets.reshape(-1), micro.weights.reshape(-1)
        cut = self._vocabulary(logits.shape[1])
        loss, gradient = cross_entropy(self.context, logits, targets, weights, with_gradient=True, **cut)
        assert gradient is not None
        return loss, gradient

    def _vocabulary(self, columns: int) -> dict[str, Any]:
        """Say which part of the vocabulary this rank's logits are of."""
        if not self.context.split:
            return {}
        first = columns * self.context.tensor_place
        valid = max(0, min(columns, self.context.job.model.vocabulary - first))
        return {"over": TENSOR, "valid": valid, "first": first}

    def _add(self, loss: torch.Tensor) -> None:
        """Count a loss once: all tensor ranks have the same."""
        if self.context.tensor_place == 0:
            self.context.store.loss.add_(loss)

    @contextmanager
    def _reducing(self, model: PlainGPT, number: int) -> Iterator[None]:
        """Name what FSDP2 does with a stage's gradients, which it is given here."""
        reductions = self._reductions
        if self.context.sharded:
            self.sums.give(model)
        before = reductions.phase, reductions.place_of
        reductions.phase, reductions.place_of = "reduce", partial(_of_stage, number)
        try:
            yield
            reductions.end()
        finally:
            reductions.phase, reductions.place_of = before

    @torch.no_grad()
    def loss(
        self, tokens: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, documents: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Return the weighted sum of this replica's token losses; of jobs with a document mask there are none here."""
        assert documents is None
        logits = self._forward(tokens)
        found = torch.zeros((), dtype=self.context.master_type, device=self.context.device)
        if logits is not None:
            flat, counts = targets.reshape(-1), weights.reshape(-1)
            cut = self._vocabulary(logits.shape[1])
            found, _ = cross_entropy(self.context, logits, flat, counts, with_gradient=False, **cut)
        return self._to_all_stages(found)

    @torch.no_grad()
    def last_logits(self, tokens: torch.Tensor) -> torch.Tensor:
        """Return the next tokens' logits."""
        context, length = self.context, tokens.shape[1]
        vocabulary = context.job.model.vocabulary
        logits = self._forward(tokens)
        found = torch.zeros(tokens.shape[0], vocabulary, device=context.device)
        if logits is not None:
            last = logits[length - 1 :: length].float().contiguous()
            if context.split:
                flat = context.collectives.all_gather(REDUCE, TENSOR, last.view(-1), phase="fwd").wait()
                last = torch.cat(flat.view(context.ranks.tensor, *last.shape).unbind(), 1)
            found = last[:, :vocabulary].contiguous()
        return self._to_all_stages(found).cpu()

    def _forward(self, tokens: torch.Tensor) -> torch.Tensor | None:
        with nullcontext() if self._held else self.holding():
            return forward(self.context, self.parts, tokens)

    def _to_all_stages(self, found: torch.Tensor) -> torch.Tensor:
        """Give all stages what the last one has; the others have zeros."""
        if self._schedule is None:
            return found
        return self.context.collectives.all_reduce(REDUCE, "pipeline", found, name="told", phase="reduce").wait()

    @contextmanager
    def holding(self) -> Iterator[None]:
        """Keep gathered weights."""
        self._refresh()
        with ExitStack() as after:
            for unit in self.units:
                unit.cut.set_reshard_after_forward(False, recurse=False)
                after.callback(unit.cut.set_reshard_after_forward, not unit.keep, recurse=False)
            for shards in self.shards:
                after.callback(shards.forget)
            self._held = True
            after.callback(setattr, self, "_held", False)
            yield

    def _refresh(self) -> None:
        for shards in self.shards:
            shards.refresh()


class Complete:
    """Gradients of all stages, but for what tensor ranks have a part of each."""

    def __init__(self, context: MegatronContext) -> None:
        self.context = context

    def finish(self) -> None:
        """Sum those parts, and the loss over all ranks."""
        context, store = self.context, self.context.store
        if context.split:
            for number, part in enumerate(store.partial_runs(TENSOR)):
                name = f"replicated{number}"
                context.collectives.all_reduce(REDUCE, TENSOR, part, name=name, phase="reduce").wait()
        if context.ranks.ranks > 1:
            context.collectives.all_reduce(REDUCE, context.everyone, store.loss, name="loss", phase="reduce").wait()


class _Known(torch.autograd.Function):
    """A loss whose gradient is there already, held in a list of which its backward pass takes it: that is done once."""

    @staticmethod
    def forward(ctx: Any, logits: torch.Tensor, loss: torch.Tensor, held: list[torch.Tensor]) -> torch.Tensor:
        del logits
        ctx.held = held
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, of_loss: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        del of_loss  # it is one
        return ctx.held.pop(), None, None


def _gradients(unit: Unit, _number: int) -> Place:
    return unit.place.under("gradients")


def _of_stage(number: int, unit: Unit, _of_unit: int) -> Place:
    return Place(f"stage{number}/{unit.place.path}", unit.place.layer).under("gradients")
