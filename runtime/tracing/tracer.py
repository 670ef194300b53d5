"""Traces chosen steps of a run."""

from __future__ import annotations

import platform
import time
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist

from runtime.context import Context
from runtime.environment import Process
from runtime.host import host_name
from runtime.tracing.clock import ClockOffset, align
from runtime.tracing.listener import DeviceListener, HostListener, Note
from runtime.tracing.probe import probe_links
from runtime.tracing.wanted import TraceWanted
from runtime.tracing.write import notes_table, write_run_trace

CLOCK_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class _Told:
    """What one rank tells rank 0 about its steps."""

    notes: pa.Table
    clock: ClockOffset
    loading_ns: dict[int, int]
    """By step."""
    host: tuple[str, int]
    """Name, and the first rank there: hosts of one name are told apart by it."""


class Tracer:
    """Listens during the wanted steps; writes one trace of all ranks at the end."""

    def __init__(self, wanted: TraceWanted, context: Context) -> None:
        self.wanted, self.context = wanted, context
        self._listener: HostListener | DeviceListener | None = None
        self._notes: list[Note] = []
        self._began_ns = 0
        self._loading_ns: dict[int, int] = {}

    def before(self, step: int) -> None:
        """Begin to listen, if this step is wanted."""
        if self.wanted.first_step <= step <= self.wanted.last_step:
            on_device = self.context.device.type == "cuda"
            self._listener = DeviceListener(step) if on_device else HostListener(step)
            self.context.ops.listener = self._listener
            self._began_ns = time.monotonic_ns()

    def loaded(self, step: int) -> None:
        """The step's samples are there; what was done since `before` was to load them."""
        if self._listener is not None:
            self._loading_ns[step] = time.monotonic_ns() - self._began_ns

    def after(self) -> None:
        """Keep what was heard."""
        if self._listener is not None:
            self._notes += self._listener.finish()
            self._listener = self.context.ops.listener = None

    def _probe(self, process: Process) -> dict[str, Any] | None:
        """Let hosts send to each other, if there are several."""
        everyone, mine = (
            self.context.mesh.everyone,
            (host_name(), process.rank - process.local_rank),
        )
        if everyone is None:
            return None
        hosts = [mine] * process.ranks
        dist.all_gather_object(hosts, mine, group=everyone)
        order = list(dict.fromkeys(hosts))
        return probe_links(
            everyone, self.context.device, process.rank, [order.index(h) for h in hosts]
        )

    def write(self, process: Process) -> pa.Table | None:
        """Gather the notes of all ranks and write the trace on rank 0; every rank must call it."""
        mesh, job = self.context.mesh, self.context.job
        group, made = mesh.everyone, False
        if group is not None and self.context.device.type == "cuda":
            # time stamps and tables travel on the host
            group, made = dist.new_group(backend="gloo", timeout=CLOCK_TIMEOUT), True
        clock = align(group, process.ranks, process.rank)
        mine = _Told(
            notes_table(self._notes, mesh, clock), clock, self._loading_ns,
            (host_name(), process.rank - process.local_rank),
        )  # fmt: skip
        everyone: list[Any] | None = [mine]
        if group is not None:
            everyone = [None] * process.ranks if process.rank == 0 else None
            dist.gather_object(mine, everyone, group=group, group_dst=0)
        if made and group is not None:
            dist.destroy_process_group(group)
        probe = self._probe(process)
        if everyone is None:
            return None
        told: list[_Told] = everyone
        hosts = list(dict.fromkeys(each.host for each in told))
        device = self.context.device
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        facts = {
            "steps": sorted({note.step for note in self._notes}), "device": name,
            "torch": torch.__version__,
            "hosts": {"names": [name for name, _ in hosts], "of_rank": [hosts.index(t.host) for t in told]},
            **({} if probe is None else {"probe": probe}),
            **({"loading_ns": {str(s): [t.loading_ns.get(s, 0) for t in told] for s in sorted(self._loading_ns)}}
               if self._loading_ns else {}),
        }  # fmt: skip
        return write_run_trace(
            self.wanted.directory, job, [t.notes for t in told], [t.clock for t in told], facts,
            overwrite=self.wanted.overwrite,
        )  # fmt: skip
