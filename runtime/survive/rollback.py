"""When to go back to a checkpoint: a loss or a gradient that is NaN or infinite, a loss that leaps.

NaN every rank sees by itself, after the same step. Whether a loss leaps rank 0
says: it puts up a notice before the next step, and all ranks act upon it after that one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from runtime.checkpoint.checkpoints import Checkpoints
from runtime.launch.board import Board
from runtime.records.run_directory import RUN, NoRoomError, add_to_run
from runtime.step.context import Context
from runtime.step.optimizer import Optimizer
from runtime.survive.history import KEY, History, WentBack
from runtime.survive.spikes import Spikes


@dataclass(frozen=True)
class Culprit:
    """What made a run go back."""

    step: int
    """Counted from 0, as `first` is."""
    first: int
    """The last step before it that was seen to be good: its update may have done it, so its batch and all
    up to that of `step` are left out."""
    why: str
    finite: bool = True


@dataclass
class Guard:
    """Looks at every step whose figures hosts wait for."""

    board: Board
    spikes: Spikes
    _seen: int | None = None
    """The last step whose loss did not leap."""
    _round: int = 0
    """Number of times the run has gone back since it started: notices of before do not count."""
    _notice: tuple[int, Culprit] | None = None
    """After how many steps to act, and upon what."""

    def culprit(self, done: int, *, stopped: bool) -> Culprit | None:
        """Return what to go back for after so many steps, alike on all ranks.

        `stopped`: the loss or gradient of the last of them was NaN or infinite, and of no step before it.
        """
        if stopped:
            return Culprit(done - 1, max(done - 2, 0), "loss or gradient is not finite", finite=False)
        if self._notice is None and (found := self.board.read(self._key)) is not None:
            self._notice = int(found[0]), Culprit(int(found[1]), int(found[2]), str(found[3]))
        if self._notice is not None and done >= self._notice[0]:
            return self._notice[1]
        return None

    def see(self, step: int, loss: float, next_look: int | None) -> None:
        """Let rank 0 look at the loss (nats) of a step, and put up a notice if it leaps.

        `next_look` is how many steps are done when hosts look next; None if they never do.
        """
        if not self.board.first:
            return
        limit = self.spikes.limit()
        if not self.spikes.leaps(step, loss):
            self._seen = step
        elif next_look is not None:
            first = step - 1 if self._seen is None else self._seen
            why = f"loss {loss:.4f} is above {limit:.4f}"
            self.board.post(self._key, [next_look, step, max(first, 0), why])

    def went_back(self, step: int) -> None:
        """Begin again after so many steps."""
        self._round, self._notice, self._seen = self._round + 1, None, None
        self.spikes.forget(step)

    @property
    def _key(self) -> str:
        return f"rollback/{self._round}"


def go_back(
    culprit: Culprit,
    history: History,
    checkpoints: Checkpoints,
    context: Context,
    optimizer: Optimizer,
    out: Path,
    most: int,
    warn: Callable[[str], None],
) -> tuple[History, WentBack] | None:
    """Load the newest checkpoint of before the culprit, and write down what is left out from now on.

    Later checkpoints are deleted then: they hold what the culprit did. Every rank must call it, with no
    checkpoint being written. Returns the new history and its last entry; None if there is no such
    checkpoint, or the run has gone back so often without getting past this: then nothing has changed.

    A full disk ends nothing: `warn` tells of it, and the next checkpoint has the history too.
    """
    steps = checkpoints.steps()
    target = max((s for s in steps if s <= culprit.first), default=None)
    if target is None:
        target = max((s for s in steps if s <= culprit.step), default=None)
    if target is None or history.times(max(steps)) >= most:
        return None
    loaded = checkpoints.load_latest(context, optimizer, most=target)
    checkpoints.discard_after(target)  # only now: that one could be read is known
    assert loaded is not None  # there was one to go back to
    bad = range(max(culprit.first, loaded.step), culprit.step + 1)
    entry = WentBack(
        from_step=culprit.step,
        to_step=loaded.step,
        why=culprit.why,
        left_out=tuple(history.batch(step) for step in bad),
    )
    history = history.plus(entry)
    if not checkpoints.from_first(lambda: _noted(out, history)):
        warn(
            f"{out / RUN}: no space left to note what is left out; training goes on, the next checkpoint has it; "
            "a start before that meets the same batches and goes back again"
        )
    return history, entry


def _noted(out: Path, history: History) -> bool:
    """Write a history down; False if there is no space for it."""
    try:
        add_to_run(out, {KEY: history.as_json()})
    except NoRoomError:
        return False
    return True
