"""Schedules become programs: flattened and priced.

Equal kernels and equal collectives are priced once; a GPT has a few dozen distinct ones. What is repeated or copied
is written once, and its columns are copied.
"""

from __future__ import annotations

import re
from array import array
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from twin.cost.core_gemm import with_library
from twin.cost.kernels import kernel_seconds, measured_kind, without_cudnn
from twin.description.job import Job
from twin.description.library import CollectiveKind
from twin.engine.program import COMPUTE, START, WAIT, Call, Program, Repeated
from twin.schedule.kernels import Gemm, Kernel
from twin.schedule.ops import Compute, Copy, Op, Repeat, Rounds, Schedule, Start, Wait
from twin.strategies import strategy_of


def compile_program(schedule: Schedule, job: Job) -> Program:
    """Flatten a schedule and price its compute ops on the job's device."""
    return compile_programs([(schedule, frozenset())], job)[0]


def compile_programs(schedules: Sequence[tuple[Schedule, frozenset[str]]], job: Job) -> list[Program]:
    """Flatten the schedules of all roles; they share one list of calls.

    With each schedule come the communicators of two in which its ranks are the second member.
    """
    calls: dict[Call, int] = {}
    programs = [Program.empty() for _ in schedules]
    prices: Prices = {}
    for program, (schedule, second) in zip(programs, schedules, strict=True):
        compiler = _Compiler(program, job, calls, prices, second)
        compiler.add(schedule.ops, {})
        compiler.finish()
    for program in programs:
        program.calls.extend(calls)
    return programs


SEEN_BY_FIRST: dict[CollectiveKind, CollectiveKind] = {"send": "receive", "receive": "send"}
"""What a message of a pair's second member is to the first."""


Prices = dict[Kernel | tuple[Kernel, str], tuple[float, float]]
"""Seconds on the device and of the host, of kernels that have been priced."""
VARIABLE = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True)
class _Body:
    """What is copied: its columns as they were first written, and where it is."""

    first: int
    """Where it was written."""
    columns: tuple[array[int], ...]
    """Which of the distinct ops they are, codes, targets."""
    inner: NDArray[np.int64]
    """Places of waits for what the same copy starts."""
    starts: list[_Name]
    """The starts in it whose names have a variable."""
    open: list[_Name]
    """The same of waits for what another copy starts."""

    @classmethod
    def written(cls, program: Program, first: int, ops: Sequence[Op], open_: Set[int]) -> _Body:
        """Take what was written last; `open_` are ops that wait for something else."""
        columns = (program.ops.which, program.code, program.target)
        waits = [(place, op.name) for place, op in enumerate(ops) if isinstance(op, Wait)]
        return cls(
            first,
            tuple(column[first:] for column in columns),
            np.array([place for place, _ in waits if first + place not in open_], dtype=np.int64),
            _Name.each((place, op.name) for place, op in enumerate(ops) if isinstance(op, Start)),
            _Name.each((place, name) for place, name in waits if first + place in open_),
        )


class _Name(NamedTuple):
    """The name of an op in a body."""

    place: int
    template: str
    """Its variable left out."""
    variable: str

    @classmethod
    def each(cls, names: Iterable[tuple[int, str]]) -> list[_Name]:
        """Read names; one without a variable is left out: it stands for nothing in another copy."""
        found = ((place, name, VARIABLE.search(name)) for place, name in names)
        return [cls(place, name.replace(of[0], "{}"), of[1]) for place, name, of in found if of is not None]


_Places = tuple[NDArray[np.int64], NDArray[np.int64]]
"""What a variable stands for, and the op where it does."""


def _joined(several: Sequence[_Places]) -> _Places:
    """Put places together, in the order of what the variable stands for."""
    values, ops = (np.concatenate(columns) for columns in zip(*several, strict=True))
    order = np.argsort(values)
    return values[order], ops[order]


