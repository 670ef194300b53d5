"""How a test that hangs is ended: by an error that no library takes for a failed example, and again if it is swallowed.

pytest-timeout says when. Of itself it raises what hypothesis catches like any failure, and then tries the next example
without a limit.
"""

from __future__ import annotations

import faulthandler
import signal
import sys
from types import FrameType
from typing import Any

import pytest

AGAIN_SECONDS = 20.0
"""Until it is raised once more, should a test go on."""


class OverLimitError(BaseException):
    """A test took longer than its tier allows; no `except Exception` takes it for something else."""


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_set_timer(item: pytest.Item, settings: Any) -> bool:
    """Start the clock of a test, its fixtures included."""

    def end(_signal: int, _frame: FrameType | None) -> None:
        faulthandler.dump_traceback(sys.__stderr__)
        raise OverLimitError(f"{item.nodeid} took more than {settings.timeout:g} s")

    signal.signal(signal.SIGALRM, end)
    signal.setitimer(signal.ITIMER_REAL, settings.timeout, AGAIN_SECONDS)
    return True


@pytest.hookimpl(optionalhook=True)
def pytest_timeout_cancel_timer(item: pytest.Item) -> bool:  # noqa: ARG001  pytest gives arguments by name
    """Stop the clock."""
    signal.setitimer(signal.ITIMER_REAL, 0.0)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    return True
