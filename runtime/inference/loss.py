"""Loss on text: the mean over all tokens that are predicted, whoever computes which window."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.data.batches import HeldOut
from runtime.step.feed import sum_over_replicas
from runtime.step.trainee import Trainee
from twin.description.problems import fail


@dataclass(frozen=True)
class Window:
    """One sequence to predict."""

    targets: int
    """The first so many targets count; the rest is padding."""
    read: Callable[[], NDArray[np.int64]]
    """Returns the tokens: (sequence + 1,). Called only by the ranks that work on it."""
    counts: NDArray[np.bool_] | None = None
    """Which targets count, (sequence,), so many as `targets` says; the first ones if absent."""
    documents: NDArray[np.int64] | None = None
    """Where each token's document begins, (sequence,); it is one document if absent."""


@dataclass(frozen=True)
class Score:
    """How well text was predicted."""

    loss: float
    """Mean in nats per token."""
    tokens: int
    """Predicted ones."""

    @property
    def perplexity(self) -> float:
        """The exponential of the loss; infinite where that is no float."""
        try:
            return math.exp(self.loss)
        except OverflowError:
            return math.inf


def mean_loss(trainee: Trainee, windows: Iterable[Window], advance: Callable[[int], None] = lambda _: None) -> Score:
    """Score windows, of which there is one at least; every rank must call it with the same, and gets the same.

    `advance` is told how many are done.
    """
    context = trainee.context
    micro, mesh = context.job.concrete_micro_sequences, context.mesh
    left, tokens, done = iter(windows), 0, 0
    total = torch.zeros((), dtype=torch.float64, device=context.device)
    context.training = False
    # every replica makes equally many passes; what is beyond the end counts for nothing
    while group := list(islice(left, mesh.grid.replicas * micro)):
        own = group[mesh.replica * micro : (mesh.replica + 1) * micro]
        total += _loss(trainee, own, micro).double()
        tokens += sum(window.targets for window in group)
        done += len(group)
        advance(done)
    context.training = True
    total = sum_over_replicas(context, total, "validation")
    if not tokens:
        raise fail("--sequences", "none of the targets of what was read counts; read more sequences")
    return Score(float(total) / tokens, tokens)


def _loss(trainee: Trainee, windows: Sequence[Window], micro: int) -> torch.Tensor:
    """Sum the losses of one pass; windows that are missing are padding."""
    context = trainee.context
    sequence = context.job.model.sequence
    found = torch.zeros(micro, sequence + 1, dtype=torch.int64)
    counts = torch.zeros(micro, sequence, dtype=torch.bool)
    begins = torch.zeros_like(counts, dtype=torch.int64)
    for row, window in enumerate(windows):
        found[row] = torch.from_numpy(window.read())
        given = np.arange(sequence) < window.targets if window.counts is None else window.counts
        counts[row] = torch.from_numpy(given)
        if window.documents is not None:
            begins[row] = torch.from_numpy(window.documents)
    weights = counts.to(context.device, context.master_type)
    found = found.to(context.device)
    documents = begins.to(context.device) if context.job.document_mask else None
    return trainee.loss(found[:, :-1], found[:, 1:], weights, documents)


def windows_of(batches: HeldOut, sequences: int) -> Iterator[Window]:
    """Return the first so many sequences of what is held out; all if there are fewer."""
    for number in range(min(sequences, batches.windows)):
        known = batches.targets(number, 1)
        counts = None if known is None else known[0]
        targets = batches.sequence if counts is None else int(counts.sum())
        documents = batches.documents(number, 1)
        yield Window(targets, partial(_sequence, batches, number), counts, None if documents is None else documents[0])


def _sequence(batches: HeldOut, number: int) -> NDArray[np.int64]:
    tokens: NDArray[np.int64] = batches.sequences(number, 1)[0]
    return tokens


def validation_loss(trainee: Trainee, batches: HeldOut, sequences: int) -> float:
    """Mean loss over the targets of the first so many held-out sequences, the same on all ranks."""
    return mean_loss(trainee, windows_of(batches, sequences)).loss
