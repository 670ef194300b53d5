"""Traces chosen steps of a run."""

from __future__ import annotations

import platform
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import pyarrow as pa
import torch
import torch.distributed as dist

from runtime.launch.environment import Process
from runtime.step.context import Context
from runtime.tracing.clock import ClockOffset, align
from runtime.tracing.energy import Meter, Reading, together
from runtime.tracing.hosts import find_hosts
from runtime.tracing.notes import StepNotes
from runtime.tracing.probe import probe_links
from runtime.tracing.wanted import TraceWanted
from runtime.tracing.write import notes_table, write_run_trace
from twin.strategies import strategy_of

CLOCK_TIMEOUT = timedelta(minutes=5)


@dataclass(frozen=True)
class Told:
    """What one rank tells rank 0 about its steps."""

    notes: pa.Table
    clock: ClockOffset
    loading_ns: dict[int, int]
    """By step."""
    energy: Reading | None = None
    """Of all traced steps."""


class Tracer:
    """Listens during the wanted steps; writes one trace of all ranks at the end."""

    def __init__(self, wanted: TraceWanted, context: Context, meter: Meter | None = None) -> None:
        self.wanted, self.context = wanted, context
        self._heard = StepNotes(context)
        self._meter = meter or Meter(reason="was not asked")
        self._energy: Reading | None = None

    def before(self, step: int) -> None:
        """Begin to listen, if this step is wanted."""
        if self.wanted.first_step <= step <= self.wanted.last_step:
            self._heard.before(step)  # on a GPU it waits for steps before, whose joules are not this one's
        if step == self.wanted.first_step:
            self._meter.start()

    def loaded(self, step: int) -> None:
        """The step's samples are there."""
        self._heard.loaded(step)

    def after(self, step: int) -> None:
        """Keep what was heard."""
        self._heard.after()
        if step == self.wanted.last_step:
            self._energy = self._meter.stop()

    def write(self, process: Process) -> pa.Table | None:
        """Gather the notes of all ranks and write the trace on rank 0; every rank must call it."""
        mesh, job, device = self.context.mesh, self.context.job, self.context.device
        group, made = mesh.everyone, False
        if group is not None and device.type == "cuda":
            # time stamps and tables travel on the host
            group, made = dist.new_group(backend="gloo", timeout=CLOCK_TIMEOUT), True
        clock, hosts = align(group, process.ranks, process.rank), find_hosts(group, process.ranks)
        known = {each.name: each for each in strategy_of(job).communicators(job)}
        mine = Told(notes_table(self._heard.notes, mesh, clock, known), clock, self._heard.loading_ns, self._energy)
        everyone: list[Any] | None = [mine]
        if group is not None:
            everyone = [None] * process.ranks if process.rank == 0 else None
            dist.gather_object(mine, everyone, group=group, group_dst=0)
        if made and group is not None:
            dist.destroy_process_group(group)
        probe = probe_links(mesh.everyone, device, process.rank, hosts.of_rank)
        if everyone is None:
            return None
        told: list[Told] = everyone
        steps = sorted(mine.loading_ns)
        name = torch.cuda.get_device_name(device) if device.type == "cuda" else platform.machine()
        facts: dict[str, Any] = {
            "steps": sorted({note.step for note in self._heard.notes}),
            "device": name,
            "torch": torch.__version__,
            "hosts": hosts.as_json(),
        }
        if steps:
            facts["loading_ns"] = {str(s): [each.loading_ns.get(s, 0) for each in told] for s in steps}
        if probe is not None:
            facts["probe"] = probe
        readings = [each.energy for each in told if each.energy is not None]
        if len(readings) == len(told) and steps:
            used = together(readings, len(steps), len(steps) * job.tokens_per_step)
            if used["joules"] is not None:  # unknown is not there, and not 0
                facts["energy"] = {key: value for key, value in used.items() if key not in {"ranks", "reasons"}}
        return write_run_trace(
            self.wanted.directory,
            job,
            [each.notes for each in told],
            [each.clock for each in told],
            facts,
            overwrite=self.wanted.overwrite,
        )
