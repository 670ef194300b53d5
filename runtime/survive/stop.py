"""Ranks that get a signal at different times, or of which one alone gets it, end after the same step.

Rank 0 puts up before a step after which step the run ends. That is the next one whose figures every
host waits for: a step's reductions tie all ranks together, so whoever has seen its figures can see
what rank 0 put up before it began.
"""

from __future__ import annotations

from dataclasses import dataclass

from runtime.launch.board import Board
from runtime.launch.signals import Notice

WANTED, AT = "stop/wanted", "stop/at"


@dataclass
class Stop:
    """Where a run ends before its last step, if it was asked to."""

    board: Board
    notice: Notice
    signal: str | None = None
    """Which signal ends the run."""
    _at: int | None = None
    _told: bool = False

    def announce(self, next_look: int) -> None:
        """Before a step: let rank 0 say where the run ends, if any rank was asked to end.

        `next_look` is how many steps are done when hosts next wait for a step's figures.
        """
        if self.notice.signal is not None and not self._told:
            self.board.post(WANTED, self.notice.signal)
            self._told = True
        if self.board.first and self._at is None:
            signal = self.board.read(WANTED)
            if signal is not None:
                self._at, self.signal = next_look, signal
                self.board.post(AT, [next_look, signal])

    def due(self, done: int) -> bool:
        """Tell whether the run ends after so many steps; asked where hosts have waited for the last one."""
        if self._at is None and (found := self.board.read(AT)) is not None:
            self._at, self.signal = int(found[0]), str(found[1])
        return self._at is not None and done >= self._at
