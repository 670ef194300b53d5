"""From a job and a machine to what a long run needs to know: rates, sizes and times."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twin.description.job import Job
from twin.description.problems import fail
from twin.strategies import strategy_of
from twin.strategies.sizes import OPTIMIZER_BYTES

Cause = Literal["device", "link"]
"""What makes steps slow for a while."""
Mode = Literal["sync", "async", "memory"]
"""Ways to save state: steps wait for the file system; they wait for a copy to the host only, which is
written meanwhile; and besides that a copy goes to a neighbour's memory after every few steps."""


@dataclass(frozen=True)
class Slowdown:
    """Steps that take longer for a while, for one cause, seen from the whole job."""

    cause: Cause
    per_second: float
    """Number that begin in a second, on all parts of the job together."""
    seconds: float
    """Time that each lasts: a slow device exactly, a link on average (exponentially)."""
    factors: tuple[float, ...]
    """Factors by which a step takes longer meanwhile, 1 or more: by where the part is, each as likely."""
    replaced: bool
    """True if it ends by a restart without the part."""


@dataclass(frozen=True)
class LongRun:
    """A long run. Rates are of the whole job, per second; times in seconds."""

    step_seconds: float
    nodes: int
    host_failures_per_second: float
    """Stops that take a node out: a device or the rest of a host."""
    job_failures_per_second: float
    """Stops after which all nodes are still there."""
    repair_seconds: float
    """Mean time that a failed node is out."""
    restart_seconds: float
    state_bytes: float
    """One checkpoint, all ranks together."""
    write_seconds: float
    """To the file system; ranks that hold the same write parts of it."""
    read_seconds: float
    """From there; every rank reads all that it holds."""
    copy_seconds: float
    """From devices to their hosts."""
    neighbour_seconds: float
    """From a host to its neighbour's memory."""
    copies: int = 1
    """Ranks that hold each part of a state."""
    slowdowns: tuple[Slowdown, ...] = ()
    frozen_seconds: float = 0.0
    """Of `read_seconds`, reading the weights that do not train, which no checkpoint has."""

    @property
    def memory_read_seconds(self) -> float:
        """Reading a state back from neighbours' memory, what is frozen from files; every rank reads all it holds."""
        return self.copies * (self.neighbour_seconds + self.copy_seconds) + self.frozen_seconds

    @property
    def between_seconds(self) -> float:
        """Mean time between stops."""
        rate = self.host_failures_per_second + self.job_failures_per_second
        return 1.0 / rate if rate > 0 else float("inf")


def state_bytes_of(job: Job) -> float:
    """Bytes of one checkpoint: fp32 master weights and both moments, of tied embeddings under both their names."""
    if job.lora is not None:
        return float(OPTIMIZER_BYTES * job.lora.parameters(job.model))
    twice = job.model.vocabulary * job.model.hidden if job.model.tied_embeddings else 0
    return float(OPTIMIZER_BYTES * (job.model.parameters + twice))


def frozen_bytes_of(job: Job) -> float:
    """Bytes of weights that do not train, as their files have them: a restart reads them beside the checkpoint."""
    return 0.0 if job.lora is None else float(job.element_bytes * job.model.parameters)


def plan_of(job: Job, step_seconds: float, state_bytes: float | None = None) -> LongRun:
    """Work out rates and times. Raises DescriptionError if the machine does not say how it fails."""
    machine = job.machine
    known = machine.reliability
    if known is None:
        raise fail(
            "machine.reliability",
            f"{machine.name} does not say how often its parts fail; add it to its file "
            "(docs/howto/reliability.md), or start from a machine that does",
        )
    state = state_bytes_of(job) if state_bytes is None else state_bytes
    nodes = -(-job.ranks // machine.devices_per_node)
    device, node, rest = (
        job.ranks / known.device.between_seconds,
        nodes / known.node.between_seconds,
        nodes / known.job.between_seconds,
    )
    storage = known.storage
    nic = len(machine.nic.devices) * machine.nic.rate_bytes_per_second
    copies = strategy_of(job).state_copies(job)
    repair = (device * known.device.repair_seconds + node * known.node.repair_seconds) / (device + node)

    def seconds(bytes_: float, bytes_per_second: float) -> float:
        return max(bytes_ / bytes_per_second, bytes_ / nodes / storage.node_bytes_per_second)

    # frozen weights are whole on each replica, whatever is divided of states
    replicas = job.concrete_grid.by_axis().get("data", 1)
    frozen = replicas * seconds(frozen_bytes_of(job), storage.read_bytes_per_second)
    return LongRun(
        step_seconds=step_seconds,
        nodes=nodes,
        host_failures_per_second=device + node,
        job_failures_per_second=rest,
        repair_seconds=repair,
        restart_seconds=float(known.restart_seconds),
        state_bytes=state,
        write_seconds=seconds(state, storage.write_bytes_per_second),
        read_seconds=copies * seconds(state, storage.read_bytes_per_second) + frozen,
        copy_seconds=state / job.ranks / known.host_copy_bytes_per_second,
        neighbour_seconds=state / nodes / nic,
        copies=copies,
        frozen_seconds=frozen,
    )
