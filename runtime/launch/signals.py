"""Signals that ask a rank to end: heard at once, acted upon between steps.

They are blocked in every thread, and one thread waits for them: no system call of PyTorch is
interrupted, and a second signal is heard even where the others wait inside a collective.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
import time

HEARD = (signal.SIGUSR1, signal.SIGTERM)
"""SLURM's warning before the time limit (`--signal=USR1@120`); preemption, torchrun, `kill`."""
SAME_SECONDS = 1.0
"""A signal so soon after the first is the same one, come by another way."""


def hold() -> None:
    """Let the signals wait until somebody listens; before any other thread is started."""
    signal.pthread_sigmask(signal.SIG_BLOCK, HEARD)


class Notice:
    """The signal that asked this rank to end, if one did."""

    def __init__(self) -> None:
        self.signal: str | None = None
        """Name of the first signal heard."""
        self._heard_at = 0.0

    def listen(self) -> None:
        """Listen from now on, in the background; a second signal ends the process at once."""
        hold()
        threading.Thread(target=self._listen, name="signals", daemon=True).start()

    def _listen(self) -> None:
        while True:
            number = signal.sigwait(HEARD)
            if self.signal is None:
                self.signal, self._heard_at = signal.Signals(number).name, time.monotonic()
            elif time.monotonic() - self._heard_at > SAME_SECONDS:
                name = signal.Signals(number).name
                sys.stderr.write(f"fourfold: a second signal ({name}): leaving at once\n")
                sys.stderr.flush()
                os._exit(128 + number)
