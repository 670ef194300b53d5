"""Where the first number that is not finite comes from: rank and op."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

import torch
import torch.distributed as dist

from runtime.parallel.failures import NonFiniteError
from runtime.parallel.ops import Op
from runtime.step.context import Context
from runtime.step.trainee import MicroBatch, Trainee

T = TypeVar("T")
Order = tuple[bool, int]
"""Of the first bad number on a rank: whether it came in a message of another stage, where it arose, and how many ops
came before it. Ranks of a stage do the same ops."""
NOWHERE: Order = (False, 0)
"""Before all ops: weights are bad already."""


@dataclass
class FiniteCheck:
    """A listener that notes the first op with a result that is not finite."""

    first: tuple[Order, str] | None = None
    """Where in the step it stands, and its name."""
    in_autograd: bool = False
    _count: int = 0

    def compute(self, op: Op, run: Callable[[], T]) -> T:
        """Do device work and look at what it returns."""
        result = run()
        self._look(op, result)
        return result

    def start(self, op: Op, run: Callable[[], T]) -> T:
        """Start a collective; its result is seen when it is waited for."""
        self._count += 1
        del op
        return run()

    def wait(self, op: Op, run: Callable[[], T]) -> T:
        """Wait for a collective and look at its result."""
        result = run()
        self._look(op, result)
        return result

    def received(self, op: Op, came: torch.Tensor) -> None:
        """Look at a message that another stage sent, where none has been started and waited for by name."""
        self._look(op, came)

    def _look(self, op: Op, result: object) -> None:
        self._count += 1
        if self.first is None and not _finite(result):
            self.first = (op.kind == "receive", self._count), op.name


def _finite(result: object) -> bool:
    if isinstance(result, torch.Tensor):
        return not result.is_floating_point() or bool(torch.isfinite(result).all())
    if isinstance(result, tuple | list):
        return all(_finite(part) for part in result)
    return True


def find_non_finite(trainee: Trainee, batch: list[MicroBatch], step: int) -> NonFiniteError:
    """Run the step's forward and backward passes again, looking at every op.

    The optimizer has not changed the weights since. Every rank must call it; all get the same error.
    """
    context, check = trainee.context, FiniteCheck()
    bad = next(
        (p.spec.name for p in context.store.parameters.values() if not bool(torch.isfinite(p.weight).all())), None
    )
    context.ops.listener = check
    before, context.step = context.step, step  # dropout's masks depend on it
    try:
        trainee.backward(batch)
    finally:
        context.ops.listener = None
        context.step = before
    found = f"weights of {bad}" if bad else None
    order = NOWHERE
    if found is None and check.first is not None:
        order, found = check.first
    return NonFiniteError(_earliest(context, step, order, found))


def _earliest(context: Context, step: int, order: Order, found: str | None) -> str:
    mine = (order, context.mesh.where(), found)
    all_found = [mine]
    if context.mesh.everyone is not None:
        all_found = [mine] * context.mesh.grid.ranks
        dist.all_gather_object(all_found, mine, group=context.mesh.everyone)
    named = [(order, where, what) for order, where, what in all_found if what is not None]
    head = f"step {step}: loss or gradient is not finite"
    if not named:
        return f"{head}; it did not happen again when the step was repeated"
    _, where, what = min(named)
    return f"{head}; first on {where}: {what}"
