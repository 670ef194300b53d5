"""A rank's copies in host memory: what is about to be written, and what has just been read.

Neither touches what is being trained while the disk is at work: saving copies out once and lets
training go on, loading copies in once every rank has verified what it read.
"""

from __future__ import annotations

from itertools import chain

import torch

from runtime.checkpoint.pieces import MODEL, MOMENTS, Piece, Range, pieces_of, to_write, within
from runtime.step.context import Context
from runtime.step.optimizer import Optimizer
from runtime.weights.owned import Owned

State = dict[str, list[Piece]]
"""Pieces of this rank by name of the full tensor: what PyTorch's functions take for a state dict."""


def by_tensor(pieces: chain[Piece]) -> State:
    """Sort pieces by the tensor they belong to."""
    state: State = {}
    for piece in pieces:
        state.setdefault(piece.tensor, []).append(piece)
    return state


class Outgoing:
    """Buffers for what this rank writes, made once and filled for every checkpoint."""

    def __init__(self, context: Context, optimizer: Optimizer) -> None:
        self.context, self.optimizer = context, optimizer
        store = context.store
        self._ranges: list[tuple[Range, int]] = []
        length = 0
        # with states sharded over data the master weights are up to date in the own parts only
        for part in optimizer.owned.ranges:
            for held in to_write(store, part, over_data=not optimizer.sharded):
                self._ranges.append((held, length))
                length += held.elements
        # what lies in the host's memory already is not copied by a GPU
        lies = {MODEL: store.master} | optimizer.states()
        self._flat = {
            kind: torch.zeros(length, dtype=store.master_type, pin_memory=lies[kind].device.type == "cuda")
            for kind in (MODEL, *MOMENTS)
        }
        self.state = by_tensor(
            chain.from_iterable(
                pieces_of(held, kind, flat, first, held.parameter.spec.names)
                for kind, flat in self._flat.items()
                for held, first in self._ranges
            )
        )

    def fill(self) -> None:
        """Copy the weights and moments of this moment; training may go on when it returns."""
        store, moments = self.context.store, self.optimizer.states()
        for held, first in self._ranges:
            place = held.in_store()
            inside = self.optimizer.owned.inside(place)
            for kind, flat in self._flat.items():
                live = store.master_of(place) if kind == MODEL else moments[kind][inside]
                # from a GPU the copies queue up behind the step and are waited for once
                flat[first : first + held.elements].copy_(live, non_blocking=True)
        if store.device.type == "cuda":
            torch.cuda.current_stream(store.device).synchronize()


class Incoming:
    """Buffers for what this rank reads: all its weights, and the moments of what it updates."""

    def __init__(self, context: Context, optimizer: Optimizer | None) -> None:
        self.context, self.optimizer = context, optimizer
        store = context.store
        wanted = {MODEL: Owned((slice(0, store.used),))}
        if optimizer is not None:
            wanted |= dict.fromkeys(MOMENTS, optimizer.owned)
        self._flat = {kind: torch.zeros(owned.elements, dtype=store.master_type) for kind, owned in wanted.items()}
        self.state = by_tensor(
            chain.from_iterable(
                pieces_of(held, kind, self._flat[kind], owned.inside(held.in_store()).start)
                for kind, owned in wanted.items()
                for part in owned.ranges
                for held in within(store, part)
            )
        )

    def apply(self, step: int) -> None:
        """Put everything in place, as it was after `step` steps."""
        store = self.context.store
        store.put(0, self._flat[MODEL])
        if self.optimizer is not None:
            # from here straight to where they lie, which may be neither the device nor have room for two
            self.optimizer.load_states({kind: self._flat[kind] for kind in MOMENTS}, step)
        self.context.step = step
