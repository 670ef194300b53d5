"""Keeping a run's state: checkpoints on disk, and copies in the memory of two hosts."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from runtime.checkpoint.checkpoints import Checkpoints, NoSpaceError
from runtime.checkpoint.loading import Loaded
from runtime.checkpoint.team import Team
from runtime.huggingface import merging
from runtime.parallel.mesh import Mesh
from runtime.plan import continued
from runtime.plan.plan import Plan
from runtime.records.console import Display
from runtime.records.ownership import Ownership
from runtime.records.run_directory import CHECKPOINTS
from runtime.step.trainee import Trainee
from runtime.survive.history import KEY
from runtime.survive.memory.copies import MemoryCopies
from runtime.train.state import State

BEST_KEY = "best"
"""In a checkpoint's `extra`: step and validation loss of the best one so far."""
JUDGED_KEY = "judged_by"
"""In it too: how many held-out sequences that loss is of; of others it is another loss."""


class Saving:
    """Saves a run, and loads what was saved."""

    def __init__(self, plan: Plan, trainee: Trainee, mesh: Mesh, state: State, owned: Ownership | None) -> None:
        wanted = plan.options.checkpoints
        self.trainee, self.owned, self.state = trainee, owned, state
        self.samples_of_step = plan.job.batch.sequences
        self._judged_by = plan.options.evaluation.sequences
        self.options = continued.options_of(plan.job, plan.options)
        self.checkpoints = Checkpoints(
            plan.out / CHECKPOINTS, mesh, keep=wanted.keep, timeout_seconds=wanted.timeout_seconds
        )
        self._training = Team(mesh.rank, mesh.everyone)
        self.copies: MemoryCopies | None = None
        self.adapters = None
        if plan.job.lora is not None:  # what rank 0 says is written
            self.adapters = merging.describe(
                plan.job.lora, self.options.get("train.initial_weights"), named=owned is not None, seed=plan.job.seed
            )

    def load(self) -> Loaded | None:
        """Load the newest whole checkpoint into the model, if there is one."""
        return self.checkpoints.load_latest(self.trainee.context, self.trainee.optimizer)

    def save(self, display: Display) -> None:
        """Save the state as it is, unless that has been done; the disk is written meanwhile."""
        if self.state.saved_at == self.state.step:
            return
        if self.owned is not None:
            self.owned.check()
        self.settle(display)
        self.checkpoints.save(
            self.trainee.context,
            self.trainee.optimizer,
            step=self.state.step,
            samples=self._samples(),
            extra=self._extra(),
        )
        self.state.saved_at = self.state.step

    def judge(self, step: int, loss: float, display: Display) -> None:
        """Save a state whose validation loss is less than all before, and keep it beside the newest."""
        best = self.state.best
        # one rank decides: sums may differ in the last bit, and all must save or none; over the group of training, for
        # a checkpoint may be being written, whose thread has the other
        if not self._training.from_first(lambda: best is None or loss < best[1]):
            return
        self.state.best = step, loss
        self.save(display)
        if not self.settle(display):  # the one before stays until this one is whole
            self.state.best = best
            return
        self.checkpoints.prefer(step)
        display.say(f"step {step}: the best so far, kept")

    def best_again(self, extra: Mapping[str, Any]) -> None:
        """Take up which checkpoint was the best, as one that was loaded says.

        If so many sequences more or fewer judged it the next one that is judged is the best; until then it is kept.
        """
        known = extra.get(BEST_KEY)
        equally = extra.get(JUDGED_KEY, self._judged_by) == self._judged_by
        steps = self.checkpoints.steps()
        if isinstance(known, list) and len(known) == 2 and known[0] in steps and isinstance(known[1], float):
            self.state.best = (int(known[0]), known[1]) if equally else None
            self.checkpoints.best = int(known[0])

    def forget_best_after(self, step: int) -> None:
        """Give up the best checkpoint, if it was of a later step than the run went back to."""
        if self.state.best is not None and self.state.best[0] > step:
            self.state.best = self.checkpoints.best = None

    def settle(self, display: Display) -> bool:
        """Wait for the checkpoint being written; false if that found no space: it is tried again at the next."""
        try:
            self.checkpoints.wait()
        except NoSpaceError as error:
            display.warn(f"{error.problems[0]}; training goes on, the next one is tried in its turn")
            self.state.saved_at = -1
            return False
        return True

    def copy(self, display: Display) -> None:
        """Copy the state into memory, where that is wanted."""
        if self.copies is None:
            return
        if (problem := self.copies.save(self.state.step, self._samples(), self._extra())) is not None:
            display.warn(problem)

    def close(self) -> None:
        """Wait for what is being written."""
        self.checkpoints.close()  # before anything else can go wrong
        if self.copies is not None:
            self.copies.close()

    def _samples(self) -> int:
        return self.state.step * self.samples_of_step

    def _extra(self) -> dict[str, Any]:
        extra = {"gemm_modes": self.state.modes, KEY: self.state.history.as_json(), continued.KEY: self.options}
        if self.adapters is not None:
            extra[merging.KEY] = self.adapters
        if self.state.best is None:
            return extra
        return {**extra, BEST_KEY: list(self.state.best), JUDGED_KEY: self._judged_by}
