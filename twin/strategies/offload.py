"""Optimizer states beyond the device: how gradients get there, and the update.

Shared by the strategies. A rank's streams are its own (`OWN_STREAMS`): copies down and up, copies that change the type
of numbers, the cores' updates, and drives in each direction. What they share with other ranks (the host's memory,
drives) is the engine's business.

The order is that of one thread that issues: where it waits the device's compute stream waits, as the thread of
DeepSpeed's optimizer does while the host's cores update a sub-group.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from twin.description.job import Job
from twin.description.offload import Offload, OptimizerOffload, Tier
from twin.description.problems import Problem
from twin.schedule.communicator import Communicator
from twin.schedule.emit import Emitter
from twin.schedule.kernels import Memory
from twin.schedule.ops import OWN_STREAMS
from twin.strategies.sizes import ADAM_BYTES_PER_ELEMENT, FP32_BYTES
from twin.strategies.sub_groups import SubGroup, sub_groups, updated_on_device

DOWN, UP, CAST, CPU, READ, WRITE = OWN_STREAMS
STATES_BYTES = 3 * FP32_BYTES
"""Of an element's optimizer states: master weight and two moments."""
UNSCALE_BYTES = 2 * FP32_BYTES
"""Read and written of an element when its gradient is scaled on the host, before its update."""
UPDATE_BYTES = 7 * FP32_BYTES + UNSCALE_BYTES
"""What the host's memory moves for the update of an element: gradient, master weight and two moments read, the latter
three written, where each rank's threads keep to cores of their own."""


def streams(ranks: int) -> tuple[Communicator, ...]:
    """Make every rank's own streams; those that no op names do no harm."""
    alone = np.arange(ranks, dtype=np.int64)[:, None]
    return tuple(Communicator(name, alone, "alone") for name in OWN_STREAMS)


def update_bytes(job: Job, offload: OptimizerOffload) -> float:
    """Return what the host's memory moves, or could, in the time of an element's update.

    More where ranks that share a node are not bound to cores of their own.
    """
    host = job.machine.host
    if offload.bound_cores or host is None or host.unbound_update is None:
        return float(UPDATE_BYTES)
    alone = min(job.ranks, job.machine.devices_per_node) == 1
    return UPDATE_BYTES * (1.0 if alone else float(host.unbound_update))


def offloaded(offload: OptimizerOffload, elements: int) -> int:
    """Return how many of a rank's elements lie beyond the device."""
    return round(offload.ratio * elements)


def host_share(offload: OptimizerOffload, elements: int) -> float:
    """Share of a rank's gradients that go to the host: those of sub-groups that it updates."""
    count = offloaded(offload, elements)
    device, _ = updated_on_device(offload.stride, offload.sub_group_elements, [count])
    return (count - device) / elements if elements else 0.0


@dataclass
class GradientFlush:
    """Gradients on their way to the host, in one micro-step."""

    offload: OptimizerOffload
    element_bytes: int
    own: int
    """Elements that the rank updates."""
    update_bytes: float = UPDATE_BYTES
    """Of an element, when the host updates it."""
    _open: list[tuple[Emitter, str]] = field(default_factory=list)

    def arrived(self, emit: Emitter, elements: int, *, first: bool, last: bool) -> None:
        """Go on from gradients that are summed over ranks: add what is there, and send them.

        Sums lie in pinned memory of the host in the type of products; at the last micro-step they become the fp32
        gradients that the update reads.
        """
        count, e = offloaded(self.offload, elements), self.element_bytes
        here = emit.under("offload")
        if not first:
            here.wait(here.start("to_device", UP, count * e, "sum_up"))
            here.compute("add", Memory(3.0 * count * e, work="accumulate"))
        if not (first and last):
            self._open.append((here, here.start("to_host", DOWN, count * e, "sum_down")))
        if not last:
            return
        if self.offload.overlapped_gradients:
            sent = round(host_share(self.offload, self.own) * elements)
            here.compute("widen", Memory(float(sent * (e + FP32_BYTES)), work="accumulate"))
            self._open.append((here, here.start("to_host", DOWN, sent * FP32_BYTES, "gradients_down")))
        else:
            here.wait(here.start("cast_to_host", CAST, count * e, "gradients_cast"))

    def end(self) -> None:
        """Wait for what is under way, at the end of the backward pass."""
        for here, name in self._open:
            here.wait(name)
        self._open.clear()