class _Compiler:
    """Writes ops into a program."""

    def __init__(
        self, program: Program, job: Job, calls: dict[Call, int], prices: Prices, second: frozenset[str]
    ) -> None:
        self.calls = calls
        self._second = second
        self._program = program
        self._job = job
        device = with_library(job.machine.device, job.train.gemm_library)
        self._device = device if job.takes_cudnn_attention else without_cudnn(device)
        # a CPU issues kernels and runs them in the same thread, a GPU's host runs ahead
        self._on_device = self._device.type == "cpu"
        self._longer = 0.0 if job.cuda_graphs else _PROFILED if job.profiler else 1.0
        self._kernel_host = float(self._device.host_seconds) * self._longer
        own = self._device.collective_host_seconds
        self._collective = self._issue(_COLLECTIVE_HOST_KERNELS * self._device.host_seconds if own is None else own)
        issued = {name: self._device.issue.by(software) for name, software in strategy_of(job).issued_by(job).items()}
        self._issued = {name: self._issue(seconds) for name, seconds in issued.items() if seconds is not None}
        """Of communicators whose software is known, in place of that."""
        self._prices = prices
        self._bodies: dict[int, tuple[int, int, Set[str]]] = {}
        """Where a repeated body was written, and below which repeats."""
        self._numbers: dict[int, int] = {}
        """Of bodies that are copied."""
        self._copied: list[_Body] = []
        self._open: set[int] = set()
        """Waits for what another copy starts."""

    def add(self, ops: Sequence[Op], values: Mapping[str, int], *, copied: bool = False) -> None:
        """Write these ops with these values of the enclosing repeats' variables.

        A wait's collective was started among the same ops, but in a copy.
        """
        program, calls, by_name = self._program, self.calls, {}
        append_op, append_code = program.ops.append, program.code.append
        append_amount, append_target = program.amounts.append, program.target.append
        append_host, issued = program.hosts.append, self._issued
        for op in ops:
            if isinstance(op, Compute):
                code, target = COMPUTE, -1
                amount, host = self._price(op)
            elif isinstance(op, Start):
                code, (amount, host) = START, issued.get(op.communicator, self._collective)
                kind = SEEN_BY_FIRST.get(op.kind, op.kind) if op.communicator in self._second else op.kind
                target = calls.setdefault((op.communicator, kind, op.bytes), len(calls))
                by_name[op.name] = len(program.code)
            elif isinstance(op, Copy):
                self._copy(op)
                continue
            elif isinstance(op, Rounds):
                self._rounds(op)
                continue
            elif isinstance(op, Repeat):
                self._repeat(op, values)
                continue
            else:
                code, amount, host = WAIT, 0.0, 0.0
                if copied and op.name not in by_name:
                    self._open.add(len(program.code))
                target = by_name.get(op.name, -1) if copied else by_name[op.name]
            append_op(op, values)
            append_code(code)
            append_amount(amount)
            append_target(target)
            append_host(host)

    def _copy(self, copy: Copy) -> None:
        """Write a body the first time, later its columns; what waits in it wait for is settled at the end."""
        program, first = self._program, len(self._program)
        number = self._numbers.setdefault(id(copy.body), len(self._numbers))
        program.ops.begin(copy.values, number)
        if number == len(self._copied):
            self.add(copy.body, copy.values, copied=True)
            self._copied.append(_Body.written(program, first, copy.body, self._open))
            return
        for column, own in zip(
            (program.ops.which, program.code, program.target), self._copied[number].columns, strict=True
        ):
            column.extend(own)

    def finish(self) -> None:
        """Settle what the waits in copies wait for."""
        target, ops, bodies = np.asarray(self._program.target), self._program.ops, self._copied
        variables = {each.variable for body in bodies for each in (*body.starts, *body.open)}
        values = ops.values_of_stretches(variables)
        copies = ops.copies(len(bodies))
        started: dict[str, list[_Places]] = {}
        for body, (firsts, numbers) in zip(bodies, copies, strict=True):
            shifts = (firsts - body.first).astype(target.dtype)
            target[firsts[:, None] + body.inner] += shifts[:, None]
            for place, name, variable in body.starts:
                started.setdefault(name, []).append((values[variable][numbers], firsts + place))
        in_order: dict[str, _Places] = {}
        for body, (firsts, numbers) in zip(bodies, copies, strict=True):
            for place, name, variable in body.open:
                if name not in in_order:
                    in_order[name] = _joined(started[name])
                known, starts = in_order[name]
                target[firsts + place] = starts[np.searchsorted(known, values[variable][numbers])]

    def _rounds(self, rounds: Rounds) -> None:
        """Write the copies of a round, and what they are in all of them."""
        program, first = self._program, len(self._program)
        for op in rounds.body:
            if isinstance(op, Rounds):
                self._rounds(op)
            else:
                self._copy(op)
        length, count = len(program) - first, rounds.count
        program.repeats.append(Repeated(first, length, count))
        program.ops.rounds(first, count, rounds.by)
        program.code.extend(program.code[first:] * (count - 1))
        program.target.extend(program.target[first:] * (count - 1))

    def _repeat(self, repeat: Repeat, values: Mapping[str, int]) -> None:
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

    def _issue(self, seconds: float) -> tuple[float, float]:
        """Return what issuing a collective takes as seconds on the device, and of the host."""
        own = seconds * self._longer
        return (own, 0.0) if self._on_device else (0.0, own)

    def _price(self, op: Compute) -> tuple[float, float]:
        """Seconds on the device at nominal speed, and seconds of the host."""
        device, kernel = self._device, op.kernel
        kind = measured_kind(device, kernel, op.phase)
        key = (kernel, kind) if kind else kernel
        price = self._prices.get(key)
        if price is None:
            seconds = kernel_seconds(device, kernel, tuned=self._job.tunes_products, kind=kind)
            issue = (1 if kind in device.kernels else launches(kernel)) * self._kernel_host
            if device.cold_host is not None:
                issue += device.cold_host.behind(kernel.bytes) * self._longer
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
