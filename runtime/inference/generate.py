"""Text from the model."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch

from runtime.parallel import random
from runtime.step.trainee import Trainee


@dataclass(frozen=True)
class Choice:
    """How the next token is chosen."""

    temperature: float
    """0: always the likeliest token."""
    seed: int
    """Of the numbers that decide: with equal ones an equal prompt goes on equally."""
    top_k: int | None = None
    """Choose among so many of the likeliest tokens; among all if None."""

    @property
    def stream(self) -> int:
        """Key of the random numbers."""
        return random.key(self.seed, "generate")


@torch.no_grad()
def generate(
    trainee: Trainee, prompt: Sequence[int], count: int, choice: Choice, advance: Callable[[], None] = lambda: None
) -> list[int]:
    """Continue a prompt by so many tokens; every rank must call it, and gets prompt and continuation.

    Without a cache of keys and values: meant for a look at what was learnt, not for serving. `advance` is called
    after each token.
    """
    context = trainee.context
    limit, tokens = context.job.model.sequence, list(prompt)
    stream = choice.stream
    context.training = False
    with trainee.holding():
        for place in range(count):
            window = torch.tensor([tokens[-limit:]], device=context.device)
            logits = trainee.last_logits(window)[0]
            tokens.append(choose(logits, choice, stream, place))
            advance()
    context.training = True
    return tokens


def choose(logits: torch.Tensor, choice: Choice, stream: int, place: int) -> int:
    """Choose a token by its logits (V,), for the so-manieth place of a text."""
    if choice.temperature == 0:
        return int(logits.argmax())
    # the Gumbel trick with numbers by address: the same text on every rank and in every run
    bits = random.mix(random.mix(torch.tensor([place]) + stream) + torch.arange(len(logits)))
    uniform = ((bits & 0xFFFFFFFF).double() + 0.5) / 2.0**32
    # the numbers are heated, for logits that a temperature near 0 divides may all become infinite
    scores = logits.double() - choice.temperature * torch.log(-torch.log(uniform))
    if choice.top_k is None or choice.top_k >= len(logits):
        return int(scores.argmax())
    kept = logits.topk(choice.top_k).indices
    return int(kept[scores[kept].argmax()])
