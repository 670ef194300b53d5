"""Loss on held-out text, and text from the model."""

from __future__ import annotations

import torch

from runtime.data.batches import Batches
from runtime.parallel import random
from runtime.step.feed import sum_over_replicas
from runtime.step.trainee import Trainee


def validation_loss(trainee: Trainee, batches: Batches, sequences: int) -> float:
    """Mean loss over the targets of the first so many held-out sequences, the same on all ranks."""
    context = trainee.context
    sequences = min(sequences, batches.windows)
    micro = context.job.concrete_micro_sequences
    replicas = context.mesh.grid.replicas
    context.training = False
    total = torch.zeros((), dtype=torch.float64, device=context.device)
    # every replica makes equally many passes; what is beyond the end counts for nothing
    for begin in range(0, sequences, replicas * micro):
        first = begin + context.mesh.replica * micro
        numbers = [min(i, sequences - 1) for i in range(first, first + micro)]
        window = torch.stack([torch.from_numpy(batches.sequences(i, 1)[0]) for i in numbers])
        window = window.to(context.device)
        counts = torch.tensor([float(i < sequences) for i in range(first, first + micro)])
        weights = counts[:, None].expand(micro, batches.sequence).to(context.device, context.master_type)
        loss = trainee.loss(window[:, :-1], window[:, 1:], weights)
        total += loss.double()
    context.training = True
    total = sum_over_replicas(context, total, "validation")
    return float(total) / (sequences * batches.sequence)


@torch.no_grad()
def generate(trainee: Trainee, prompt: list[int], count: int, temperature: float) -> list[int]:
    """Continue a prompt by so many tokens; every rank must call it, and gets the same.

    Without a cache of keys and values: meant for a look at what was learnt, not for serving.
    """
    context = trainee.context
    limit, tokens = context.job.model.sequence, list(prompt)
    stream = random.key(context.job.seed, "generate")
    context.training = False
    with trainee.holding():
        for place in range(count):
            window = torch.tensor([tokens[-limit:]], device=context.device)
            logits = trainee.last_logits(window)
            tokens.append(_choose(logits, temperature, stream, place))
    context.training = True
    return tokens


def _choose(logits: torch.Tensor, temperature: float, stream: int, place: int) -> int:
    if temperature == 0:
        return int(logits.argmax())
    # the Gumbel trick with numbers by address: the same text on every rank and in every run
    bits = random.mix(random.mix(torch.tensor([place]) + stream) + torch.arange(len(logits)))
    uniform = ((bits & 0xFFFFFFFF).double() + 0.5) / 2.0**32
    return int((logits.double() / temperature - torch.log(-torch.log(uniform))).argmax())
