"""Start the ranks of a job on this host, watch them, and end together.

If one dies, the others get a moment to say what they saw, and are stopped: a training run is
whole or over.
"""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from runtime.environment import STORE_SOCKET

GRACE_SECONDS = 8.0
"""How long survivors may take to notice and tell."""
POLL_SECONDS = 0.05
PARENT = "FOURFOLD_PARENT"
"""Environment: process number of the launcher."""
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal that a process gets when its parent dies."""


def run_ranks(arguments: Sequence[str], ranks: int) -> int:
    """Run `fourfold` with these arguments in so many processes; returns the exit code.

    That is 0 if all end well, 2 if the input was bad, 1 if a rank failed or died.
    """
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(ranks)
        processes = [_start(arguments, rank, ranks, listener) for rank in range(ranks)]
    # leave by way of what stands below, so that the ranks are stopped
    before = {n: signal.signal(n, _leave) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        return _watch(processes)
    except KeyboardInterrupt:
        _stop(processes, signal.SIGINT)
        return 130
    finally:
        _stop(processes, signal.SIGKILL)
        for number, handler in before.items():
            signal.signal(number, handler)


def _start(
    arguments: Sequence[str], rank: int, ranks: int, listener: socket.socket
) -> subprocess.Popen[bytes]:
    environment = {
        **os.environ, "FOURFOLD_RANKS": str(ranks), "RANK": str(rank), "WORLD_SIZE": str(ranks),
        "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(listener.getsockname()[1]), PARENT: str(os.getpid()),
        # gloo listens where the host's name points otherwise, which need not be this host alone
        "GLOO_SOCKET_IFNAME": os.environ.get("GLOO_SOCKET_IFNAME", "lo"),
    }  # fmt: skip
    passed = []
    if rank == 0:
        environment[STORE_SOCKET] = str(listener.fileno())
        passed = [listener.fileno()]
    return subprocess.Popen(
        [sys.executable, "-m", "twin", *arguments], env=environment, pass_fds=passed
    )


def _leave(number: int, _frame: object) -> None:
    raise SystemExit(128 + number)


def end_with_parent() -> None:
    """Let this rank be killed when its launcher is: an orphan would train on in secret (Linux only)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != int(os.environ[PARENT]):
            sys.exit(128 + signal.SIGKILL)  # it was gone already


def _watch(processes: list[subprocess.Popen[bytes]]) -> int:
    deadline = None
    while True:
        codes = [process.poll() for process in processes]
        if all(code is not None for code in codes):
            break
        if deadline is None and any(codes):
            deadline = time.monotonic() + GRACE_SECONDS
        if deadline is not None and time.monotonic() > deadline:
            break
        time.sleep(POLL_SECONDS)
    stuck = [rank for rank, code in enumerate(codes) if code is None]
    for rank, code in enumerate(codes):
        if code is not None and code < 0:
            print(f"fourfold: rank {rank} was killed by {_signal(-code)}", file=sys.stderr)  # noqa: T201
    if stuck:
        text = f"fourfold: stopping rank {', '.join(map(str, stuck))}, still waiting for a rank that is gone"
        print(text, file=sys.stderr)  # noqa: T201
    if not any(codes) and not stuck:
        return 0
    # where one rank found the input bad, the others only lost a peer
    return next((code for code in (130, 2) if code in codes), 1)


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
