"""Hosts that train one run under torchrun, and that can be made to fail.

Three hosts with two ranks each, in network namespaces, and a fourth that keeps torchrun's meeting point
and never fails. The run's directory is a small memory file system that all hosts see, as clusters
have a parallel one, and that can be full.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from runtime.records.metrics_file import METRICS
from tests.testbed.network import Hosts, hosts

HOSTS, PER_HOST = 3, 2
PORT = 29_400
DISK_BYTES = 256 << 20
RATE = 1e9
MEETING = (
    "import time; from torch.distributed import TCPStore\n"
    "store = TCPStore('0.0.0.0', {port}, is_master=True, wait_for_workers=False)\n"
    "print('ready', flush=True)\nwhile True: time.sleep(3600)"
)
ELASTIC = "is_host=0,last_call_timeout=3,join_timeout=120,keep_alive_interval=1,keep_alive_max_attempt=5"


@dataclass
class Cluster:
    """The hosts of one run."""

    network: Hosts
    job: Path
    out: Path
    logs: Path
    agents: dict[int, subprocess.Popen[bytes]] = field(default_factory=dict)
    starts: int = 0

    def start(self, host: int) -> None:
        """Let a host come, or come again."""
        self.starts += 1
        meeting = f"{self.network.addresses[HOSTS]}:{PORT}"
        command = [
            sys.executable,
            "-m",
            "torch.distributed.run",
            "--nnodes",
            f"1:{HOSTS}",
            "--nproc-per-node",
            str(PER_HOST),
            "--rdzv-backend",
            "c10d",
            "--rdzv-endpoint",
            meeting,
            "--rdzv-id",
            "chaos",
            "--rdzv-conf",
            ELASTIC,
            "--max-restarts",
            "1000",
            "--local-addr",
            self.network.addresses[host],
            "--monitor-interval",
            "0.2",
            "-m",
            "twin",
            "train",
            str(self.job),
            "--out",
            str(self.out),
        ]
        environment = {
            **{k: v for k, v in os.environ.items() if not k.startswith(("SLURM_", "TORCHELASTIC"))},
            "FOURFOLD_HOST": f"host{host}",
            "GLOO_SOCKET_IFNAME": self.network.device,
            "OMP_NUM_THREADS": "1",
            "NO_COLOR": "1",
            "TORCH_DISABLE_SHARE_RDZV_TCP_STORE": "1",
        }
        with (self.logs / f"host{host}.log").open("ab") as log:
            self.agents[host] = subprocess.Popen(
                self.network.command(host, command), stdout=log, stderr=log, env=environment
            )

    def living(self) -> bool:
        """Whether any host's agent has not ended."""
        return any(agent.poll() is None for agent in list(self.agents.values()))

    def ranks(self, host: int | None = None) -> list[int]:
        """Process numbers of the ranks that live, of one host or of all."""
        if host is None:
            return [process for each in range(HOSTS) for process in self.ranks(each)]
        found = []
        for process in self._inside(host):
            with suppress(OSError):
                words = Path(f"/proc/{process}/cmdline").read_bytes().split(b"\0")
                environment = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
                if b"twin" in words and any(each.startswith(b"LOCAL_RANK=") for each in environment):
                    found.append(process)
        return found

    def _inside(self, host: int) -> list[int]:
        said = subprocess.run(
            ["ip", "netns", "pids", self.network.names[host]], capture_output=True, text=True, check=False
        ).stdout
        return list(map(int, said.split()))

    def lose(self, host: int, memory: Path) -> None:
        """All processes of a host die at once, and its memory is empty."""
        for _ in range(20):  # who is being forked while we look is found the next time
            inside = self._inside(host)
            if not inside:
                break
            for process in inside:
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            time.sleep(0.02)
        self.agents.pop(host).wait()
        self.forget(host, memory)

    def forget(self, host: int, memory: Path) -> None:
        """What a host holds in memory is gone."""
        from runtime.survive.memory.place import Place

        shutil.rmtree(Place.of(str(memory), self.out, f"host{host}").root, ignore_errors=True)

    def link(self, host: int, state: str) -> None:
        """Cut a host's link (`down`), or mend it (`up`)."""
        subprocess.run(["ip", "-n", self.network.switch, "link", "set", f"port{host}", state], check=True)

    def lines(self) -> list[dict[str, Any]]:
        """Lines of the run's metrics that are whole."""
        found = []
        with suppress(OSError):
            for line in (self.out / METRICS).read_text(encoding="utf-8", errors="replace").splitlines():
                with suppress(ValueError):
                    found.append(json.loads(line))
        return [each for each in found if "loss" in each]

    def step(self) -> int:
        """The last step that was written; -1 if none was."""
        return max((each["step"] for each in self.lines()), default=-1)

    def close(self) -> None:
        """Leave nothing running."""
        for host in list(self.agents):
            for process in self._inside(host):
                with suppress(ProcessLookupError):
                    os.kill(process, signal.SIGKILL)
            self.agents.pop(host).wait()


@contextmanager
def disk(place: Path) -> Iterator[Path]:
    """Mount a small file system in memory, which can be full."""
    place.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK_BYTES}", "tmpfs", str(place)], check=True)
    try:
        yield place
    finally:
        subprocess.run(["umount", "-l", str(place)], check=False)


@contextmanager
def cluster(job: Path, out: Path, logs: Path) -> Iterator[Cluster]:
    """Make hosts and the meeting point; nothing is started on them yet."""
    with hosts(HOSTS + 1, RATE) as network:
        meeting = subprocess.Popen(
            network.command(HOSTS, [sys.executable, "-c", MEETING.format(port=PORT)]), stdout=subprocess.PIPE
        )
        made = Cluster(network, job, out, logs)
        try:
            assert meeting.stdout is not None
            meeting.stdout.readline()
            yield made
        finally:
            made.close()
            meeting.kill()
            meeting.wait()
