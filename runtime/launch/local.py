"""Start the ranks of a job on this host, watch them, and end together.

If one dies, the others get a moment to say what they saw, and are stopped: a training run is
whole or over. If wanted, all are then started again.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from types import MappingProxyType

from runtime.launch.environment import ATTEMPT, GLOO_INTERFACE, STORE_SOCKET, check_interface
from runtime.launch.heap import heap_environment
from runtime.launch.signals import HEARD, SAME_SECONDS

GRACE_SECONDS = 8.0
"""Time that survivors have to notice and tell."""
POLL_SECONDS = 0.05
PARENT = "FOURFOLD_PARENT"
"""Environment: process number of the launcher."""
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal that a process gets when its parent dies."""


GIVE_UP = 3
"""Exit code of a rank, told only to who starts it again (this launcher, the script of a SLURM job): the loss is NaN or
infinite, as it would be again from the same checkpoint; or another start of the run has its directory, and would lose
it again."""
FINAL = (0, 2, 130, GIVE_UP)
"""Exit codes after which ranks are not started again: well done, bad input, interrupted, no use."""

Processes = list[subprocess.Popen[bytes]]


@dataclass(frozen=True)
class Outcome:
    """The end of the ranks."""

    code: int
    """0 if all ended well, 2 if the input was bad, GIVE_UP if another start is no use, 1 if a rank failed or died."""
    reason: str = ""
    """Which ranks did not end well, and how."""


@dataclass
class Forwarding:
    """Hands signals that ask for an end on to the ranks, and remembers that there was one."""

    asked: bool = False
    _processes: Processes = field(default_factory=list)
    _asked_at: float = 0.0

    def to(self, processes: Processes) -> None:
        """From now on to these."""
        self._processes = processes

    def __call__(self, number: int, _frame: object) -> None:
        """Hand on the first signal; leave at the second, by way of what stops the ranks."""
        if self.asked and time.monotonic() - self._asked_at > SAME_SECONDS:
            _leave(number, None)
        if not self.asked:
            self.asked, self._asked_at = True, time.monotonic()
            for process in self._processes:
                if process.poll() is None:
                    process.send_signal(number)


def run_ranks(
    arguments: Sequence[str],
    ranks: int,
    *,
    restarts: int = 0,
    forward: bool = False,
    environment: Mapping[str, str] = MappingProxyType({}),
) -> int:
    """Run `fourfold` with these arguments in so many processes; returns the exit code.

    `environment` is what they are told besides.

    That is 0 if all end well, 2 if the input was bad, 1 if a rank failed or died and there was
    no restart left. With `forward`, SIGTERM and SIGUSR1 go to the ranks, which then end by themselves;
    else SIGTERM ends all at once.
    """
    check_interface(os.environ)
    forwarding = Forwarding()
    leaving: dict[signal.Signals, Callable[[int, object], None]] = {signal.SIGHUP: _leave, signal.SIGTERM: _leave}
    if forward:
        leaving |= dict.fromkeys(HEARD, forwarding)
    # leave by way of what stands below, so that the ranks are stopped
    before = {number: signal.signal(number, handler) for number, handler in leaving.items()}
    try:
        for attempt in range(restarts + 1):
            outcome = _attempt(arguments, ranks, attempt, forwarding if forward else None, environment)
            if outcome.code in FINAL or forwarding.asked or attempt == restarts:
                break
            _say(
                f"{outcome.reason}; starting all {ranks} ranks again from the newest checkpoint, "
                f"restart {attempt + 1} of at most {restarts}"
            )
        return 1 if outcome.code == GIVE_UP else outcome.code
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _attempt(
    arguments: Sequence[str], ranks: int, attempt: int, forwarding: Forwarding | None, told: Mapping[str, str]
) -> Outcome:
    processes: Processes = []
    try:
        with socket.socket() as listener, _held(forwarding is not None):
            listener.bind(("127.0.0.1", 0))
            listener.listen(ranks)
            for rank in range(ranks):
                processes.append(_start(arguments, rank, ranks, attempt, listener, told))
            if forwarding is not None:
                forwarding.to(processes)
        return _watch(processes)
    except KeyboardInterrupt:
        _stop(processes, signal.SIGINT)
        return Outcome(130)
    finally:
        _stop(processes, signal.SIGKILL)


@contextmanager
def _held(wanted: bool) -> Iterator[None]:
    """Hold signals back, for this process until all ranks are there, for each rank until it listens."""
    before = signal.pthread_sigmask(signal.SIG_BLOCK, HEARD if wanted else ())
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


def _start(
    arguments: Sequence[str], rank: int, ranks: int, attempt: int, listener: socket.socket, told: Mapping[str, str]
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ,
        **heap_environment(os.environ),
        **told,
        "FOURFOLD_RANKS": str(ranks),
        "RANK": str(rank),
        "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank),
        "LOCAL_WORLD_SIZE": str(ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(listener.getsockname()[1]),
        PARENT: str(os.getpid()),
        ATTEMPT: str(attempt),
        # gloo listens where the host's name points otherwise, which need not be this host alone
        GLOO_INTERFACE: os.environ.get(GLOO_INTERFACE, "lo"),
    }
    passed = []
    if rank == 0:
        environment[STORE_SOCKET] = str(listener.fileno())
        passed = [listener.fileno()]
    return subprocess.Popen([sys.executable, "-m", "twin", *arguments], env=environment, pass_fds=passed)


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def end_with_parent() -> None:
    """Let this rank be killed when its launcher is: an orphan would train on in secret (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(os.environ[PARENT]):
            sys.exit(128 + signal.SIGKILL)  # it was gone already


def _watch(processes: Processes) -> Outcome:
    deadline, first = None, []
    while True:
        codes = [process.poll() for process in processes]
        if all(code is not None for code in codes):
            break
        if deadline is None and any(codes):
            deadline = time.monotonic() + GRACE_SECONDS
            first = [rank for rank, code in enumerate(codes) if code]
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    stuck = [rank for rank, code in enumerate(codes) if code is None]
    killed = {rank: code for rank, code in enumerate(codes) if code is not None and code < 0}
    for rank, code in killed.items():
        _say(f"rank {rank} was killed by {_signal(-code)}")
    if stuck:
        _say(f"stopping {_ranks(stuck)}, still waiting for a rank that is gone")
    if not any(codes) and not stuck:
        return Outcome(0)
    reasons = [f"rank {rank} was killed by {_signal(-code)}" for rank, code in killed.items()]
    if not killed:  # who failed first, if that can be told; the others only lost a peer
        failed = first or [rank for rank, code in enumerate(codes) if code]
        reasons = [f"{_ranks(failed)} failed"] + ([f"{_ranks(stuck)} hung"] if stuck else [])
    # where one rank found the input bad, or gave up, the others only lost a peer
    code = next((code for code in (130, 2, GIVE_UP) if code in codes), 1)
    return Outcome(code, ", ".join(reasons))


def _ranks(ranks: Sequence[int]) -> str:
    return f"rank {', '.join(map(str, ranks))}"


def _say(text: str) -> None:
    with suppress(OSError):  # a full disk, or a reader that has gone: the ranks go on
        print(f"fourfold: {text}", file=sys.stderr, flush=True)  # noqa: T201


def _signal(number: int) -> str:
    try:
        return f"signal {number} ({signal.Signals(number).name})"
    except ValueError:
        return f"signal {number}"


def _stop(processes: list[subprocess.Popen[bytes]], how: signal.Signals) -> None:
    for process in processes:
        if process.poll() is None:
            process.send_signal(how)
    for process in processes:
        try:
            process.wait(GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
