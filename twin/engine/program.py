"""A schedule with prices: flat arrays that an engine can run through.

Equal kernels and equal collectives are priced once; a GPT has a few dozen distinct ones.
"""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace
from typing import overload

import numpy as np
from numpy.typing import NDArray

from twin.cost.kernels import kernel_seconds, measured_kind
from twin.description.job import Job
from twin.description.library import CollectiveKind
from twin.schedule.kernels import Attention, Gemm, Kernel, Memory
from twin.schedule.ops import Compute, Op, Repeat, Schedule, Simple, Start

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


class Ops(Sequence[tuple[Simple, dict[str, int]]]):
    """The ops of a program with the values of the enclosing repeats: one object each of what is repeated.

    A pipeline of 64 stages and 512 micro-batches has millions of them, and a few hundred that differ.
    """

    def __init__(self) -> None:
        self.distinct: list[Simple] = []
        self.which = array("i")
        """Of each op: which of the distinct ones it is."""
        self._begins: list[int] = []
        self._values: list[dict[str, int]] = []
        """Values of the ops from each beginning on."""

    def append(self, op: Simple, values: dict[str, int]) -> None:
        """Add an op that has not been there yet."""
        if not self._values or self._values[-1] is not values:
            self._begins.append(len(self.which))
            self._values.append(values)
        self.which.append(len(self.distinct))
        self.distinct.append(op)

    def again(self, first: int, stop: int, changed: Mapping[str, int]) -> None:
        """Add the ops of a stretch once more, with other values."""
        begin, end = bisect_right(self._begins, first) - 1, bisect_right(self._begins, stop - 1)
        shift = len(self.which) - first
        for number in range(begin, end):
            self._begins.append(max(self._begins[number], first) + shift)
            self._values.append({**self._values[number], **changed})
        self.which.extend(self.which[first:stop])

    def __len__(self) -> int:
        return len(self.which)

    @overload
    def __getitem__(self, index: int) -> tuple[Simple, dict[str, int]]: ...

    @overload
    def __getitem__(self, index: slice) -> list[tuple[Simple, dict[str, int]]]: ...

    def __getitem__(self, index: int | slice) -> tuple[Simple, dict[str, int]] | list[tuple[Simple, dict[str, int]]]:
        if isinstance(index, slice):
            return [self[i] for i in range(*index.indices(len(self)))]
        index = range(len(self))[index]
        return self.distinct[self.which[index]], self._values[bisect_right(self._begins, index) - 1]

    def __iter__(self) -> Iterator[tuple[Simple, dict[str, int]]]:
        distinct, which = self.distinct, self.which
        for begin, stop, values in zip(self._begins, [*self._begins[1:], len(which)], self._values, strict=True):
            for i in range(begin, stop):
                yield distinct[which[i]], values


@dataclass(frozen=True)
class Program:
    """One rank's ops in program order.

    `code[i]` says what op i is. `amount[i]` is the seconds of compute at nominal speed, for a start
    those before it begins;
    `target[i]` is, for a start, the index into `calls`; for a wait, the op index of its start.
    """

    ops: Ops
    code: array[int]
    amount: array[float]
    target: array[int]
    host_seconds: array[float]
    calls: list[Call]
    repeats: list[Repeated] = field(default_factory=list)
    """Stretches of the program that come several times in a row."""

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

    def stretched(self, factor: Callable[[Kernel], float]) -> Program:
        """Return the same program with other times of its kernels; a CPU's start of a collective is memory-bound."""
        start = factor(Memory(0.0))
        factors = self.each(lambda op: factor(op.kernel) if isinstance(op, Compute) else start)
        return replace(self, amount=array("d", (np.asarray(self.amount) * factors).tobytes()))

    def flops(self) -> NDArray[np.float64]:
        """Flops of every op."""
        return self.each(lambda op: kernel_flops(op.kernel) if isinstance(op, Compute) else 0.0)


def compile_program(schedule: Schedule, job: Job) -> Program:
    """Flatten a schedule and price its compute ops on the job's device."""
    return compile_programs([(schedule, frozenset())], job)[0]


def compile_programs(schedules: Sequence[tuple[Schedule, frozenset[str]]], job: Job) -> list[Program]:
    """Flatten the schedules of all roles; they share one list of calls.

    With each schedule come the communicators of two in which its ranks are the second member.
    """
    calls: dict[Call, int] = {}
    programs = [Program.empty() for _ in schedules]
    for program, (schedule, second) in zip(programs, schedules, strict=True):
        _Compiler(program, job, calls, second).add(schedule.ops, {})
    for program in programs:
        program.calls.extend(calls)
    return programs


SEEN_BY_FIRST: dict[CollectiveKind, CollectiveKind] = {"send": "receive", "receive": "send"}
"""What a message of a pair's second member is to the first."""