def flush_of(job: Job, offload: Offload | None, own: int) -> GradientFlush | None:
    """Return what becomes of gradients in one micro-step; None where the optimizer's states are on the device.

    `own` are the elements that the rank updates.
    """
    if offload is None or offload.optimizer is None:
        return None
    moved, e = update_bytes(job, offload.optimizer), job.element_bytes
    if offload.optimizer.update == "consumed":
        of_block = (job.model.block_weights + job.model.block_vectors) / job.model.parameters
        block = round(offloaded(offload.optimizer, own) * of_block)
        return ConsumedGradients(offload.optimizer, e, own, moved, parameters=offload.parameters, block=block)
    return GradientFlush(offload.optimizer, e, own, moved)


@dataclass
class ConsumedGradients(GradientFlush):
    """Gradients that the host's update uses up as they come, beside the rest of the backward pass.

    The update of a part begins when a block's gradients have come behind it, and is waited for a block later: so the
    device is held up only where the host or its drives are slower than the backward pass.
    """

    parameters: Tier | None = None
    block: int = 0
    """Elements of a block that the rank updates."""
    _coming: list[_Part] = field(default_factory=list)
    _updating: list[tuple[_Part, str]] = field(default_factory=list)

    def arrived(self, emit: Emitter, elements: int, *, first: bool, last: bool) -> None:
        """Send gradients; the last micro-step's are used up."""
        count, e, disk = offloaded(self.offload, elements), self.element_bytes, self.offload.to == "disk"
        here = emit.under("offload")
        if not first:
            here.wait(here.start("to_device", UP, count * e, "sum_up"))
            here.compute("add", Memory(3.0 * count * e, work="accumulate"))
        down = here.start("to_host", DOWN, count * e, "sum_down")
        if not last:
            self._open.append((here, down))
            return
        read = here.start("disk_read", READ, count * STATES_BYTES, "read") if disk else ""
        self._coming.append(_Part(here, count, [down, *filter(None, (read,))]))
        while self._is_behind([part for part, _ in self._updating]):
            self._updated(*self._updating.pop(0))
        while self._is_behind(self._coming):
            self._update(self._coming.pop(0))

    def end(self) -> None:
        """Update what is left and wait for it, at the end of the backward pass."""
        for part in self._coming:
            self._update(part)
        for part, name in self._updating:
            self._updated(part, name)
        self._coming.clear()
        self._updating.clear()
        super().end()

    def _is_behind(self, parts: Sequence[_Part]) -> bool:
        """Tell whether a block's elements have come since the first of them."""
        return len(parts) > 1 and sum(part.elements for part in parts[1:]) >= self.block

    def _update(self, part: _Part) -> None:
        for name in part.needs:
            part.emit.wait(name)
        moved = self.update_bytes + (0 if self.parameters is None else self.element_bytes)
        self._updating.append((part, part.emit.start("host_update", CPU, part.elements * moved, "update")))

    def _updated(self, part: _Part, name: str) -> None:
        """Send away what an update has made."""
        here, e = part.emit, self.element_bytes
        here.wait(name)
        if self.parameters is None:
            self._open.append((here, here.start("cast_to_device", CAST, part.elements * e, "weights_cast")))
        if written := written_bytes(self.offload, self.parameters, e):
            self._open.append((here, here.start("disk_write", WRITE, part.elements * written, "write")))


@dataclass(frozen=True)
class _Part:
    """Gradients that are coming to the host."""

    emit: Emitter
    elements: int
    needs: list[str]
    """What must be there for their update."""


