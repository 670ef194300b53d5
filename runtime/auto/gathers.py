"""Weight blocks of a model of the user's own, gathered over z: when, and how long they are kept.

* A *pass* is one call of a declared model. It writes down which layers ran, in execution order;
  the next pass starts the gathers of the layers that followed last time. Where it takes another way, it
  gathers on demand and writes that way down instead.
* A gather that a pass has started never outlives it, and what backward has started is dropped by
  the next pass or reduction: no weight that an optimizer has changed meanwhile is ever used.
* After the forward product a block is dropped and gathered again in backward, in reverse order.
  Outside a pass (a checkpointed part that is run again) it is kept for the backward that follows.
"""

from __future__ import annotations

import weakref
from dataclasses import dataclass, field

import torch

from runtime.auto.use import CutLayer, Use
from runtime.parallel.collectives import Collectives, Handle
from twin.schedule.ops import Phase


@dataclass
class _Flight:
    use: Use
    handle: Handle


@dataclass(eq=False)
class BlockGathers:
    """The gathered blocks of one rank."""

    collectives: Collectives
    depth: int
    """Number of layers ahead at which gathers start."""
    _orders: weakref.WeakKeyDictionary[torch.nn.Module, list[Use]] = field(default_factory=weakref.WeakKeyDictionary)
    _running: list[torch.nn.Module] = field(default_factory=list)
    """Declared models whose call has begun and not ended."""
    _pass: list[Use] = field(default_factory=list)
    _expected: list[Use] | None = None
    """Uses of the last pass, as long as this one takes the same way."""
    _flights: dict[CutLayer, _Flight] = field(default_factory=dict)
    _kept: dict[CutLayer, tuple[torch.dtype, torch.Tensor]] = field(default_factory=dict)

    @property
    def z(self) -> int:
        """Pieces a block is cut into."""
        return self.collectives.mesh.grid.size("z")

    def begin(self, model: torch.nn.Module) -> list[Use] | None:
        """Begin a pass; returns the uses to expect, or None if it is within another pass."""
        self._running.append(model)
        if len(self._running) > 1:
            return None
        if self.z == 1:
            return []
        self.drop()
        self._pass = []
        self._expected = self._orders.get(model)
        self._start_ahead(0)
        return self._expected or []

    def end(self, model: torch.nn.Module) -> bool:
        """End a pass, completed or not; returns whether it was one of its own."""
        if self._running:
            self._running.pop()
        if self._running or self.z == 1:
            return not self._running
        if self._expected is None or len(self._expected) != len(self._pass):
            self._orders[model] = self._pass
        self._expected, self._pass = None, []
        self.drop()
        return True

    def drop(self) -> None:
        """Forget every block: weights may be about to change."""
        for flight in self._flights.values():
            flight.handle.wait()
        self._flights.clear()
        self._kept.clear()

    def forward(self, layer: CutLayer, dtype: torch.dtype, *, needs_block: bool) -> tuple[torch.Tensor, Use]:
        """Return the block (n/G_o, k/G_c) in `dtype`, and the use to show to `backward`."""
        if self.z == 1 or not self._running:
            use = Use(layer, dtype, needs_block)
            block = self._block(use) if self.z == 1 else self._finish(self._take(use, "fwd"))
            if self.z > 1 and needs_block:
                self._kept[layer] = dtype, block
            return block, use
        use = Use(layer, dtype, needs_block, self._pass, len(self._pass))
        self._pass.append(use)
        if self._expected is not None and not (
            len(self._expected) >= len(self._pass) and self._expected[use.position].same_as(use)
        ):
            self._expected = None
        own = self._take(use, "fwd")
        self._start_ahead(use.position + 1)
        return self._finish(own), use

    def backward(self, use: Use) -> torch.Tensor:
        """Return the block once more, and start the gathers of the layers before it."""
        if self.z == 1:
            return self._block(use)
        dtype, block = self._kept.pop(use.layer, (None, None))
        own = None if block is not None and dtype == use.dtype else self._take(use, "bwd")
        for before in reversed(use.order[max(0, use.position - self.depth) : use.position]):
            # what is differentiated without its weight, or not at all, needs none
            if before.needs_block and before.layer not in self._kept:
                self._start(before, "bwd")
        if own is not None:
            return self._finish(own)
        assert block is not None
        return block

    def _start_ahead(self, first: int) -> None:
        for use in (self._expected or ())[first : first + self.depth]:
            self._start(use, "fwd")

    def _start(self, use: Use, phase: Phase) -> None:
        if use.layer not in self._flights:
            self._flights[use.layer] = self._launch(use, phase)

    def _take(self, use: Use, phase: Phase) -> _Flight:
        flight = self._flights.pop(use.layer, None)
        if flight is not None and flight.use.dtype == use.dtype:
            return flight
        if flight is not None:  # another precision than expected
            flight.handle.wait()
        return self._launch(use, phase)

    def _launch(self, use: Use, phase: Phase) -> _Flight:
        shard = use.layer.weight.detach().to(use.dtype)
        place = use.layer.layout.place
        return _Flight(use, self.collectives.all_gather(place, "z_gather", shard, phase=phase))

    @staticmethod
    def _finish(flight: _Flight) -> torch.Tensor:
        rows, columns = flight.use.layer.layout.shard.local_shape
        return flight.handle.wait()[: rows * columns].view(rows, columns)

    @staticmethod
    def _block(use: Use) -> torch.Tensor:
        return use.layer.weight.detach().to(use.dtype).view(use.layer.layout.shard.local_shape)
