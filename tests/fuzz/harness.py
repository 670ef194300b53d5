"""What every case must keep to: it works or is refused, in time, in little memory, and writes only where it may.

A refusal is one of the errors that the command line turns into a message and exit code 2. Anything
else that is raised would be a traceback.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, seed, settings
from hypothesis.errors import HypothesisWarning
from hypothesis.strategies import SearchStrategy

from tests.profiles import share
from twin.description.problems import DescriptionError

MAX_SECONDS = 10.0
"""Of processor time: how long that takes depends on what else the machine does."""
MAX_WAITING = 60.0
"""Seconds by the clock: for what waits and does nothing."""
MAX_MEMORY = 2 << 30
"""That one case may add to the address space of this process."""
MAX_MESSAGE = 50_000
"""Characters of a refusal: nobody reads a file back on a terminal."""
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
CHANGES = {
    "os.mkdir",
    "os.rename",
    "os.remove",
    "os.rmdir",
    "os.link",
    "os.symlink",
    "os.truncate",
    "os.chmod",
    "os.chown",
    "shutil.rmtree",
    "shutil.move",
    "shutil.copyfile",
}
FORBIDDEN = {"os.system", "os.exec", "os.posix_spawn", "subprocess.Popen", "socket.connect", "pty.spawn"}


class HangError(BaseException):
    """A case took too long; no `except Exception` takes it for something else."""


@dataclass
class Guard:
    """What the process does while a case runs."""

    writable: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    """Where files may be opened at all; everywhere if empty."""
    active: bool = False
    wrong: list[str] = field(default_factory=list)

    def heed(self, event: str, arguments: tuple[Any, ...]) -> None:
        """Look at one audit event of the interpreter."""
        if not self.active:
            return
        if event == "open":
            path, _, flags = arguments
            if isinstance(path, int):
                return
            place = os.path.realpath(os.fsdecode(path))
            if isinstance(flags, int) and flags & WRITING:
                self._must_be_in(self.writable, event, place)
            elif self.readable:
                self._must_be_in(self.readable, event, place)
        elif event in CHANGES:
            for path in arguments[:2]:
                if isinstance(path, str | bytes | os.PathLike):
                    # the entry itself changes, not what a link leads to
                    folder, name = os.path.split(os.path.abspath(os.fsdecode(path)))  # noqa: PTH100 - resolve() would follow a link
                    place = f"{os.path.realpath(folder)}/{name}"
                    self._must_be_in(self.writable, event, place)
        elif event in FORBIDDEN:
            self.wrong.append(f"{event} {arguments[:2]!r}")

    def _must_be_in(self, places: tuple[str, ...], event: str, path: str) -> None:
        if not any(path == place or path.startswith(place + "/") for place in places):
            self.wrong.append(f"{event} {path}")


GUARD = Guard()
_hooked: list[bool] = []


def _hook() -> None:
    """Listen to the interpreter; a hook stays until the process ends, so there is one."""
    if not _hooked:
        _hooked.append(True)
        sys.addaudithook(GUARD.heed)


def _too_long(_signal: int, _frame: FrameType | None) -> None:
    raise HangError(f"more than {MAX_SECONDS:g} s of work or {MAX_WAITING:g} s of waiting")


@contextmanager
def guarded(*writable: Path, readable: tuple[Path, ...] = ()) -> Iterator[None]:
    """Watch a case: time, memory, and what is written or started."""
    _hook()
    GUARD.writable = (*(os.path.realpath(p) for p in writable), os.devnull)
    GUARD.readable = tuple(os.path.realpath(p) for p in readable)
    GUARD.wrong.clear()
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    most = pages * resource.getpagesize() + MAX_MEMORY
    handlers = {number: signal.signal(number, _too_long) for number in (signal.SIGALRM, signal.SIGPROF)}
    resource.setrlimit(resource.RLIMIT_AS, (most, before[1]))
    begun = time.monotonic()
    left, again = signal.setitimer(signal.ITIMER_REAL, MAX_WAITING)
    signal.setitimer(signal.ITIMER_PROF, MAX_SECONDS)
    GUARD.active = True
    try:
        yield
    finally:
        GUARD.active = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.setitimer(signal.ITIMER_PROF, 0)
        resource.setrlimit(resource.RLIMIT_AS, before)
        for number, handler in handlers.items():
            signal.signal(number, handler)
        # the limit of the whole test goes on
        signal.setitimer(signal.ITIMER_REAL, max(1.0, left - (time.monotonic() - begun)) if left else 0.0, again)
    assert not GUARD.wrong, GUARD.wrong


def survives(
    call: Callable[[], Any],
    *writable: Path,
    readable: tuple[Path, ...] = (),
    refusals: tuple[type[Exception], ...] = (DescriptionError,),
) -> Any:
    """Return what a call returns, None if it refuses; fail for everything else."""
    with guarded(*writable, readable=readable):
        try:
            return call()
        except refusals as error:
            said = str(error)
    assert said.strip()
    assert len(said) < MAX_MESSAGE, f"a message of {len(said)} characters: {said[:200]}"
    said.encode(errors="backslashreplace")  # as standard error writes it
    return None


def tree(root: Path) -> dict[str, tuple[int, int]]:
    """Everything under a directory: size and time of change."""
    return {
        str(p.relative_to(root)): ((s := p.lstat()).st_size, s.st_mtime_ns) for p in root.rglob("*") if not p.is_dir()
    }


def cases(few: int, many: int) -> pytest.MarkDecorator:
    """Run a test with few cases always (fewer yet with the quick profile), and with many where slow tests run."""
    return pytest.mark.parametrize(
        "count", [pytest.param(share(few), id="few"), pytest.param(many, id="many", marks=pytest.mark.slow)]
    )


def fuzz(count: int, strategy: SearchStrategy[Any], check: Callable[[Any], None]) -> None:
    """Check so many cases, the same each time; FUZZ_SEED in the environment gives others."""
    number = os.environ.get("FUZZ_SEED")

    @settings(
        max_examples=count,
        deadline=None,
        derandomize=number is None,
        database=None,
        suppress_health_check=list(HealthCheck),
        phases=(Phase.generate, Phase.shrink),
        report_multiple_bugs=False,
    )
    @given(strategy)
    def each(case: Any) -> None:
        check(case)

    with warnings.catch_warnings():
        warnings.simplefilter("ignore", HypothesisWarning)  # that a case is long
        (each if number is None else seed(int(number))(each))()
