"""A schedule with prices: flat arrays that an engine can run through.

Equal kernels and equal collectives are priced once; a GPT has a few dozen distinct ones.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from twin.cost.kernels import kernel_seconds, kind_of_work
from twin.description.job import Job
from twin.description.library import CollectiveKind
from twin.schedule.kernels import Attention, Gemm, Kernel
from twin.schedule.ops import Communicator, Compute, Schedule, Simple, Start

COMPUTE, START, WAIT = 0, 1, 2

Call = tuple[Communicator, CollectiveKind, float]
"""What the price of a collective depends on, besides the placement of the group."""


@dataclass(frozen=True)
class Program:
    """One rank's ops in program order.

    `code[i]` says what op i is. `amount[i]` is the seconds of compute at nominal speed, for a start
    those before it begins;
    `target[i]` is, for a start, the index into `calls`; for a wait, the op index of its start.
    """

    ops: list[tuple[Simple, dict[str, int]]]
    code: list[int]
    amount: list[float]
    target: list[int]
    host_seconds: list[float]
    calls: list[Call]

    def __len__(self) -> int:
        return len(self.code)

    @property
    def compute_seconds(self) -> float:
        """All compute ops, one after the other, at nominal speed."""
        return float(
            np.sum([a for c, a in zip(self.code, self.amount, strict=True) if c == COMPUTE])
        )

    def flops(self) -> NDArray[np.float64]:
        """Flops of every op."""
        return np.array(
            [kernel_flops(op.kernel) if isinstance(op, Compute) else 0.0 for op, _ in self.ops]
        )


def compile_program(schedule: Schedule, job: Job) -> Program:
    """Flatten a schedule and price its compute ops on the job's device."""
    device = job.machine.device
    prices: dict[tuple[Kernel, str], tuple[float, float]] = {}
    calls: dict[Call, int] = {}
    handles: dict[tuple[str, tuple[int, ...]], int] = {}
    program = Program([], [], [], [], [], [])
    collective_host = _COLLECTIVE_HOST_KERNELS * device.host_seconds
    # a CPU issues kernels and runs them in the same thread, a GPU's host runs ahead
    on_device = device.type == "cpu"
    split = job.concrete_grid.x > 1
    for op, values in schedule.flat():
        index = len(program.code)
        program.ops.append((op, values))
        amount, target, host = 0.0, -1, 0.0
        if isinstance(op, Compute):
            code = COMPUTE
            kind = kind_of_work(op.name, op.phase) if device.kernels else ""
            if split and f"{kind}/split" in device.kernels:
                kind += "/split"  # a norm over features that are split is other work
            price = prices.get((op.kernel, kind))
            if price is None:
                seconds = kernel_seconds(device, op.kernel, tuned=job.kernel_tuning, kind=kind)
                count = 1 if kind in device.kernels else launches(op.kernel)
                issue = count * device.host_seconds
                price = (seconds + issue, 0.0) if on_device else (seconds, issue)
                prices[op.kernel, kind] = price
            amount, host = price
        elif isinstance(op, Start):
            code = START
            amount, host = (collective_host, 0.0) if on_device else (0.0, collective_host)
            target = calls.setdefault((op.communicator, op.kind, op.bytes), len(calls))
            handles[op.name, tuple(values.values())] = index
        else:
            code = WAIT
            target = handles[op.name, tuple(values.values())]
        program.code.append(code)
        program.amount.append(amount)
        program.target.append(target)
        program.host_seconds.append(host)
    program.calls.extend(calls)
    return program


_COLLECTIVE_HOST_KERNELS = 2
"""A collective costs the host its launch and two stream events: about two kernels."""


def launches(kernel: Kernel) -> int:
    """How many device kernels the host launches for an op."""
    return 1 if isinstance(kernel, Gemm) else kernel.kernels


def kernel_flops(kernel: Kernel) -> float:
    """Flops of a kernel as the field counts them (matrix products only)."""
    return kernel.flops if isinstance(kernel, Gemm | Attention) else 0.0
