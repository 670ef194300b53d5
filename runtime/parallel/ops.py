"""Every piece of device work and every collective of a step has a name and passes through here.

* One mechanism serves recording, tracing and the search for the first non-finite number: a
  `Listener` that sees each op with its stable name, such as `micro0/fwd/block3/mlp_up/gemm`.
* What an op costs is said in the op language that the twin simulates: `twin.schedule.kernels`.
* Without a listener a compute op costs one function call; it is not even described.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeVar

from runtime.parallel.mesh import Communicator
from twin.description.library import CollectiveKind
from twin.schedule.kernels import Attention, Gemm, Kernel
from twin.schedule.ops import Phase

T = TypeVar("T")
Describe = Callable[[], Kernel]
"""Says what device work is, when somebody listens."""
_Key = tuple[int, str, str, Phase, int | None, int | None, str | None]
"""Where a step stands: how many ops of the micro-step were before, path, name, phase, micro-step, half and action."""


@dataclass(frozen=True, slots=True)
class Place:
    """Where in a step an op stands; `path` is such as `block3/mlp_up`."""

    path: str
    layer: int | None = None

    def under(self, part: str) -> Place:
        """Return the place one step further down."""
        return Place(f"{self.path}/{part}" if self.path else part, self.layer)


@dataclass(slots=True)
class Op:
    """What an op is, apart from when it ran; it is made while it runs, and worked out afterwards."""

    name: str
    phase: Phase
    layer: int | None
    micro: int | None
    sent_bytes: float = 0.0
    """Of a collective."""
    kind: CollectiveKind | None = None
    communicator: Communicator | None = None
    kernel: Kernel | None = None
    """What device work is."""

    @property
    def flops(self) -> float:
        """Of device work."""
        return 0.0 if self.kernel is None else self.kernel.flops

    @property
    def bytes(self) -> float:
        """What device work reads and writes, or a collective sends."""
        return self.sent_bytes if self.kernel is None else self.kernel.bytes

    @property
    def shape(self) -> tuple[int, ...]:
        """(m, n, k) of a matrix product; (sequences, length, heads, head size) of attention."""
        match self.kernel:
            case Gemm() as product:
                return product.m, product.n, product.k
            case Attention() as attention:
                return attention.sequences, attention.sequence_length, attention.heads, attention.head_size
        return ()


class Listener(Protocol):
    """What watches a step. `run` does the work and returns its result."""

    in_autograd: bool
    """Whether it hears of a region's backward pass where that begins and ends in autograd's graph (`Timer`); else the
    region is run apart, as `compute`."""

    def compute(self, op: Op, run: Callable[[], T]) -> T:
        """Do device work."""
        ...

    def start(self, op: Op, run: Callable[[], T]) -> T:
        """Start a collective."""
        ...

    def wait(self, op: Op, run: Callable[[], T]) -> T:
        """Wait for the collective that was started as `op`."""
        ...


class Timer(Listener, Protocol):
    """A listener that is told when work begins and ends."""

    def begin(self, op: Op) -> Any:
        """Device work begins; what is returned goes to `end`."""
        ...

    def end(self, begun: Any) -> None:
        """It has ended; the last call holds, if there are several."""
        ...


@dataclass
class Ops:
    """Names ops by where the step stands now, and hands them to the listener if there is one."""

    listener: Listener | None = None
    micro: int | None = None
    forward_phase: Phase = "fwd"
    """fwd, or recompute while a block is run again."""
    half: int | None = None
    """The half of a micro-step at work, where its sequences are taken in two."""
    pause: Callable[[Communicator], None] | None = None
    """Called before a collective over this communicator is waited for: something else may go on meanwhile."""
    action: str | None = None
    """What a pipeline's schedule calls the pass at work, in names instead of the phase; None where there is none."""
    _names: dict[tuple[Any, ...], str] = field(default_factory=dict)
    """Of ops, by where the step stands: the same in every step."""
    _known: dict[_Key, Op] = field(default_factory=dict)
    """Of micro-steps of one shape, by place in the micro-step and where the step stands: described once."""
    _shape: tuple[int, ...] | None = None
    _count: int = -1
    """Ops of this micro-step so far; -1 where descriptions may change."""

    def compute(
        self, place: Place, name: str, run: Callable[[], T], describe: Describe, *, phase: Phase | None = None
    ) -> T:
        """Do device work under a name; `phase` defaults to that of forward passes."""
        if self.listener is None:
            return run()
        return self.listener.compute(self.work(place, name, describe, phase), run)

    def work(self, place: Place, name: str, describe: Describe, phase: Phase | None = None) -> Op:
        """Describe device work at this point of the step."""
        key = self._next(place, name, phase)
        return self._known.get(key) or self._described(key, place, kernel=describe())

    def op(self, place: Place, name: str, phase: Phase | None = None, **facts: Any) -> Op:
        """Describe an op at this point of the step."""
        key = self._next(place, name, phase)
        return self._known.get(key) or self._described(key, place, **facts)

    def _next(self, place: Place, name: str, phase: Phase | None) -> _Key:
        if self._count >= 0:
            self._count += 1
        return self._count, place.path, name, phase or self.forward_phase, self.micro, self.half, self.action

    def _described(self, key: _Key, place: Place, **facts: Any) -> Op:
        stands, (_, _, name, phase, *_) = key[1:], key
        full = self._names.get(stands) or self._names.setdefault(stands, self._name(place, name, phase))
        op = Op(full, phase, place.layer, self.micro, **facts)
        if self._count >= 0:
            self._known[key] = op
        return op

    def _name(self, place: Place, name: str, actual: Phase) -> str:
        parts = [] if self.micro is None else [f"micro{self.micro}"]
        if self.half is not None:
            parts.append(f"half{self.half}")
        if self.action is not None:
            parts += [self.action, "" if actual in ("fwd", "bwd") else actual]
        else:
            parts.append(actual)
        parts += [place.path, name]
        return "/".join(part for part in parts if part)

    @contextmanager
    def micro_step(self, micro: int, shape: tuple[int, ...] | None = None) -> Iterator[None]:
        """Stand in one micro-step; of the shape that all its descriptions come from, if they come again."""
        self.micro = micro
        if shape is not None and self.listener is not None:  # else most ops pass without being counted
            if shape != self._shape:
                self._known.clear()
                self._shape = shape
            self._count = 0
        try:
            yield
        finally:
            self.micro, self._count = None, -1

    @contextmanager
    def in_half(self, half: int | None) -> Iterator[None]:
        """Stand in a half of a micro-step, if it has halves."""
        self.half = half
        try:
            yield
        finally:
            self.half = None

    @contextmanager
    def within(self, action: str) -> Iterator[None]:
        """Stand in one action of a pipeline's schedule."""
        before, self.action = self.action, action
        try:
            yield
        finally:
            self.action = before

    @contextmanager
    def recomputing(self) -> Iterator[None]:
        """Run a forward pass again."""
        self.forward_phase = "recompute"
        try:
            yield
        finally:
            self.forward_phase = "fwd"
