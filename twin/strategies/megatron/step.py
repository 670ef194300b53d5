"""The schedule of one training step of one rank of the pipeline."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import accumulate, chain

from twin.schedule.emit import Emitter
from twin.schedule.ops import Copy, Op, Rounds, Schedule
from twin.strategies.megatron.bodies import Bodies, Hooks, at_once
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.local import Local
from twin.strategies.megatron.messages import Mail, Post
from twin.strategies.megatron.orders import Action, Kind, ticks
from twin.strategies.megatron.place import Message, Pipeline, Stage
from twin.strategies.megatron.reduction import Buckets, Gathers, Parameters, finish
from twin.strategies.megatron.rounds import Pattern, Round, Unit
from twin.strategies.megatron.sharded import Sharding

PASSES: tuple[Kind, ...] = ("F", "B", "I")
"""Those that need and give something; weight gradients do not."""
MIN_UNITS = 8
"""Fewer are written as they are."""


def generate(job: MegatronJob, rank: int) -> Schedule:
    """Write the program of the ranks at one place of the pipeline."""
    return _Writer(job, rank).schedule()


@dataclass
class _Writer:
    job: MegatronJob
    rank: int
    emit: Emitter = field(default_factory=lambda: Emitter("", "fwd"))
    gathers: dict[int, Gathers] = field(default_factory=dict)
    """Of each chunk whose weights are on their way."""
    buckets: dict[int, Buckets] = field(default_factory=dict)
    """Of each chunk whose gradients are."""
    incoming: dict[tuple[Kind, int], Message] = field(default_factory=dict)
    """What passes of a kind and chunk need of other ranks."""
    outgoing: dict[tuple[Kind, int], Message] = field(default_factory=dict)
    """What they give to other ranks."""

    def __post_init__(self) -> None:
        self.local = Local(self.job)
        self.pipeline = Pipeline(self.job)
        self.stages = self.pipeline.stages(self.rank)
        self.several = self.pipeline.chunks > 1
        self.parameters = Parameters(self.job, self.local)
        self.bodies = Bodies(self.job, self.local, self.several)
        self.post = Post(self.emit, self.local, self.several)
        self.actions = self.pipeline.actions(self.rank)
        self.ends = _firsts(reversed(self.actions), ("B", "W"), len(self.stages))
        ways = [(kind, chunk) for kind in PASSES for chunk in range(self.pipeline.chunks)]
        for messages, of in ((self.incoming, self.pipeline.incoming), (self.outgoing, self.pipeline.outgoing)):
            found = {way: of(self.rank, way[1], forward=way[0] == "F") for way in ways}
            messages.update({way: message for way, message in found.items() if message is not None})
        begins = _firsts(self.actions, ("B", "I"), len(self.stages))
        self.begins = {chunk: action.micro for chunk, action in begins.items()}
        opened = _firsts(self.actions, ("F",), len(self.stages))
        self.opened = tuple(opened[chunk] for chunk in _firsts(reversed(self.actions), ("F",), len(self.stages)))
        self.sharding: Sharding | None = None
        self.whole: set[int] = set()
        """Chunks that UNSHARD has gathered, and that have not computed since: the next pass gathers nothing."""
        if self.job.weight_parts > 1:
            self.sharding = Sharding(self.parameters, () if self.job.unshards else self.opened)

    def schedule(self) -> Schedule:
        """Write everything."""
        self._gather()
        if self.job.order == "deepspeed":
            self._in_ticks()
        elif self.job.as_pytorch:
            self._as_pytorch()
        elif self.job.waits_for_messages:
            if self.job.order == "interleaved":
                self._in_pairs()
            else:
                self._waiting()
        else:
            self._overlapping()
        self.post.end()
        self.post.write()
        reduce = self.emit.under("reduce", phase="reduce")
        started = [name for bucket in self.buckets.values() for name in bucket.started]
        finish(reduce, self.parameters, self.stages, started)
        return Schedule(tuple(self.emit.ops))

    def _as_pytorch(self) -> None:
        """PyTorch's operations, one by one."""
        for does, kind, chunk, micro in self.pipeline.operations(self.rank):
            action, stage = Action(kind, micro, chunk), self.stages[chunk]
            if does == "pass":
                self._act(action)
            elif does == "receive":
                self.post.post(self._incoming(action))
            elif does == "received":
                self.post.take(self._incoming(action))
            elif does == "send":
                self.post.send(self._outgoing(action))
            elif does == "sent":
                self.post.sent(self._outgoing(action))
            elif does == "reduce" and not self.job.reduces_before_sending:
                self._reduce(stage)
            elif does in ("unshard", "unsharded") and self.sharding is not None and self.job.unshards:
                self.post.write()
                if does == "unshard":
                    self.sharding.unshard(self.emit.under("fwd"), stage)
                    continue
                self.sharding.unsharded(stage)
                if self.job.reshards:
                    self.whole.add(chunk)

    def _waiting(self) -> None:
        """Wait for each message where it is sent, together with one that comes from the same peer."""
        for number in self._numbers([(action,) for action in self.actions]):
            action, following = self.actions[number], self.actions[number + 1 : number + 2]
            self.post.take(self._incoming(action))
            self._act(action)
            sent = self._outgoing(action)
            coming = self._incoming(following[0]) if following else None
            fused = sent is not None and coming is not None and sent[0].peers == coming[0].peers
            self.post.exchange([sent], [coming] if fused else [])

    def _in_pairs(self) -> None:
        """Interleaved: behind each pair of passes all its messages, and those that the next pair needs."""
        pairs = _pairs(self.actions)
        self.post.exchange([], [self._incoming(action) for action in pairs[0]])
        for number in self._numbers(pairs):
            pair, following = pairs[number], pairs[number + 1 : number + 2]
            for action in pair:
                self._act(action)
            self.post.exchange(
                [self._outgoing(action) for action in pair],
                [self._incoming(action) for action in chain.from_iterable(following)],
            )

    def _numbers(self, units: Sequence[Unit], *, far: bool = False) -> Iterator[int]:
        """Yield the numbers of units that are to be written; what comes again is one op with all of its rounds.

        `far`: what is written for a unit may depend on units far behind it.
        """
        if self.sharding is not None or len(units) < MIN_UNITS:
            yield from range(len(units))
            return
        pattern = Pattern(units)
        by = (self.job.group or self.pipeline.ranks) if self.job.order == "interleaved" else 1
        found = pattern.round(by)

        def inside(begin: int, end: int) -> Iterator[int]:
            for run in () if far else pattern.runs(begin, end):
                yield from range(begin, run.first)
                yield from self._rounds(run, range(run.first, run.first + run.length))
                begin = run.stop
            yield from range(begin, end)

        if found is None:
            yield from inside(0, len(units))
            return
        yield from inside(0, found.first)
        yield from self._rounds(found, inside(found.first, found.first + found.length))
        yield from inside(found.stop, len(units))

    def _rounds(self, found: Round, numbers: Iterable[int]) -> Iterator[int]:
        """Yield the numbers of units that are written in a round, and make one op of them."""
        self.post.write()
        begin, before = len(self.emit.ops), self.post.known()
        yield from numbers
        self.post.write()
        self.emit.ops[begin:] = [Rounds(_copies(self.emit.ops[begin:]), found.count, found.by)]
        self.post.later(before, found.count, found.by)

    def _incoming(self, action: Action) -> Mail | None:
        message = self.incoming.get((action.kind, action.chunk))
        return None if message is None else (message, action.micro)

    def _outgoing(self, action: Action) -> Mail | None:
        message = self.outgoing.get((action.kind, action.chunk))
        return None if message is None else (message, action.micro)

    def _overlapping(self) -> None:
        """Send and go on; be ready for the next message while the op before it runs.

        Passes at once need what comes for both, and send when both are done.
        """
        coming = [self._incoming(action) for action in self.actions]
        following: list[Mail | None] = [None]
        for mail in reversed(coming[1:]):
            following.append(following[-1] if mail is None else mail)
        following.reverse()
        units = _at_once(self.actions)
        starts = list(accumulate(map(len, units), initial=0))
        for number in self._numbers(units, far=True):
            together, begin, end = units[number], starts[number], starts[number + 1]
            for mail in coming[begin:end]:
                self.post.post(mail)
            for mail in coming[begin:end]:
                self.post.take(mail)
            self.post.post(following[end - 1])
            if len(together) == 1:
                self._act(together[0])
            else:
                self._act_at_once(*together)
            for action in together:
                self.post.send(self._outgoing(action))

    def _act_at_once(self, ahead: Action, behind: Action) -> None:
        """Write a forward and a backward pass of which each goes on where the other waits."""
        self.post.write()
        hooks = [self._hooks(action) for action in (ahead, behind)]
        first = self._is_first(behind)
        if hooks == [None, None]:
            self.emit.ops.append(self.bodies.pair(ahead, behind, self.stages, first=first))
        else:
            passes = [
                self.bodies.alone(action, self.stages[action.chunk], beside or Hooks(), first=first)
                for action, beside in zip((ahead, behind), hooks, strict=True)
            ]
            self.emit.ops += at_once(*passes)

    def _reduce(self, stage: Stage) -> None:
        """Reduce a stage's gradients of all micro-steps, where weights are cut."""
        if self.sharding is not None:
            self.post.write()
            self.sharding.reduce(self.emit.under("reduce"), stage)

    def _in_ticks(self) -> None:
        """DeepSpeed's instructions, one by one."""
        of_ticks = ticks(self.rank, self.pipeline.ranks, self.job.micro_steps)
        for instruction in chain.from_iterable(of_ticks):
            kind, micro = instruction.kind, instruction.micro
            forward, back = Action("F", micro), Action("B", micro)
            if kind == "ForwardPass":
                self._act(forward)
            elif kind == "BackwardPass":
                self._act(back)
            elif kind == "RecvActivation":
                self.post.take(self._incoming(forward))
            elif kind == "RecvGrad":
                self.post.take(self._incoming(back))
            elif kind == "SendActivation":
                self.post.exchange([self._outgoing(forward)], [])
            elif kind == "SendGrad":
                self.post.exchange([self._outgoing(back)], [])

    def _act(self, action: Action) -> None:
        """Write what an action does, behind the messages that come before it."""
        self.post.write()
        stage, first = self.stages[action.chunk], self._is_first(action)
        if action.chunk in self.whole:
            self.whole.remove(action.chunk)
            self.emit.ops.append(self.bodies.of(action, stage, first=first))
        elif self.sharding is not None and not self.sharding.alone(action):
            beside = partial(self.sharding.hooks, action, stage, first=first)
            self.emit.ops.append(self.bodies.of(action, stage, beside, first=first))
        elif (hooks := self._hooks(action)) is None:
            self.emit.ops.append(self.bodies.of(action, stage, first=first))
        else:
            self.emit.ops += self.bodies.alone(action, stage, hooks, first=first)
        if self.job.as_pytorch and self.job.reduces_before_sending and action == self.ends[action.chunk]:
            self._reduce(stage)

    def _is_first(self, action: Action) -> bool:
        """Tell whether an action writes the sums of its chunk's gradients."""
        return action.micro == self.begins.get(action.chunk)

    def _hooks(self, action: Action) -> Hooks | None:
        """Return what happens beside this action and not beside others of its kind; None if nothing does."""
        stage = self.stages[action.chunk]
        if self.sharding is not None:
            return self.sharding.hooks(action, stage, first=self._is_first(action)) if action in self.opened else None
        if action.kind == "F":
            return self.gathers.pop(action.chunk, None)
        if self.job.overlap_gradients and self.parameters.sharers > 1 and action == self.ends[action.chunk]:
            buckets = self.buckets[action.chunk] = Buckets(self.parameters, stage, cut=_is_cut(stage))
            return buckets
        return None

    def _gather(self) -> None:
        """Begin to gather what other ranks have updated."""
        if self.job.overlap_parameters and self.parameters.sharers > 1:
            for stage in sorted(self.stages, key=lambda stage: stage.number):  # alike on both ranks of DualPipe
                gathers = Gathers(self.parameters, stage, cut=_is_cut(stage))
                gathers.begin(self.emit.under("weights"))
                self.gathers[stage.chunk] = gathers


