"""The op language: `Compute`, `Start`, `Wait`, `Repeat`, `Copy`, `Rounds`.

A schedule is what one rank issues, in program order. Computes run one after the other on the
rank's compute stream. A `Start` puts a collective on its communicator's stream once all
compute issued before it is done; a `Wait` holds the compute stream until that collective is.

* Names are stable across runs and halves of Fourfold, such as
  `micro0/fwd/block3/mlp_up/gemm`; a `Repeat` fills in its variable (`micro{micro}`), a `Copy` its variables.
* An op carries what its cost depends on and nothing about the machine.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Literal

from twin.description.library import CollectiveKind
from twin.schedule.kernels import Kernel

Phase = Literal["fwd", "loss", "recompute", "bwd", "reduce", "optimizer"]

OWN_STREAMS = ("down", "up", "cast", "cpu", "disk_read", "disk_write")
"""Streams of each rank by itself: copies to and from its host, those that change types, the host's cores, its drives in
each direction."""


def axis_of(communicator: str) -> str:
    """Return the axis that a communicator's time is booked under: its name up to the first underscore.

    Communicators of one axis differ in what they are for, as `z_gather` and `z_scatter`, and each has a
    stream of its own.

    >>> axis_of("z_gather"), axis_of("data")
    ('z', 'data')
    """
    return communicator.partition("_")[0]


@dataclass(frozen=True, slots=True)
class Compute:
    """Device work on the compute stream."""

    name: str
    phase: Phase
    kernel: Kernel
    layer: int | None = None


@dataclass(frozen=True, slots=True)
class Start:
    """Begin a collective, a message or a copy on its communicator's stream.

    `bytes` is the gathered output of an all-gather, the input of a reduce-scatter or of an all-to-all, the
    buffer of an all-reduce, the message of a send or receive, what a copy moves: on one rank.
    """

    name: str
    phase: Phase
    kind: CollectiveKind
    communicator: str
    bytes: float
    layer: int | None = None

    @property
    def axis(self) -> str:
        """The axis that its time is booked under."""
        return axis_of(self.communicator)


@dataclass(frozen=True, slots=True)
class Wait:
    """Hold the compute stream until the collective of this name is done."""

    name: str
    phase: Phase
    layer: int | None = None


@dataclass(frozen=True, slots=True)
class Repeat:
    """The body, once for each value of the variable; names in it may contain `{variable}`."""

    variable: str
    values: tuple[int, ...]
    body: tuple[Op, ...]


Simple = Compute | Start | Wait


@dataclass(frozen=True, slots=True)
class Copy:
    """One of many copies of a body, which are equal but for what their names' variables stand for.

    A wait in it may be for what another copy has started: their names, filled in, are the same. Each name that does
    so has one variable.
    """

    body: tuple[Op, ...]
    """Single ops."""
    values: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class Rounds:
    """Copies that come several times: what their variables stand for is more by so much each time."""

    body: tuple[Copy | Rounds, ...]
    count: int
    by: int


Op = Compute | Start | Wait | Repeat | Copy | Rounds


@dataclass(frozen=True, slots=True)
class Schedule:
    """What every rank of a role does in one step."""

    ops: tuple[Op, ...]

    def flat(self) -> Iterator[tuple[Simple, dict[str, int]]]:
        """Yield every op in program order with the values of the enclosing repeats."""
        yield from _flatten(self.ops, {})

    def named(self) -> Iterator[tuple[str, Simple]]:
        """Yield (name with variables filled in, op) in program order."""
        for op, values in self.flat():
            yield op.name.format_map(values), op


def _flatten(ops: tuple[Op, ...], values: dict[str, int]) -> Iterator[tuple[Simple, dict[str, int]]]:
    for op in ops:
        if isinstance(op, Repeat):
            for value in op.values:
                yield from _flatten(op.body, {**values, op.variable: value})
        elif isinstance(op, Copy):
            yield from _flatten(op.body, {**values, **op.values})
        elif isinstance(op, Rounds):
            for number in range(op.count):
                for copy in _later(op, number):
                    yield from _flatten(copy.body, {**values, **copy.values})
        else:
            yield op, values


def _later(rounds: Rounds, number: int, by: int = 0) -> Iterator[Copy]:
    """Yield the copies of a round by its number."""
    by += number * rounds.by
    for op in rounds.body:
        if isinstance(op, Rounds):
            for inner in range(op.count):
                yield from _later(op, inner, by)
        else:
            yield Copy(op.body, {name: of + by for name, of in op.values.items()})
