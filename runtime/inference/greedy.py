"""How many texts go on by the likeliest tokens, many at once: the replicas of a grid share them."""

from __future__ import annotations

from collections.abc import Callable

import torch

from runtime.parallel.ops import Place
from runtime.step.trainee import Trainee

WRITTEN = Place("greedy")


@torch.no_grad()
def continue_greedily(
    trainee: Trainee, prompts: torch.Tensor, count: int, advance: Callable[[float], None] = lambda _share: None
) -> torch.Tensor:
    """Continue prompts (n, p) by `count` tokens each; returns these, (n, count) int64 on the CPU.

    A prompt and what follows it must fit the model's sequence, but for the last token. Every rank must call it with
    the same, and gets the same. `advance` is told which share is done.
    """
    context = trainee.context
    mesh, micro = context.mesh, context.job.concrete_micro_sequences
    replicas = mesh.grid.replicas
    written = torch.zeros(len(prompts), count, dtype=torch.float64)  # of ids that are exact in it: sums are for floats
    group = replicas * micro
    context.training = False
    with trainee.holding():
        for first in range(0, len(prompts), group):
            begin = first + mesh.replica * micro
            # every replica makes equally many passes; what is beyond the end is thrown away
            tokens = prompts[torch.arange(begin, begin + micro) % len(prompts)]
            for place in range(count):
                following = trainee.last_logits(tokens.to(context.device)).argmax(1)
                tokens = torch.cat([tokens, following[:, None]], 1)
                advance((first + group * (place + 1) / count) / (group * -(-len(prompts) // group)))
            own = written[begin : begin + micro]
            own.copy_(tokens[: len(own), -count:])
    context.training = True
    return _of_all_replicas(trainee, written)


def _of_all_replicas(trainee: Trainee, written: torch.Tensor) -> torch.Tensor:
    """Add up what each replica wrote: every row is zero on all but one of them."""
    context = trainee.context
    written = written.to(context.device)
    for communicator in context.mesh.of_replicas:
        written = context.collectives.all_reduce(WRITTEN, communicator, written, phase="reduce").wait()
    return written.long().cpu()
