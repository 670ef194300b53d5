"""Run a command as a process of its own, and say what it took."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

LOOK_SECONDS = 0.2
"""Between two looks at what processes take: a look costs some milliseconds."""


@dataclass(frozen=True)
class Usage:
    """Medians over runs of one command; peak memory is the most of them."""

    wall_seconds: float
    cpu_seconds: float
    """User and system, of all its processes."""
    peak_megabytes: float
    answer: Any
    """What it printed, read as JSON."""


def measure(arguments: Sequence[str], runs: int = 3) -> Usage:
    """Run `python ARGUMENTS`, which prints JSON, so many times."""
    wall, cpu, peak, text = [], [], 0.0, b"null"
    for _ in range(runs):
        begin = time.perf_counter()
        process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.PIPE)
        assert process.stdout is not None
        text = process.stdout.read()
        _, status, usage = os.wait4(process.pid, 0)
        if status:
            raise SystemExit(f"{' '.join(arguments)} ended with {os.waitstatus_to_exitcode(status)}")
        wall.append(time.perf_counter() - begin)
        cpu.append(usage.ru_utime + usage.ru_stime)
        peak = max(peak, usage.ru_maxrss / 1024)
    return Usage(statistics.median(wall), statistics.median(cpu), peak, json.loads(text))


@dataclass
class Session:
    """What the processes of one session have taken so far, as `/proc` says; Linux only."""

    number: int
    """Of the session: that of the process that leads it."""
    peak_megabytes: float = 0.0
    """Of all its processes together; what several share counts once."""
    _ticks: dict[int, int] = field(default_factory=dict)
    """User and system, by process, those that have ended too."""

    @property
    def cpu_seconds(self) -> float:
        """User and system, of all its processes."""
        return sum(self._ticks.values()) / os.sysconf("SC_CLK_TCK")

    def look(self) -> None:
        """Read what each process has taken; one that ends meanwhile is what it was at the last look."""
        kilobytes = 0
        for directory in Path("/proc").glob("[0-9]*"):
            try:
                fields = (directory / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
                if int(fields[3]) != self.number:
                    continue
                self._ticks[int(directory.name)] = int(fields[11]) + int(fields[12])
                lines = (directory / "smaps_rollup").read_text(encoding="utf-8").splitlines()
            except OSError:
                continue
            kilobytes += sum(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
        self.peak_megabytes = max(self.peak_megabytes, kilobytes / 1024)


def measure_all(arguments: Sequence[str]) -> Usage:
    """Run `python ARGUMENTS` once, which prints JSON and starts processes of its own: they all count."""
    with tempfile.TemporaryFile() as output:
        begin = time.perf_counter()
        process = subprocess.Popen([sys.executable, *arguments], stdout=output, start_new_session=True)
        session = Session(process.pid)
        while process.poll() is None:
            session.look()
            time.sleep(LOOK_SECONDS)
        wall = time.perf_counter() - begin
        if process.returncode:
            raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
        output.seek(0)
        return Usage(wall, session.cpu_seconds, session.peak_megabytes, json.load(output))


def machine() -> str:
    """Name this machine: processor, cores, Python."""
    name = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        models = [line for line in cpuinfo.read_text(encoding="utf-8").splitlines() if "model name" in line]
        name = models[0].partition(":")[2].strip() if models else name
    return f"{name}, {os.cpu_count()} cores, Python {platform.python_version()}"