def written_bytes(offload: OptimizerOffload, parameters: Tier | None, element_bytes: int) -> int:
    """Return what is written to drives of an updated element."""
    states = STATES_BYTES if offload.to == "disk" else 0
    return states + (element_bytes if parameters == "disk" else 0)


def update(emit: Emitter, job: Job, beyond: Offload, own: int) -> None:
    """Update a rank's own elements: those on the device at once, the others sub-group by sub-group."""
    offload = beyond.optimizer
    assert offload is not None
    count, e = offloaded(offload, own), job.element_bytes
    if own > count:
        copied = FP32_BYTES + e if e < FP32_BYTES else 0
        kept = float((own - count) * (ADAM_BYTES_PER_ELEMENT + copied))
        emit.compute("adamw", Memory(kept, kernels=8, work="adamw"))
    if offload.update == "consumed":
        return
    groups, moved = sub_groups(offload, count), update_bytes(job, offload)
    if offload.stride is None:
        _one_after_the_other(emit, groups, beyond, e, moved)
    else:
        _interleaved(emit, groups, offload, e, moved)


def _one_after_the_other(emit: Emitter, groups: Sequence[SubGroup], beyond: Offload, e: int, moved: float) -> None:
    """Update each sub-group on the host and copy its new weights; from and to drives beside the others' updates."""
    offload = beyond.optimizer
    assert offload is not None
    disk, read, written = offload.to == "disk", list[str](), list[tuple[Emitter, str]]()
    moved += 0 if beyond.parameters is None else e
    kept = written_bytes(offload, beyond.parameters, e)
    at = [emit.under(f"group{group.number}") for group in groups]
    if disk and groups:
        read.append(at[0].start("disk_read", READ, groups[0].elements * STATES_BYTES, "read"))
    for here, group in zip(at, groups, strict=True):
        if disk:
            here.wait(read[-1])
            if (after := group.number + 1) < len(groups):
                size = groups[after].elements * STATES_BYTES
                read.append(at[after].start("disk_read", READ, size, "read"))
        here.wait(here.start("host_update", CPU, group.elements * moved, "update"))
        if beyond.parameters is None:
            here.wait(here.start("cast_to_device", CAST, group.elements * e, "weights_cast"))
        if kept:
            written.append((here, here.start("disk_write", WRITE, group.elements * kept, "write")))
    for here, name in written:
        here.wait(name)


def _interleaved(
    emit: Emitter, groups: Sequence[SubGroup], offload: OptimizerOffload, e: int, update_moves: float
) -> None:
    """Update some sub-groups on the device, whose states come beside updates of the host and go beside the next."""
    stride = offload.stride or 1
    at = [emit.under(f"group{group.number}") for group in groups]
    coming: dict[int, str] = {}
    going: list[tuple[Emitter, str]] = []
    for here, group in zip(at, groups, strict=True):
        ahead = group.number - group.number % stride + stride - 1
        if group.number % stride == 0 and ahead < len(groups):
            size = groups[ahead].elements * STATES_BYTES
            coming[ahead] = at[ahead].start("to_device", UP, size, "states_up")
        if group.on_device:
            here.wait(coming[group.number])
            moved = float(group.elements * (ADAM_BYTES_PER_ELEMENT + FP32_BYTES + e))
            here.compute("adamw", Memory(moved, kernels=8, work="adamw"))
            going.append((here, here.start("to_host", DOWN, group.elements * STATES_BYTES, "states_down")))
        else:
            here.wait(here.start("host_update", CPU, group.elements * update_moves, "update"))
            going.append((here, here.start("cast_to_device", CAST, group.elements * e, "weights_cast")))
    for here, name in going:
        here.wait(name)


ONLY_DEEPSPEED = ("ratio", "overlapped_gradients", "update", "bound_cores")
"""Of `offload.optimizer` what only DeepSpeed's flavour has."""


