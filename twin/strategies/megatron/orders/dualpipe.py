"""DualPipe and DualPipeV: pairs of a forward and a backward pass of which each hides the other's communication.

DualPipe (arXiv 2412.19437, deepseek-ai/DualPipe) feeds micro-batches in from both ends of a pipeline of P ranks: rank
r holds stages r and P−1−r of a model of P stages, so all weights are there twice. Of M micro-batches the first M/2,
direction 0, enter at rank 0, the others at rank P−1. DualPipeV cuts that in half: P ranks and a model of 2P stages,
of which rank r holds r and 2P−1−r.

With F, I and W the times of a forward pass, input gradients and weight gradients of a stage, F = I >= W, pairs as long
as both passes, and free communication, the rank that takes longest waits for

    (S/2−1)·(F + 2I − W)      of S stages; published as (S/2−1)·(F&B + B − 3W), with B = I + W

and each holds S + 1 activations of a stage. With shorter pairs it waits for less, or as long.
"""

from __future__ import annotations

from collections import Counter, deque

from twin.strategies.megatron.orders.action import Action, Kind


def dualpipe(rank: int, ranks: int, micro_steps: int) -> tuple[Action, ...]:
    """Order DualPipe; the chunk of an action is the direction of its micro-batch."""
    half = ranks // 2
    each = micro_steps // 2
    flipped = rank >= half  # what comes first on these ranks is what enters at the last one
    first, second = (1, 0) if flipped else (0, 1)
    passes = _Passes((first, second), (first * each, second * each))
    return _eight_steps(passes, min(rank, ranks - 1 - rank), half, each)


def dualpipe_v(rank: int, ranks: int, micro_steps: int) -> tuple[Action, ...]:
    """Order DualPipeV; chunk 0 is on the way there and chunk 1 on the way back."""
    return _eight_steps(_Passes((0, 1), (0, 0)), rank, ranks, micro_steps)


class _Passes:
    """Passes over two phases, each of which takes its micro-batches one after another."""

    def __init__(self, chunks: tuple[int, int], firsts: tuple[int, int]) -> None:
        self.done: list[Action] = []
        self._chunks = chunks
        self._firsts = firsts
        self._forward: Counter[int] = Counter()
        self._backward: Counter[int] = Counter()
        self._weights: deque[Action] = deque()

    def forward(self, phase: int, with_next: bool = False) -> None:
        """Pass forward."""
        self._do("F", phase, self._forward, with_next)

    def backward(self, phase: int) -> None:
        """Pass backward, weight gradients included."""
        self._do("B", phase, self._backward)

    def pair(self, ahead: int, behind: int) -> None:
        """Pass forward in one phase and backward in the other at once."""
        self.forward(ahead, with_next=True)
        self.backward(behind)

    def inputs(self, phase: int) -> None:
        """Pass backward and leave the weight gradients for later."""
        self._do("I", phase, self._backward)
        last = self.done[-1]
        self._weights.append(Action("W", last.micro, last.chunk))

    def weights(self) -> None:
        """Compute the oldest of the weight gradients that were left."""
        self.done.append(self._weights.popleft())

    def _do(self, kind: Kind, phase: int, count: Counter[int], with_next: bool = False) -> None:
        micro = self._firsts[phase] + count[phase]
        self.done.append(Action(kind, micro, self._chunks[phase], with_next))
        count[phase] += 1


def _eight_steps(passes: _Passes, place: int, places: int, each: int) -> tuple[Action, ...]:
    """Order the passes of a rank at this place from the end of the pipeline to its middle or turn.

    `each` micro-batches pass in each of the two phases. Steps are numbered as in DeepSeek's code.
    """
    to_turn = places - 1 - place
    for _ in range(2 * to_turn):  # 1
        passes.forward(0)
    for _ in range(place + 1):  # 2
        passes.forward(0)
        passes.forward(1)
    for _ in range(to_turn):  # 3
        passes.inputs(1)
        passes.weights()
        passes.forward(1)
    for i in range(each - 2 * places + place + 1):  # 4
        if i == 0 and to_turn == 0:  # in turn, since the other half of the pair would only arrive later
            passes.forward(0)
            passes.backward(1)
        else:
            passes.pair(0, 1)
        passes.pair(1, 0)
    for _ in range(to_turn):  # 5
        passes.backward(1)
        passes.pair(1, 0)
    # 6: from the middle on weight gradients are left; 2·place + 2 passes, of which the last place + 1 leave theirs
    for i in range(2 * (place + 1)):
        leave = i > place
        phase = (i + 1) % 2
        if leave:
            passes.inputs(phase)
        else:
            passes.backward(phase)
    for _ in range(to_turn):  # 7
        passes.weights()
        passes.inputs(0)
    for _ in range(place + 1):  # 8
        passes.weights()
    return tuple(passes.done)
