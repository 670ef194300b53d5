"""Weights of blocks beyond the device (`offload.parameters`): when they come, when updated ones leave, what stays.

What moves is this rank's part of the weights that a gather unit carries: its z shard, or all of it where z is 1. While
one unit is used the next one comes, through the forward pass and again through the backward pass, recomputation
included; where z cuts weights a shard has come before its all-gather starts. Nothing leaves in a pass: what lies beyond
the device is still there. Tables, vectors and the head stay on the device. A CPU's memory is the host's, and nothing
moves there.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from twin.description.offload import Tier
from twin.schedule.emit import Emitter
from twin.strategies.fetch import AHEAD, Fetches, Leaves
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.shapes import Linear, Shapes, Unit


def parameters_tier(job: FourDJob) -> Tier | None:
    """Return where weights of blocks lie that are not in use; None: on the device."""
    return None if job.offload is None else job.offload.parameters


def moved_weights(job: FourDJob, shapes: Shapes) -> range:
    """Return the places, among a rank's elements, of weights that lie beyond the device; none on a CPU.

    The head's come first, then the last block's to the first's; what is whole on every rank of z is behind them.
    """
    if parameters_tier(job) is None or job.machine.device.type == "cpu":
        return range(0)
    head = shapes.head.shard_elements
    return range(head, head + elements_away(shapes))


def elements_away(shapes: Shapes) -> int:
    """Count the elements of blocks' weights that a rank stores."""
    return shapes.job.model.layers * shapes.block_shard_elements


@dataclass
class WeightsCome:
    """Weights of one pass on their way to the device, in the order of their use, each with the emitter of its block."""

    job: FourDJob
    units: Sequence[tuple[Emitter, Unit]]
    _fetches: Fetches | None = None
    _place: dict[Linear, int] = field(default_factory=dict)
    _come: int = 0

    def __post_init__(self) -> None:
        tier = parameters_tier(self.job)
        if tier is None or self.job.machine.device.type == "cpu":
            return
        size = self.job.element_bytes
        parts = [(emit.under(unit.name), float(unit.shard_elements * size)) for emit, unit in self.units]
        self._fetches = Fetches(tier, parts, "weights_up")
        self._place = {linear: number for number, (_, unit) in enumerate(self.units) for linear in unit.linears}

    def begin(self) -> None:
        """Let the first come."""
        if self._fetches is not None:
            self._fetches.begin()

    def need(self, linear: Linear) -> None:
        """Hold until the unit of a linear has come, if it does; the next one is on its way from now on."""
        if self._fetches is not None and self._place.get(linear) == self._come:
            self._fetches.use(self._come)
            self._come += 1


def leave_updated(emit: Emitter, job: FourDJob, shapes: Shapes) -> None:
    """Let weights that the device has updated and rounded go back to where they lie, unit by unit."""
    tier = parameters_tier(job)
    if tier is None or not moved_weights(job, shapes):
        return
    leaves = Leaves(tier, "weights_down")
    for layer in reversed(range(job.model.layers)):
        for unit in shapes.gather_units(shapes.block_linears(layer)):
            here = emit.under(f"block{layer}/{unit.name}", layer=layer)
            leaves.leave(here, float(unit.shard_elements * job.element_bytes))
    leaves.end()


def elements_here(job: FourDJob, shapes: Shapes) -> int:
    """Count the most elements of blocks' weights, as a rank stores them, that are on its device at once in a pass.

    Where z cuts them a shard is wanted until it is gathered: those under way, and the next one. Elsewhere layers
    compute with them as they are: those of the unit at work, or of the whole block if it is computed again before its
    backward pass, those that are kept, and the next one.
    """
    sizes = [unit.shard_elements for unit in shapes.gather_units(shapes.block_linears(0))]
    everything = sizes * job.model.layers
    if shapes.grid.z > 1:
        gathering = 1 + (job.overlap.prefetch_depth if job.overlap.all_gather else 0)
        return _most(everything, gathering + AHEAD)
    kept = min(job.cache_gathered_layers, job.model.layers) * sum(sizes)
    if not job.recomputed_layers:
        return min(sum(everything), kept + _most(everything, 1 + AHEAD))
    return min(sum(everything), kept + sum(sizes) + sum(sizes[:AHEAD]))


def _most(sizes: Sequence[int], together: int) -> int:
    """Return the most that so many neighbours have together."""
    return max(sum(sizes[first : first + together]) for first in range(len(sizes)))