class _Compiler:
    """Writes ops into a program; what a `Repeat` repeats is priced once and copied."""

    def __init__(self, program: Program, job: Job, calls: dict[Call, int], second: frozenset[str]) -> None:
        self.calls = calls
        self._second = second
        self._program = program
        self._job = job
        self._device = job.machine.device
        # a CPU issues kernels and runs them in the same thread, a GPU's host runs ahead
        self._on_device = self._device.type == "cpu"
        own = self._device.collective_host_seconds
        self._kernel_host = 0.0 if job.cuda_graphs else float(self._device.host_seconds)
        host = _COLLECTIVE_HOST_KERNELS * self._kernel_host if own is None or job.cuda_graphs else float(own)
        if job.profiler:
            self._kernel_host *= _PROFILED
            host *= _PROFILED
        self._collective = (host, 0.0) if self._on_device else (0.0, host)
        self._prices: dict[Kernel | tuple[Kernel, str], tuple[float, float]] = {}
        self._bodies: dict[int, tuple[int, int, Set[str]]] = {}
        """Where a repeated body was written, and below which repeats."""

    def add(self, ops: Sequence[Op], values: dict[str, int]) -> None:
        """Write these ops with these values of the enclosing repeats' variables.

        A wait's collective was started among the same ops.
        """
        program, calls, by_name = self._program, self.calls, {}
        append_op, append_code = program.ops.append, program.code.append
        append_amount, append_target = program.amount.append, program.target.append
        append_host = program.host_seconds.append
        for op in ops:
            if isinstance(op, Repeat):
                self._repeat(op, values)
                continue
            if isinstance(op, Compute):
                code, target = COMPUTE, -1
                amount, host = self._price(op)
            elif isinstance(op, Start):
                code, (amount, host) = START, self._collective
                kind = SEEN_BY_FIRST.get(op.kind, op.kind) if op.communicator in self._second else op.kind
                target = calls.setdefault((op.communicator, kind, op.bytes), len(calls))
                by_name[op.name] = len(program.code)
            else:
                code, amount, host, target = WAIT, 0.0, 0.0, by_name[op.name]
            append_op(op, values)
            append_code(code)
            append_amount(amount)
            append_target(target)
            append_host(host)

    def _repeat(self, repeat: Repeat, values: dict[str, int]) -> None:
        """Write the body for the first value, and copy it for the others; or copy what was written of it before."""
        if not repeat.values:
            return
        program, known = self._program, self._bodies.get(id(repeat.body))
        if known is not None and known[2] == values.keys():
            first, stop, _ = known
            again = repeat.values
        else:
            first = len(program.code)
            self.add(repeat.body, {**values, repeat.variable: repeat.values[0]})
            stop, again = len(program.code), repeat.values[1:]
            self._bodies[id(repeat.body)] = (first, stop, values.keys())
            if again:
                program.repeats.append(Repeated(first, stop - first, len(repeat.values)))
        if not again:
            return
        target = np.asarray(program.target[first:stop])
        waits = np.asarray(program.code[first:stop]) == WAIT
        length, shift = stop - first, len(program.code) - first
        copies = np.tile(target, (len(again), 1))
        copies[:, waits] += np.arange(len(again), dtype=target.dtype)[:, None] * length + shift
        program.target.frombytes(copies.astype(np.int32).tobytes())
        for value in again:
            program.ops.again(first, stop, {**values, repeat.variable: value})
        program.code.extend(program.code[first:stop] * len(again))
        program.amount.extend(program.amount[first:stop] * len(again))
        program.host_seconds.extend(program.host_seconds[first:stop] * len(again))

    def _price(self, op: Compute) -> tuple[float, float]:
        """Seconds on the device at nominal speed, and seconds of the host."""
        device, kernel = self._device, op.kernel
        kind = measured_kind(device, kernel, op.phase)
        key = (kernel, kind) if kind else kernel
        price = self._prices.get(key)
        if price is None:
            seconds = kernel_seconds(device, kernel, tuned=self._job.kernel_tuning, kind=kind)
            issue = (1 if kind in device.kernels else launches(kernel)) * self._kernel_host
            price = (seconds + issue, 0.0) if self._on_device else (seconds, issue)
            self._prices[key] = price
        return price


_COLLECTIVE_HOST_KERNELS = 2
"""A collective costs the host its launch and two stream events: about two kernels, unless the device says."""

_PROFILED = 30.498 / 17.839
"""Host time of an op under torch.profiler, over that without: a network on an A100 that only waits for its host takes
17.839 ms alone and 30.498 ms of host time when it is recorded (PyTorch 1.12; measured, github pytorch#82793)."""


def launches(kernel: Kernel) -> int:
    """How many device kernels the host launches for an op."""
    return 1 if isinstance(kernel, Gemm) else kernel.kernels


def kernel_flops(kernel: Kernel) -> float:
    """Flops of a kernel as the field counts them (matrix products only)."""
    return kernel.flops if isinstance(kernel, Gemm | Attention) else 0.0
