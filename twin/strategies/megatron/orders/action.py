"""What a pipeline rank does at a time."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

Kind = Literal["F", "B", "I", "W"]
"""Forward pass, whole backward pass, its input gradients only, its weight gradients only. The zero-bubble papers call
input gradients B."""


class Action(NamedTuple):
    """One pass of one micro-batch through one chunk of a rank's layers.

    A tuple, since a deep pipeline has tens of thousands, and a search asks for thousands of pipelines.
    """

    kind: Kind
    micro: int
    """Number of the micro-batch in the step."""
    chunk: int = 0
    """Which of the rank's parts of the model; in DualPipe the direction."""
    with_next: bool = False
    """Overlapped with the action after it: DualPipe's F&B, in which each hides the other's communication."""

    def __str__(self) -> str:
        return f"{self.kind}{self.micro}" + (f" of chunk {self.chunk}" if self.chunk else "")


def in_flight(order: Iterable[Action]) -> int:
    """Return the most activations, of a micro-batch in a chunk, that a rank holds at once.

    One is held from its forward pass to the end of its backward pass, or of its weight gradients where these are
    apart; what input gradients alone set free is not counted.

    >>> in_flight([Action("F", 0), Action("F", 1), Action("B", 0), Action("B", 1)])
    2
    """
    held = most = 0
    for action in order:
        if action.kind == "F":
            held += 1
            most = max(most, held)
        elif action.kind != "I":
            held -= 1
    return most