def check_held(job: Job, offload: Offload | None, *, parameters: bool = False) -> list[Problem]:
    """Do what `check` does for strategies whose gradients stay on the device until the update, as the runtime's do.

    `parameters`: weights may lie beyond it too.
    """
    problems = check(job, offload, held=True)
    if offload is None:
        return problems
    remedy = "is of strategy fsdp with flavour: deepspeed, for simulation; leave it out"
    optimizer = offload.optimizer
    if optimizer is not None:
        fields = type(optimizer).model_fields
        given = [key for key in ONLY_DEEPSPEED if getattr(optimizer, key) != fields[key].default]
        problems += [Problem(f"offload.optimizer.{key}", remedy, getattr(optimizer, key)) for key in given]
    if offload.parameters is not None and not parameters:
        problems.append(Problem("offload.parameters", remedy, offload.parameters))
    if offload.swap_share:
        problems.append(Problem("offload.swap_share", remedy, offload.swap_share))
    if offload.activations is not None and not job.recompute:
        remedy = "moves the inputs of recomputed blocks; set recompute: true"
        problems.append(Problem("offload.activations", remedy, offload.activations))
    return problems


def check(job: Job, offload: Offload | None, *, held: bool = False) -> list[Problem]:
    """Return why a job's machine cannot do what `offload:` asks for, and what of it does not go together."""
    if offload is None:
        return []
    problems, machine = list[Problem](), job.machine
    if machine.device.type == "cpu":  # a second buffer or a file, which the runtime exercises
        return _contradictions(offload, clip_gradients=job.clip_gradients, recompute=job.recompute, held=held)
    if machine.host is None:
        remedy = f"{machine.name} does not describe the host of its nodes; give the machine a `host` (see 4xh100)"
        problems.append(Problem("offload", remedy))
    if machine.host_copy_bytes_per_second is None:
        remedy = f"{machine.name} does not say how fast copies to the host are; give it a host_link"
        problems.append(Problem("offload", remedy))
    unbound = offload.optimizer is not None and not offload.optimizer.bound_cores
    if unbound and machine.host is not None and machine.host.unbound_update is None:
        remedy = f"the host of {machine.name} does not say what that costs; give it unbound_update, or leave it out"
        problems.append(Problem("offload.optimizer.bound_cores", remedy, False))
    if "disk" in offload.tiers and machine.disk is None:
        remedy = f"{machine.name} does not describe drives of its nodes; give it a `disk`, or use host"
        problems.append(Problem("offload", remedy, "disk"))
    return problems + _contradictions(offload, clip_gradients=job.clip_gradients, recompute=job.recompute, held=held)


def _contradictions(offload: Offload, *, clip_gradients: bool, recompute: bool, held: bool) -> list[Problem]:
    """Return what of `offload:` does not go together."""
    optimizer, problems = offload.optimizer, list[Problem]()
    if offload.swap_share and (offload.activations is None or not recompute):
        remedy = "is of jobs with recompute: true and offload.activations; leave it out"
        problems.append(Problem("offload.swap_share", remedy, offload.swap_share))
    if optimizer is None:
        if offload.parameters is not None and not held:
            remedy = "the host updates weights that lie there: give offload.optimizer too"
            problems.append(Problem("offload.parameters", remedy, offload.parameters))
        return problems
    if optimizer.stride is not None:
        apart = [
            ("offload.optimizer.to", optimizer.to == "disk" and not held, "disk"),
            ("offload.parameters", offload.parameters is not None and not held, offload.parameters),
            ("offload.optimizer.update", optimizer.update == "consumed", "consumed"),
        ]
        remedy = "does not go with a stride, which updates on the device what lies in the host's memory; leave one out"
        problems += [Problem(path, remedy, value) for path, given, value in apart if given]
    if optimizer.update == "consumed" and clip_gradients:
        remedy = "is over before the norm of all gradients is known; set clip_gradients: false, or update: after"
        problems.append(Problem("offload.optimizer.update", remedy, "consumed"))
    if offload.parameters is not None and optimizer.ratio < 1:
        remedy = "must be 1 where weights lie beyond the device"
        problems.append(Problem("offload.optimizer.ratio", remedy, optimizer.ratio))
    return problems
