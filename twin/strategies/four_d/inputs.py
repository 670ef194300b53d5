"""Inputs of recomputed blocks beyond the device (`offload.activations`): when they leave, and when they come back.

The last block's stays: it is wanted at once. A CPU's memory is the host's, and nothing moves.
"""

from __future__ import annotations

from twin.schedule.emit import Emitter
from twin.strategies.fetch import Fetches, Leaves
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.shapes import Shapes


def moved_layers(job: FourDJob) -> range:
    """Numbers of the blocks whose inputs lie beyond the device."""
    if job.offload is None or job.offload.activations is None:
        return range(0)
    return range(min(job.recomputed_layers, job.model.layers - 1))


def input_bytes(job: FourDJob, shapes: Shapes) -> float:
    """Return the bytes of a block's input on one rank."""
    return float(shapes.tokens * shapes.hidden_x * job.element_bytes)


class InputsLeave:
    """Inputs on their way to where they wait."""

    def __init__(self, job: FourDJob, shapes: Shapes) -> None:
        tier = None if job.offload is None else job.offload.activations
        self._leaves = None if tier is None or job.machine.device.type == "cpu" else Leaves(tier, "input_down")
        self._size, self._layers = input_bytes(job, shapes), moved_layers(job)

    def leave(self, emit: Emitter, layer: int) -> None:
        """Let a block's input go."""
        if self._leaves is not None and layer in self._layers:
            self._leaves.leave(emit, self._size)

    def end(self) -> None:
        """Hold until all are gone."""
        if self._leaves is not None:
            self._leaves.end()


class InputsBack:
    """Inputs on their way back to the device; the first is, from the loss on."""

    def __init__(self, job: FourDJob, shapes: Shapes, again: Emitter) -> None:
        tier = None if job.offload is None else job.offload.activations
        self._layers = moved_layers(job)
        self._fetches: Fetches | None = None
        if tier is not None and job.machine.device.type != "cpu":
            size = input_bytes(job, shapes)
            parts = [(again.under(f"block{layer}", layer=layer), size) for layer in reversed(self._layers)]
            self._fetches = Fetches(tier, parts, "input_up")

    def begin(self) -> None:
        """Let the first come."""
        if self._fetches is not None:
            self._fetches.begin()

    def back(self, layer: int) -> None:
        """Hold until a block's input is there, if it went away; the one before it is on its way from now on."""
        if self._fetches is not None and layer in self._layers:
            self._fetches.use(len(self._layers) - 1 - layer)
