"""torchrun's agents on this machine, each a host of its own."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from tests.runtime import runs


@dataclass
class Agents:
    """Agents of two ranks each that train one run; the first one keeps the meeting point."""

    job: Path
    out: Path
    nodes: str = "1:2"
    port: int = 0
    processes: dict[str, subprocess.Popen[str]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]

    def start(self, host: str, ranks: int = 2) -> None:
        """Let a host come (again)."""
        settings = "last_call_timeout=3,join_timeout=60,keep_alive_interval=2,keep_alive_max_attempt=4"
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            self.nodes,
            "--nproc-per-node",
            str(ranks),
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            f"127.0.0.1:{self.port}",
            "--rdzv-id",
            "test",
            "--rdzv-conf",
            settings,
            "--max-restarts",
            "9",
            "--local-addr",
            "127.0.0.1",
            "--monitor-interval",
            "0.1",
            "-m",
            "twin",
            "train",
            str(self.job),
            "--out",
            str(self.out),
        ]
        # files, for a pipe that nobody reads fills up; the agent has its own handles of them
        errors, shown = self.out.parent / f"{host}.err", self.out.parent / f"{host}.out"
        with errors.open("a") as stderr, shown.open("a") as stdout:
            self.processes[host] = subprocess.Popen(
                command,
                stdout=stdout,
                stderr=stderr,
                text=True,
                env=runs.environment(
                    FOURFOLD_HOST=host,
                    GLOO_SOCKET_IFNAME="lo",
                    TORCH_DISABLE_SHARE_RDZV_TCP_STORE="1",  # else no host can join later: see docs/howto/survive.md
                ),
            )

    def kill(self, host: str) -> None:
        """Lose a host: agent and ranks at once."""
        agent = self.processes.pop(host)
        ranks = runs.ranks_of(agent)
        os.kill(agent.pid, signal.SIGKILL)
        for rank in ranks:
            os.kill(rank, signal.SIGKILL)
        agent.wait()

    def wait_for_step(self, step: int, seconds: float = 240) -> None:
        """Wait until a step is written."""
        deadline = time.monotonic() + seconds
        while max(runs.losses(self.out), default=-1) < step:
            assert time.monotonic() < deadline, self.said()
            assert any(p.poll() is None for p in self.processes.values()), self.said()
            time.sleep(0.02)

    def finish(self, seconds: float = 600) -> str:
        """Wait for the end of all; return what they showed.

        The first agent must end well; the others may not find the meeting point any more.
        """
        deadline = time.monotonic() + seconds
        for process in self.processes.values():
            process.wait(max(1.0, deadline - time.monotonic()))
        assert next(iter(self.processes.values())).returncode == 0, self.said()
        return self.said()

    def said(self) -> str:
        """What has been shown so far."""
        return "\n".join(path.read_text() for path in sorted(self.out.parent.glob("*.[oe][ur][tr]")))

    def close(self) -> None:
        """Leave nothing running."""
        for host in list(self.processes):
            if self.processes[host].poll() is None:
                self.kill(host)


def memory_of(host: str, run: Path, directory: Path) -> Path:
    """Where a host keeps its copies."""
    from runtime.survive.memory.place import Place

    return Place.of(str(directory), run, host).root


def lose_memory(host: str, run: Path, directory: Path) -> None:
    """What a host holds is gone with it."""
    shutil.rmtree(memory_of(host, run, directory))
