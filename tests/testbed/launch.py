"""Start one command per rank on the hosts of a test bed, watch them, end together."""

from __future__ import annotations

import ctypes
import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.testbed.network import Hosts, orderly_end

PORT = 29_500
"""Where ranks on hosts meet: nobody else is there."""
GRACE_SECONDS = 3.0
"""How long survivors of a failure may take to say what they saw."""
POLL_SECONDS = 0.05
PR_SET_PDEATHSIG = 1
"""Of Linux's prctl: the signal that a process gets when its parent dies."""
LAST_CHARACTERS = 4000
AUTOGROUP = Path("/proc/self/autogroup")
"""Linux shares cores out among sessions first where there is this; it is told a session's niceness."""


class RanksFailedError(RuntimeError):
    """A rank failed, or time ran out. `codes` are exit codes, None where a rank was stopped."""

    def __init__(self, message: str, codes: Sequence[int | None], errors: Sequence[str]) -> None:
        first = next((rank for rank, code in enumerate(codes) if code and errors[rank]), 0)
        super().__init__(f"{message}; rank {first} says:\n{errors[first][-LAST_CHARACTERS:]}")
        self.codes, self.errors = tuple(codes), tuple(errors)


def run_ranks(
    command: Sequence[str],
    hosts: Hosts | None,
    ranks_per_node: int,
    *,
    time_limit_seconds: float = 600.0,
    environment: Mapping[str, str] | None = None,
    niceness: int = 0,
) -> list[str]:
    """Run a command as every rank; return what each wrote to standard error.

    With hosts there are `ranks_per_node` ranks on each; without, on this machine's loopback. A negative
    `niceness` lets this session go before others on a machine that is not its own.
    Raises RanksFailedError if one fails or they take too long; all are stopped then.
    """
    nodes = len(hosts.names) if hosts else 1
    ranks = nodes * ranks_per_node
    shared = {
        **_plain(os.environ),
        **(environment or {}),
        "WORLD_SIZE": str(ranks),
        "LOCAL_WORLD_SIZE": str(ranks_per_node),
        "OMP_NUM_THREADS": "1",
        "MASTER_ADDR": hosts.addresses[0] if hosts else "127.0.0.1",
        "MASTER_PORT": str(PORT if hosts else _free_port()),
        "GLOO_SOCKET_IFNAME": hosts.device if hosts else "lo",
    }
    processes: list[subprocess.Popen[bytes]] = []
    with orderly_end(), tempfile.TemporaryDirectory() as folder, _priority(niceness):
        files = [Path(folder, f"rank{rank}") for rank in range(ranks)]
        try:
            for rank, file in enumerate(files):
                node, local = divmod(rank, ranks_per_node)
                with file.open("wb") as errors_of_rank:
                    processes.append(
                        subprocess.Popen(
                            hosts.command(node, command) if hosts else list(command),
                            stderr=errors_of_rank,
                            preexec_fn=_end_with_parent,  # noqa: PLW1509  no threads here
                            env={**shared, "RANK": str(rank), "LOCAL_RANK": str(local)},
                        )
                    )
            problem = _watch(processes, time.monotonic() + time_limit_seconds)
            codes = [process.poll() for process in processes]
        finally:
            _stop(processes)
        errors = [file.read_text(encoding="utf-8", errors="replace") for file in files]
    if problem:
        raise RanksFailedError(problem, codes, errors)
    return errors


def _plain(environment: Mapping[str, str]) -> dict[str, str]:
    """Without what another launcher has left."""
    foreign = ("SLURM_", "TORCHELASTIC", "FOURFOLD_")
    return {key: value for key, value in environment.items() if not key.startswith(foreign)}


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _end_with_parent() -> None:
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)


@contextmanager
def _priority(niceness: int) -> Iterator[None]:
    """Give this session's processes more of the cores than other sessions', or fewer, for a while.

    All ranks stay in one session, so that among them threads are scheduled as in any other run.
    """
    if not niceness or not AUTOGROUP.exists():
        yield
        return
    AUTOGROUP.write_text(str(niceness), encoding="ascii")
    try:
        yield
    finally:
        AUTOGROUP.write_text("0", encoding="ascii")


def _watch(processes: Sequence[subprocess.Popen[bytes]], limit: float) -> str:
    """Wait for all; return what went wrong."""
    deadline, problem = limit, ""
    while None in (codes := [process.poll() for process in processes]):
        if not problem and any(codes):
            problem = _first_failure(codes)
            deadline = min(limit, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            return problem or "the ranks took too long"
        time.sleep(POLL_SECONDS)
    return problem or _first_failure(codes)


def _first_failure(codes: Sequence[int | None]) -> str:
    failed = [rank for rank, code in enumerate(codes) if code]
    return f"rank {failed[0]} failed" if failed else ""


def _stop(processes: Sequence[subprocess.Popen[bytes]]) -> None:
    for process in processes:
        if process.poll() is None:
            process.kill()
    for process in processes:
        process.wait()
