"""What a rank does for one micro-batch and chunk: F, B, or its halves I and W.

Micro-batches differ in names only, but for the first one, whose weight gradients are written instead of added,
and the last one, beside which gradients may travel. Equal ones share their ops.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import pairwise, zip_longest

from twin.schedule.emit import Emitter
from twin.schedule.ops import Copy, Op, Wait
from twin.strategies.megatron import layer
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.linear import Half, Linears
from twin.strategies.megatron.local import Local
from twin.strategies.megatron.orders import Action, Kind
from twin.strategies.megatron.place import Stage

HALVES: dict[Kind, Half] = {"B": "whole", "I": "input", "W": "weight"}
TABLE, HEAD = -1, -2
"""In place of a block's number: the tables of tokens and positions, and the last norm with the head."""


class Hooks:
    """What else happens in a pass; by default nothing does."""

    def open(self, emit: Emitter) -> None:
        """Be told of the begin."""

    def before(self, emit: Emitter, part: int) -> None:
        """Be told of a block that comes, by its number, or of TABLE or HEAD."""

    def after(self, emit: Emitter, part: int) -> None:
        """Be told of one whose backward pass is done."""

    def end(self, emit: Emitter) -> None:
        """Be told of the end."""


@dataclass(frozen=True)
class Bodies:
    """Writes the ops of actions, each kind once."""

    job: MegatronJob
    local: Local
    several: bool
    """Whether the rank has several chunks, which names then tell apart."""
    _known: dict[tuple[Kind, int, bool, bool], tuple[Op, ...]] = field(default_factory=dict)
    _pairs: dict[tuple[int, int, bool], tuple[Op, ...]] = field(default_factory=dict)
    _micros: dict[int, dict[str, int]] = field(default_factory=dict)

    def prefix(self, action: Action, variable: str = "micro") -> str:
        """Return what names of an action's ops begin with, its micro-batch left open."""
        return f"micro{{{variable}}}/{action.kind}{action.chunk if self.several else ''}/"

    def of(self, action: Action, stage: Stage, hooks: Callable[[], Hooks] | None = None, *, first: bool) -> Op:
        """Return an action's ops, which are shared with equal actions; `hooks` say what happens beside all of these."""
        first = first and action.kind != "F"
        key = (action.kind, action.chunk, first, hooks is None)
        body = self._known.get(key)
        if body is None:
            beside = Hooks() if hooks is None else hooks()
            body = self._known[key] = tuple(self._written(self.prefix(action), action, stage, beside, first=first))
        return Copy(body, self._values(action.micro))

    def _values(self, micro: int) -> dict[str, int]:
        """Return what the variable of an action's names stands for; equal ones are one."""
        found = self._micros.get(micro)
        if found is None:
            found = self._micros[micro] = {"micro": micro}
        return found

    def pair(self, forward: Action, backward: Action, stages: Sequence[Stage], *, first: bool) -> Op:
        """Return the ops of a forward and a backward pass at once, which are shared with equal pairs."""
        key = (forward.chunk, backward.chunk, first)
        if key not in self._pairs:
            ahead = self._written(self.prefix(forward), forward, stages[forward.chunk], Hooks(), first=False)
            prefix = self.prefix(backward, "behind")
            behind = self._written(prefix, backward, stages[backward.chunk], Hooks(), first=first)
            self._pairs[key] = tuple(at_once(ahead, behind))
        return Copy(self._pairs[key], {"micro": forward.micro, "behind": backward.micro})

    def alone(self, action: Action, stage: Stage, hooks: Hooks, *, first: bool) -> list[Op]:
        """Return the ops of an action beside which other things happen, with its micro-batch in their names."""
        return self._written(self.prefix(action).format(micro=action.micro), action, stage, hooks, first=first)

    def _written(self, prefix: str, action: Action, stage: Stage, hooks: Hooks, *, first: bool) -> list[Op]:
        emit = Emitter(prefix, "fwd" if action.kind == "F" else "bwd")
        hooks.open(emit)
        if action.kind == "F":
            self._forward(emit, stage, hooks)
        else:
            self._backward(emit, stage, HALVES[action.kind], hooks, first=first)
        hooks.end(emit)
        return emit.ops

    def _forward(self, emit: Emitter, stage: Stage, hooks: Hooks) -> None:
        linears = Linears(self.job, self.local)
        if stage.first:
            hooks.before(emit, TABLE)
            layer.embedding_forward(emit.under("embedding"), linears)
        for number in stage.layers:
            hooks.before(emit, number)
            layer.forward(emit.under(f"block{number}", layer=number), linears)
        if stage.last:
            hooks.before(emit, HEAD)
            layer.head_forward(emit, linears)

    def _backward(self, emit: Emitter, stage: Stage, half: Half, hooks: Hooks, *, first: bool) -> None:
        linears = Linears(self.job, self.local, half, first)
        if stage.last:
            layer.head_backward(emit, linears)
            hooks.after(emit, HEAD)
        again = recomputed(self.job, stage) if half != "weight" else range(0)
        for number in reversed(stage.layers):
            under = emit.under(f"block{number}", layer=number)
            recompute = emit.under(f"recompute/block{number}", phase="recompute", layer=number)
            hooks.before(under, number)
            if number in again:
                layer.forward(recompute, linears, again=True)
            elif self.job.recompute_attention and half != "weight":
                layer.recompute_attention(recompute, linears)
            layer.backward(under, linears)
            hooks.after(under, number)
        if stage.first and half != "weight":
            hooks.before(emit, TABLE)
            layer.embedding_backward(emit.under("embedding"), linears)
            hooks.after(emit, TABLE)


def at_once(ahead: Sequence[Op], behind: Sequence[Op]) -> list[Op]:
    """Put two passes of one rank into one order: where one would wait, the other goes on."""
    found: list[Op] = []
    for one, other in zip_longest(_until_waits(ahead), _until_waits(behind), fillvalue=()):
        found += [*one, *other]
    return found


def _until_waits(ops: Sequence[Op]) -> list[tuple[Op, ...]]:
    """Cut ops before each wait."""
    cuts = [0, *(i for i, op in enumerate(ops) if i and isinstance(op, Wait)), len(ops)]
    return [tuple(ops[begin:end]) for begin, end in pairwise(cuts)]


def recomputed(job: MegatronJob, stage: Stage) -> range:
    """Return which of a stage's layers are computed again."""
    if not job.recompute:
        return range(0)
    return stage.layers if job.recompute_layers is None else stage.layers[: job.recompute_layers]
