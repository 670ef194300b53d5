"""What a rank of `torch.distributed.pipelining` does around its passes: messages, gathers, reductions (PyTorch 2.13).

`ScheduleGPipe` and `Schedule1F1B` have a program of their own (`_step_microbatches`). All others are lowered
(`_prepare_schedule_with_comms`) and performed action by action (`_PipelineScheduleRuntime`):

1. `_add_unshard_reshard`: before each pass the next three stages of the rank are gathered, others are freed;
2. `_add_reduce_grad`: behind the last backward pass of a stage its gradients are reduced;
3. `_add_send_recv`: all ranks are followed in turn, an action a round; a sender puts the receive where the receiving
   rank then stands, so that both have the messages between them in one order.

A send is behind its pass, so before the reduction. Passes of DualPipeV's pairs are performed one after the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Literal, NamedTuple, cast

from twin.strategies.megatron.orders.action import Action, Kind
from twin.strategies.megatron.orders.rules import Name
from twin.strategies.megatron.orders.schedules import order, stage_of

MAX_ACTIVE_STAGES = 3
"""Stages of a rank that are gathered at once: one that passes forward, one backward, one ahead."""
Communication = Literal["SEND_F", "RECV_F", "SEND_B", "RECV_B", "UNSHARD", "RESHARD", "REDUCE_GRAD"]


class RuntimeAction(NamedTuple):
    """An action of a lowered schedule, of a chunk of a rank."""

    kind: Kind | Communication
    chunk: int
    micro: int = -1
    """Number of the micro-batch; -1 of those that are of no micro-batch."""
    with_next: bool = False
    """In one OVERLAP_F_B with the pass after it: both are ready before either is performed."""


class Operation(NamedTuple):
    """A pass, or a start or a wait of what other ranks take part in."""

    does: Literal["pass", "receive", "received", "send", "sent", "unshard", "unsharded", "reshard", "reduce"]
    """The words that end in -ed and `sent` are the waits."""
    kind: Kind = "F"
    """Of a pass; of a message F, an activation, or B, a gradient. Of others it says nothing."""
    chunk: int = 0
    micro: int = -1
    """Number of the micro-batch; -1 where there is none."""


def operations(
    name: Name, rank: int, ranks: int, micro_steps: int, chunks: int = 1, group: int | None = None
) -> tuple[Operation, ...]:
    """Return what a rank does in a step, in program order; arguments are those of `order`.

    >>> [f"{o.does} {o.kind}{o.micro}" for o in operations("1f1b", rank=1, ranks=2, micro_steps=1)][:4]
    ['receive F0', 'received F0', 'pass F0', 'pass B0']
    """
    if name == "gpipe":
        return tuple(_gpipe(_Ends(rank, ranks), micro_steps))
    if name == "1f1b":
        return tuple(_one_forward_one_backward(_Ends(rank, ranks), micro_steps))
    return tuple(_performed(lowered(name, ranks, micro_steps, chunks, group)[rank]))


def group_of(ranks: int, micro_steps: int) -> int:
    """Return how many micro-batches `ScheduleInterleaved1F1B` passes through a chunk before the next chunk."""
    return micro_steps // rounds(ranks, micro_steps)


def rounds(ranks: int, micro_steps: int) -> int:
    """Return the number of rounds of micro-batches, which must divide them."""
    return max(1, micro_steps // ranks)


# One stage a rank


class _Ends(NamedTuple):
    """The messages of a rank with one stage."""

    rank: int
    ranks: int

    def receives(self, kind: Kind, micro: int) -> list[Operation]:
        there = self.rank > 0 if kind == "F" else self.rank < self.ranks - 1
        return [Operation("receive", kind, 0, micro)] if there else []

    def sends(self, kind: Kind, micro: int) -> list[Operation]:
        there = self.rank < self.ranks - 1 if kind == "F" else self.rank > 0
        return [Operation("send", kind, 0, micro)] if there else []


def _waits(started: Sequence[Operation]) -> list[Operation]:
    return [one._replace(does="received" if one.does == "receive" else "sent") for one in started]


def _gpipe(ends: _Ends, micro_steps: int) -> Iterator[Operation]:
    ways: tuple[Kind, Kind] = ("F", "B")
    for kind in ways:
        leaving: list[Operation] = []
        for micro in range(micro_steps):
            coming = ends.receives(kind, micro)
            yield from [*coming, *_waits(coming), Operation("pass", kind, 0, micro)]
            sends = ends.sends(kind, micro)
            yield from sends
            leaving += sends
        yield from _waits(leaving)
    yield Operation("reduce")


def _one_forward_one_backward(ends: _Ends, micro_steps: int) -> Iterator[Operation]:
    warmup = min(micro_steps, ends.ranks - ends.rank)
    leaving: list[Operation] = []
    sends: list[Operation] = []
    for micro in range(warmup):
        coming = ends.receives("F", micro)
        yield from [*coming, *_waits(coming), Operation("pass", "F", 0, micro), *_waits(leaving)]
        sends = ends.sends("F", micro)
        if micro < warmup - 1:  # the last one leaves together with the first receive of a gradient
            yield from sends
            leaving = sends
    for back in range(micro_steps):
        ahead = warmup + back
        together = [*sends, *ends.receives("B", back)]
        yield from [*together, *_waits(together), Operation("pass", "B", 0, back)]
        sends = ends.sends("B", back)
        if ahead >= micro_steps:
            break
        together = [*sends, *ends.receives("F", ahead)]
        yield from [*together, *_waits(together), Operation("pass", "F", 0, ahead)]
        sends = ends.sends("F", ahead)
    yield from sends
    leaving = sends
    for micro in range(back + 1, micro_steps):
        coming = ends.receives("B", micro)
        yield from [*coming, *_waits(coming), Operation("pass", "B", 0, micro), *_waits(leaving)]
        leaving = ends.sends("B", micro)
        yield from leaving
    yield from _waits(leaving)
    yield Operation("reduce")


# All others


def _performed(actions: Sequence[RuntimeAction]) -> Iterator[Operation]:
    """Perform the actions of a rank as `_PipelineScheduleRuntime._step_microbatches` does."""
    leaving: list[Operation] = []
    coming: set[Operation] = set()
    asked: set[int] = set()
    for kind, chunk, micro, _ in actions:
        if kind in ("RECV_F", "RECV_B"):
            receive = Operation("receive", "F" if kind == "RECV_F" else "B", chunk, micro)
            coming.add(receive)
            yield receive
        elif kind in ("SEND_F", "SEND_B"):
            leaving.append(Operation("send", "F" if kind == "SEND_F" else "B", chunk, micro))
            yield leaving[-1]
        elif kind == "UNSHARD":
            asked.add(chunk)
            yield Operation("unshard", chunk=chunk)
        elif kind == "RESHARD":
            yield Operation("reshard", chunk=chunk)
        elif kind == "REDUCE_GRAD":
            yield Operation("reduce", chunk=chunk)
        else:
            if chunk in asked:
                asked.remove(chunk)
                yield Operation("unsharded", chunk=chunk)
            receive = Operation("receive", "F" if kind == "F" else "B", chunk, micro)
            if kind != "W" and receive in coming:
                coming.remove(receive)
                yield from _waits([receive])
            yield Operation("pass", cast("Kind", kind), chunk, micro)
    yield from _waits(leaving[::-1])


@lru_cache(maxsize=4)  # each rank of a job asks for the lists of all ranks
def lowered(
    name: Name, ranks: int, micro_steps: int, chunks: int, group: int | None
) -> tuple[tuple[RuntimeAction, ...], ...]:
    """Return the actions of all ranks of a schedule that is performed action by action, in program order."""
    stages = [[stage_of(name, rank, chunk, ranks, chunks) for chunk in range(chunks)] for rank in range(ranks)]
    actions = [
        _with_reductions(_with_gathers(order(name, rank, ranks, micro_steps, chunks, group), stages[rank]), micro_steps)
        for rank in range(ranks)
    ]
    return _with_messages(actions, stages)


def _with_gathers(actions: Sequence[Action], stages: Sequence[int]) -> list[RuntimeAction]:
    """Gather the next stages before each pass, and free those that are not among them."""
    found: list[RuntimeAction] = []
    active: set[int] = set()  # of numbers of stages, in the order of a set, as PyTorch's
    for number, (action, coming) in enumerate(zip(actions, _coming(actions), strict=True)):
        if number == 0 or not actions[number - 1].with_next:  # a pair is one action
            following = [stages[chunk] for chunk in coming]
            fetched = [stage for stage in following if stage not in active]
            evicted = [stage for stage in active if stage not in following]
            for stage in evicted:
                active.remove(stage)
                found.append(RuntimeAction("RESHARD", stages.index(stage)))
            for stage in fetched:
                active.add(stage)
                found.append(RuntimeAction("UNSHARD", stages.index(stage)))
        found.append(RuntimeAction(action.kind, action.chunk, action.micro, action.with_next))
    found += [RuntimeAction("RESHARD", stages.index(stage)) for stage in active]
    return found


def _coming(actions: Sequence[Action]) -> list[tuple[int, ...]]:
    """Return the next chunks that compute, from each action on, the nearest first."""
    found: list[tuple[int, ...]] = []
    chunks: tuple[int, ...] = ()
    for action in reversed(actions):
        if chunks[:1] != (action.chunk,):
            chunks = (action.chunk, *(chunk for chunk in chunks if chunk != action.chunk))
        found.append(chunks[:MAX_ACTIVE_STAGES])
    return found[::-1]


def _with_reductions(actions: Sequence[RuntimeAction], micro_steps: int) -> list[RuntimeAction]:
    """Reduce a stage's gradients behind its last backward pass, or its last weight gradients."""
    found: list[RuntimeAction] = []
    done: dict[int, int] = {}
    for action in actions:
        found.append(action)
        if action.kind in ("B", "W"):
            done[action.chunk] = done.get(action.chunk, 0) + 1
            if done[action.chunk] == micro_steps:
                found.append(RuntimeAction("REDUCE_GRAD", action.chunk))
    return found


