"""Ranks for which the grid has no place: they wait, and end with the others."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import timedelta

from runtime.launch.board import Board
from runtime.survive.stop import WANTED, Stop

END = "end"
POLL_SECONDS = 1.0
"""A spare rank has nothing to do: a second is short beside a step, and thousands of spares do not trouble the store."""
LEAVE_SECONDS = 10.0
"""Time in which spare ranks must say that they have heard of the end: some polls of theirs."""


def stand_by(board: Board, stop: Stop) -> None:
    """Wait until the run is over; a signal that is heard meanwhile is passed on.

    Raises CollectiveError if the store is lost, as it is when rank 0 dies.
    """
    told = False
    while board.read(END) is None:
        if stop.notice.signal is not None and not told:
            board.post(WANTED, stop.notice.signal)
            told = True
        time.sleep(POLL_SECONDS)
    board.post(f"{END}/{board.process.rank}", None)


def dismiss(board: Board, ranks: int, spares: int) -> None:
    """On rank 0, let the spare ranks go, and wait until they have heard: it may keep the store."""
    if board.store is None or not board.first or not spares:
        return
    board.post(END, True)
    heard = [f"board/{END}/{ranks + spare}" for spare in range(spares)]
    with suppress(RuntimeError):  # one that died is waited for in vain
        board.store.wait(heard, timedelta(seconds=LEAVE_SECONDS))