def _firsts(actions: Iterable[Action], kinds: Sequence[Kind], chunks: int) -> dict[int, Action]:
    """Return the first action of these kinds of each chunk."""
    found: dict[int, Action] = {}
    for action in actions:
        if action.kind in kinds and action.chunk not in found:
            found[action.chunk] = action
            if len(found) == chunks:
                break
    return found


def _copies(ops: Iterable[Op]) -> tuple[Copy | Rounds, ...]:
    """Return what a round is written of; an op of one micro-batch alone cannot come again."""
    found: list[Copy | Rounds] = []
    for op in ops:
        if not isinstance(op, Copy | Rounds):
            raise TypeError(f"a round is written of copies, and {op} is none")
        found.append(op)
    return tuple(found)


def _is_cut(stage: Stage) -> bool:
    """Only the first chunk of the first rank travels in buckets (`disable_bucketing`): the model's first stage."""
    return stage.number == 0


def _at_once(actions: Sequence[Action]) -> list[Unit]:
    """Put actions that overlap together."""
    found: list[Unit] = []
    at = 0
    while at < len(actions):
        size = 2 if actions[at].with_next else 1
        found.append(tuple(actions[at : at + size]))
        at += size
    return found


def _pairs(actions: Sequence[Action]) -> list[Unit]:
    """Divide a rank's actions where it communicates: a forward pass alone, or with the backward pass after it."""
    forward = [action.kind == "F" for action in actions]
    forward.append(True)  # nothing comes behind the last one
    found: list[Unit] = []
    at = 0
    while at < len(actions):
        if forward[at] and not forward[at + 1]:
            found.append((actions[at], actions[at + 1]))
            at += 2
        else:
            found.append((actions[at],))
            at += 1
    return found