def _with_messages(
    actions: Sequence[Sequence[RuntimeAction]], stages: Sequence[Sequence[int]]
) -> tuple[tuple[RuntimeAction, ...], ...]:
    """Send behind each pass, and receive where the other rank stands by then."""
    places = {stage: (rank, chunk) for rank, of in enumerate(stages) for chunk, stage in enumerate(of)}
    found: list[list[RuntimeAction]] = [[] for _ in actions]
    ready: set[tuple[bool, int, int]] = set()
    """Passes that have what they need: forward or not, stage, micro-batch."""
    at = [0] * len(actions)
    going = [rank for rank, of in enumerate(actions) if of]
    while going:
        moved = False
        for rank in going:
            first = actions[rank][at[rank]]
            together = actions[rank][at[rank] : at[rank] + (2 if first.with_next else 1)]
            if not all(_is_ready(one, stages[rank][one.chunk], len(places) - 1, ready) for one in together):
                continue
            moved = True
            at[rank] += len(together)
            found[rank] += together
            for one in together:
                _send(one, rank, stages[rank][one.chunk], places, found, ready)
        if not moved:
            raise ValueError("the order deadlocks: no rank has what its next pass needs")
        going = [rank for rank in going if at[rank] < len(actions[rank])]
    return tuple(map(tuple, found))


def _is_ready(action: RuntimeAction, stage: int, last: int, ready: set[tuple[bool, int, int]]) -> bool:
    """Tell whether an action has what it needs of the stage before or after."""
    if action.kind == "F":
        return stage == 0 or (True, stage, action.micro) in ready
    if action.kind in ("B", "I"):
        return stage == last or (False, stage, action.micro) in ready
    return True


def _send(
    action: RuntimeAction,
    rank: int,
    stage: int,
    places: dict[int, tuple[int, int]],
    found: list[list[RuntimeAction]],
    ready: set[tuple[bool, int, int]],
) -> None:
    """Give what a pass has made to the next stage: by a message, unless that is on the same rank."""
    if action.kind not in ("F", "B", "I"):
        return
    forward = action.kind == "F"
    there = stage + (1 if forward else -1)
    if there not in places:
        return
    receiver, chunk = places[there]
    if receiver != rank:
        found[rank].append(RuntimeAction("SEND_F" if forward else "SEND_B", action.chunk, action.micro))
        found[receiver].append(RuntimeAction("RECV_F" if forward else "RECV_B", chunk, action.micro))
    ready.add((forward, there, action.micro))
