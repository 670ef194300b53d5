"""A schedule with prices: flat arrays that an engine can run through."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import overload

import numpy as np
from numpy.typing import NDArray

from twin.description.library import CollectiveKind
from twin.schedule.kernels import Attention, Gemm, Kernel, Memory
from twin.schedule.ops import Compute, Simple, Start

COMPUTE, START, WAIT = 0, 1, 2

Call = tuple[str, CollectiveKind, float]
"""What the price of a collective depends on, besides the placement of the group: communicator, kind, bytes.

A message between two is named as the first member of the group sees it: `send` is from the first to the second."""


@dataclass(frozen=True)
class Repeated:
    """Ops `first` to `first + length`, which come `count` times in a row, equal but for names."""

    first: int
    length: int
    count: int


Named = tuple[Simple, Mapping[str, int]]
"""An op, and what the variables in its name stand for."""


class Ops(Sequence[Named]):
    """The ops of a program with the values of the enclosing repeats: one object each of what is repeated.

    A pipeline of 64 stages and 512 micro-batches has millions of them, and a few hundred that differ.
    """

    def __init__(self) -> None:
        self.distinct: list[Simple] = []
        self.which = array("i")
        """Of each op: which of the distinct ones it is."""
        self._begins = array("q")
        self._values: list[Mapping[str, int]] = []
        self._numbers: dict[int, int] = {}
        """Of these, by what they are."""
        self._which_values = array("i")
        """Which of them the ops from each beginning on have."""
        self._more = array("q")
        """By how much more than these."""
        self._bodies = array("i")
        """Which body they are a copy of; -1 of none."""
        self._arrays: tuple[NDArray[np.int64], NDArray[np.int64]] | None = None

    def append(self, op: Simple, values: Mapping[str, int]) -> None:
        """Add an op that has not been there yet."""
        if not self._begins or self._values[self._which_values[-1]] is not values or self._more[-1]:
            self.begin(values)
        self.which.append(len(self.distinct))
        self.distinct.append(op)

    def begin(self, values: Mapping[str, int], body: int = -1) -> None:
        """Let the ops from here on have these values, as a copy of a body if that has a number."""
        self._begin(len(self.which), values, body)

    def again(self, first: int, stop: int, changed: Mapping[str, int]) -> None:
        """Add the ops of a stretch once more, with other values."""
        begin, end = bisect_right(self._begins, first) - 1, bisect_right(self._begins, stop - 1)
        shift = len(self.which) - first
        for number in range(begin, end):
            self._begin(max(self._begins[number], first) + shift, {**self._value(number), **changed})
        self.which.extend(self.which[first:stop])

    def rounds(self, first: int, count: int, by: int) -> None:
        """Let the copies from one on come so many times in all, each time with values that are more by so much."""
        number, length, again = bisect_left(self._begins, first), len(self.which) - first, count - 1
        begins, more = np.array(self._begins[number:]), np.array(self._more[number:])
        later = np.arange(1, count)[:, None]
        self._begins.frombytes((begins + length * later).tobytes())
        self._more.frombytes((more + by * later).tobytes())
        for column in (self._which_values, self._bodies):
            column.extend(column[number:] * again)
        self.which.extend(self.which[first:] * again)

    def copies(self, bodies: int) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
        """Return where the copies of each of so many bodies begin, and their numbers, ascending."""
        of = np.array(self._bodies)
        order = np.argsort(of, kind="stable")
        cuts = np.searchsorted(of[order], np.arange(bodies + 1))
        begins = self._stretches[0][order]
        return [(begins[a:b], order[a:b]) for a, b in pairwise(cuts.tolist())]

    def _begin(self, first: int, values: Mapping[str, int], body: int = -1) -> None:
        """Let the ops from one on have these values."""
        self._begins.append(first)
        number = self._numbers.setdefault(id(values), len(self._values))
        if number == len(self._values):
            self._values.append(values)
        self._which_values.append(number)
        self._more.append(0)
        self._bodies.append(body)

    def part(self, first: int, stop: int) -> Ops:
        """Return the ops of a stretch by what they are, without their names' values."""
        found = Ops()
        found.distinct, found.which = self.distinct, self.which[first:stop]
        return found

    def _value(self, number: int) -> Mapping[str, int]:
        """Return the values of a stretch."""
        values, more = self._values[self._which_values[number]], self._more[number]
        return {name: of + more for name, of in values.items()} if more else values

    def values_of(self, variable: str, ops: NDArray[np.int64], missing: int = -1) -> NDArray[np.int64]:
        """Return what a variable stands for in the names of these ops."""
        found: NDArray[np.int64] = self.values_of_stretches((variable,), missing)[variable][self.stretch_of(ops)]
        return found

    def values_of_stretches(self, variables: Collection[str], missing: int = -1) -> dict[str, NDArray[np.int64]]:
        """Return what variables stand for in each stretch of ops with equal values."""
        where: dict[str, tuple[list[int], list[int]]] = {variable: ([], []) for variable in variables}
        for number, values in enumerate(self._values):
            for variable in where.keys() & values.keys():
                numbers, known = where[variable]
                numbers.append(number)
                known.append(values[variable])
        absent, which, (_, more) = np.iinfo(np.int64).min, np.asarray(self._which_values), self._stretches
        found = {}
        for variable, (numbers, known) in where.items():
            column = np.full(len(self._values), absent)
            column[numbers] = known
            values_there = column[which]
            found[variable] = np.where(values_there == absent, missing, values_there + more)
        return found

    @property
    def _stretches(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Where stretches begin, and how much more than theirs their values are, as arrays."""
        if self._arrays is None or len(self._arrays[0]) != len(self._begins):
            self._arrays = np.array(self._begins, dtype=np.int64), np.array(self._more, dtype=np.int64)
        return self._arrays

    def stretch_of(self, ops: NDArray[np.int64]) -> NDArray[np.int64]:
        """Number stretches of ops whose variables stand for the same, and return those of these ops."""
        return np.searchsorted(self._stretches[0], ops, side="right") - 1

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, index: int) -> Named: ...

    @overload
    def __getitem__(self, index: slice) -> list[Named]: ...

    def __getitem__(self, index: int | slice) -> Named | list[Named]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        return self.distinct[self.which[index]], self._value(bisect_right(self._begins, index) - 1)

    def __iter__(self) -> Iterator[Named]:
        distinct, which = self.distinct, self.which
        for number, (begin, stop) in enumerate(pairwise([*self._begins, len(which)])):
            values = self._value(number)
            for i in range(begin, stop):
                yield distinct[which[i]], values


@dataclass(frozen=True)
class Program:
    """One rank's ops in program order.

    `code[i]` says what op i is;
    `target[i]` is, for a start, the index into `calls`; for a wait, the op index of its start.
    """

    ops: Ops
    code: array[int]
    amounts: array[float]
    """Of each distinct op: seconds of compute at nominal speed, of a start those before it begins."""
    target: array[int]
    hosts: array[float]
    """Of each distinct op: seconds of the host."""
    calls: list[Call]
    repeats: list[Repeated] = field(default_factory=list)
    """Stretches of the program that come several times in a row."""

    @cached_property
    def amount(self) -> array[float]:
        """The same of every op: a long program has millions, so whoever needs few asks for those."""
        return array("d", np.asarray(self.amounts)[np.asarray(self.ops.which)].tobytes())

    @cached_property
    def host_seconds(self) -> array[float]:
        """Seconds of the host of every op."""
        return array("d", np.asarray(self.hosts)[np.asarray(self.ops.which)].tobytes())

    @classmethod
    def empty(cls) -> Program:
        """Return one without ops."""
        return cls(Ops(), array("b"), array("d"), array("i"), array("d"), [])

    def __len__(self) -> int:
        return len(self.code)

    def name(self, op: int) -> str:
        """Return the full name of an op."""
        simple, values = self.ops[op]
        return simple.name.format_map(values)

    def each(self, of: Callable[[Simple], float]) -> NDArray[np.float64]:
        """Return a number of every op that depends on nothing but what is repeated."""
        numbers = np.array([of(op) for op in self.ops.distinct], dtype=np.float64)
        found: NDArray[np.float64] = numbers[np.asarray(self.ops.which)]
        return found

    @property
    def compute_seconds(self) -> float:
        """All compute ops, one after the other, at nominal speed."""
        return float(np.sum(np.asarray(self.amount)[np.asarray(self.code) == COMPUTE]))

    @property
    def start_seconds(self) -> float:
        """The longest that a start takes before it begins."""
        own = (amount for op, amount in zip(self.ops.distinct, self.amounts, strict=True) if isinstance(op, Start))
        return max(own, default=0.0)

    def stretched(self, factor: Callable[[Kernel], float]) -> Program:
        """Return the same program with other times of its kernels; a CPU's start of a collective is memory-bound."""
        start = factor(Memory(0.0))
        factors = [factor(op.kernel) if isinstance(op, Compute) else start for op in self.ops.distinct]
        return replace(self, amounts=array("d", (np.asarray(self.amounts) * factors).tobytes()))

    def flops(self) -> NDArray[np.float64]:
        """Flops of every op."""
        return self.each(lambda op: kernel_flops(op.kernel) if isinstance(op, Compute) else 0.0)


def kernel_flops(kernel: Kernel) -> float:
    """Flops of a kernel as the field counts them (matrix products only)."""
    return kernel.flops if isinstance(kernel, Gemm | Attention) else 0.0
