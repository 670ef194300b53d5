"""Looking at what a step gave: NaN and leaps of the loss, and going back to before them."""

from __future__ import annotations

from collections.abc import Callable

from runtime.parallel.failures import DivergedError, NonFiniteError
from runtime.plan.plan import Plan
from runtime.records.console import Display
from runtime.records.records import Records
from runtime.step.trainee import MicroBatch, Trainee
from runtime.survive.rollback import Culprit, Guard, go_back
from runtime.survive.spikes import Spikes
from runtime.survive.stop import Stop
from runtime.train.diagnosis import find_non_finite
from runtime.train.saving import Saving
from runtime.train.state import State

BatchOf = Callable[[int], list[MicroBatch]]
"""Gives what a step trains on; all ranks ask for the same."""


class Judge:
    """Decides whether a step counts; without `train.rollback` a number that is not finite is an error."""

    def __init__(self, plan: Plan, trainee: Trainee, state: State, saving: Saving) -> None:
        self.plan, self.trainee, self.state, self.saving = plan, trainee, state, saving
        self.guard: Guard | None = None
        self.records: Records | None = None

    def begin(self, stop: Stop, records: Records) -> None:
        """See what losses were before."""
        self.records, wanted = records, self.plan.options.rollback
        if wanted is not None:
            self.guard = Guard(stop.board, Spikes(wanted.spike, wanted.window, records.losses(wanted.window)))

    def went_back(self, batch_of: BatchOf, done: int, display: Display) -> bool:
        """Go back to a checkpoint if a gradient is not finite, or the loss has leapt; True if it went back.

        A GPU's host looks at some steps only: the first whose gradient was not finite may lie before the last.
        """
        optimizer = self.trainee.optimizer
        stopped = bool(optimizer.stopped)
        if stopped:
            done = int(optimizer.updated) + 1
        if self.guard is None:
            if stopped:
                raise find_non_finite(self.trainee, batch_of(done - 1), done - 1)
            return False
        culprit = self.guard.culprit(done, stopped=stopped)
        if culprit is None:
            return False
        self._go_back(culprit, batch_of, self.guard, display)
        return True

    def _go_back(self, culprit: Culprit, batch_of: BatchOf, guard: Guard, display: Display) -> None:
        rollback, state, saving = self.plan.options.rollback, self.state, self.saving
        assert rollback is not None
        saving.settle(display)
        gone = go_back(
            culprit,
            state.history,
            saving.checkpoints,
            self.trainee.context,
            self.trainee.optimizer,
            self.plan.out,
            rollback.most,
            display.warn,
        )
        if gone is None:
            raise self._diverged(culprit, batch_of)
        state.history, entry = gone
        state.step = state.saved_at = entry.to_step
        guard.went_back(state.step)
        saving.forget_best_after(state.step)
        if saving.copies is not None:
            saving.copies.forget()
        if self.records is not None:
            self.records.go_back(state.step, entry.model_dump(mode="json"))
        display.warn(
            f"step {culprit.step}: {culprit.why}; going back to step {entry.to_step} and on "
            f"without batches {', '.join(map(str, entry.left_out))}"
        )

    def _diverged(self, culprit: Culprit, batch_of: BatchOf) -> NonFiniteError:
        if not culprit.finite:
            return find_non_finite(self.trainee, batch_of(culprit.step), culprit.step)
        return DivergedError(
            f"step {culprit.step}: {culprit.why}, and the run has gone back often enough "
            "(train.rollback.most); try a lower learning rate"
        )

    def saw(self, step: int, loss: float, next_look: int | None) -> None:
        """Take note of a step's loss."""
        if self.guard is not None:
            self.guard.see(step, loss, next_look)
