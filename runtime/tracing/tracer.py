"""Traces chosen steps of a run."""

from __future__ import annotations

import platform
from datetime import timedelta
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist

from runtime.context import Context
from runtime.environment import Process
from runtime.tracing.clock import ClockOffset, align
from runtime.tracing.listener import DeviceListener, HostListener, Note
from runtime.tracing.wanted import TraceWanted
from runtime.tracing.write import notes_table, write_run_trace

CLOCK_TIMEOUT = timedelta(minutes=5)


class Tracer:
    """Listens during the wanted steps; writes one trace of all ranks at the end."""

    def __init__(self, wanted: TraceWanted, context: Context) -> None:
        self.wanted, self.context = wanted, context
        self._listener: HostListener | DeviceListener | None = None
        self._notes: list[Note] = []

    def before(self, step: int) -> None:
        """Begin to listen, if this step is wanted."""
        if self.wanted.first_step <= step <= self.wanted.last_step:
            on_device = self.context.device.type == "cuda"
            self._listener = DeviceListener(step) if on_device else HostListener(step)
            self.context.ops.listener = self._listener

    def after(self) -> None:
        """Keep what was heard."""
        if self._listener is not None:
            self._notes += self._listener.finish()
            self._listener = self.context.ops.listener = None

    def write(self, process: Process) -> pa.Table | None:
        """Gather the notes of all ranks and write the trace on rank 0; every rank must call it."""
        mesh, job = self.context.mesh, self.context.job
        group, made = mesh.everyone, False
        if group is not None and self.context.device.type == "cuda":
            # time stamps and tables travel on the host
            group, made = dist.new_group(backend="gloo", timeout=CLOCK_TIMEOUT), True
        clock = align(group, process.ranks, process.rank)
        mine: tuple[pa.Table, ClockOffset] = notes_table(self._notes, mesh, clock), clock
        everyone: list[Any] | None = [mine]
        if group is not None:
            everyone = [None] * process.ranks if process.rank == 0 else None
            dist.gather_object(mine, everyone, group=group, group_dst=0)
        if made and group is not None:
            dist.destroy_process_group(group)
        if everyone is None:
            return None
        tables, clocks = [table for table, _ in everyone], [clock for _, clock in everyone]
        device = self.context.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        facts = {
            "steps": sorted({note.step for note in self._notes}), "device": name,
            "torch": torch.__version__,
        }  # fmt: skip
        return write_run_trace(
            self.wanted.directory, job, tables, clocks, facts, overwrite=self.wanted.overwrite
        )
