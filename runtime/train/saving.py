"""Keeping a run's state: checkpoints on disk, and copies in the memory of two hosts."""

from __future__ import annotations

from typing import Any

from runtime.checkpoint.checkpoints import Checkpoints, NoSpaceError
from runtime.checkpoint.loading import Loaded
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


class Saving:
    """Saves a run, and loads what was saved."""

    def __init__(self, plan: Plan, trainee: Trainee, mesh: Mesh, state: State, owned: Ownership | None) -> None:
        wanted = plan.options.checkpoints
        self.trainee, self.owned, self.state = trainee, owned, state
        self.samples_of_step = plan.job.batch.sequences
        self.options = continued.options_of(plan.job, plan.options)
        self.checkpoints = Checkpoints(
            plan.out / CHECKPOINTS, mesh, keep=wanted.keep, timeout_seconds=wanted.timeout_seconds
        )
        self.copies: MemoryCopies | None = None

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

    def settle(self, display: Display) -> None:
        """Wait for the checkpoint being written; one that finds no space is tried again at the next."""
        try:
            self.checkpoints.wait()
        except NoSpaceError as error:
            display.warn(f"{error.problems[0]}; training goes on, the next one is tried in its turn")

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
        return {"gemm_modes": self.state.modes, KEY: self.state.history.as_json(), continued.KEY: self.options}
