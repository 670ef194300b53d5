"""Run the tests of a tier as three groups at once: ranks (and Chromium), commands of documents, all others.

    python tools/run_tests.py quick|full|all [ARGUMENT ...]      (arguments for pytest)

Those that start ranks run one after another: two pools of ranks at once would wait for each other's cores, and
time out. Commands of documents, which train small jobs one at a time and wait for nobody, run beside them and let them
go first; the others run beside both, two at a time, and leave them the cores they ask for: ranks that wait for a turn
keep each other waiting, at a core each. (A shell's `&` would not do: what it starts ignores Ctrl-C, which tests send.)

A test that hangs fails by its name when its tier's limit is over, with the stacks of its threads; whoever is ended from
outside says first what it has heard.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import NoReturn

KINDS = "process or browser or docs"
TIERS = {"quick": f"not slow and (quick or not ({KINDS} or full))", "full": "not slow", "all": ""}
GROUPS = {
    "ranks": ("(process or browser) and not docs", ()),
    "docs": ("docs", ()),
    # a file's tests stay together, for the sake of its fixtures
    "others": (f"not ({KINDS})", ("-n", str(os.cpu_count() or 2), "--dist", "loadfile")),
}
SECONDS_A_TEST = {"quick": 600, "full": 900, "all": 3600}
"""More than what tests wait for by themselves, which say better what is wrong; less than to wait for nothing costs."""
PROGRESS = re.compile(r"[.FEsxX]+ *\[ *\d+%\]")
CLOSING = re.compile(r"\d+ \w+.* in \d[\d.]*s\b.*")
NOTHING_COLLECTED = 5
NICE = {"docs": "5", "others": "10"}
"""How far a group's processes step back."""
SECONDS_TO_END = 5.0
"""All groups together; whoever ends this from outside may wait for ten."""


@dataclass
class Group:
    """One pytest: what it says, and when it is done."""

    name: str
    command: list[str]
    lines: list[str] = field(default_factory=list)
    code: int = -1
    seconds: float = 0.0
    cpu_seconds: float = 0.0

    def start(self) -> None:
        """Start it, and a thread that listens."""
        self._begun = time.monotonic()
        self.process = subprocess.Popen(
            self.command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment()
        )
        self.listener = threading.Thread(target=self._listen)
        self.listener.start()

    def has_begun(self) -> bool:
        """Whether it has been started."""
        return hasattr(self, "listener")

    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self.has_begun() and self.listener.is_alive()

    def _listen(self) -> None:
        """Show progress at once, and keep the rest."""
        assert self.process.stdout
        for line in self.process.stdout:
            if PROGRESS.fullmatch(line.strip()):
                print(f"{time.monotonic() - self._begun:6.0f} s {self.name:>6}  {line.rstrip()}", flush=True)
            else:
                self.lines.append(line)
        _, status, used = os.wait4(self.process.pid, 0)
        self.code = self.process.returncode = os.waitstatus_to_exitcode(status)
        self.seconds, self.cpu_seconds = time.monotonic() - self._begun, used.ru_utime + used.ru_stime

    def closing(self) -> str:
        """Find pytest's last word: how many passed."""
        return next((line for line in reversed(self.lines) if CLOSING.search(line)), "")


def environment() -> dict[str, str]:
    """Let each process have one thread, and keep compiled tests (git ignores them): to rewrite asserts takes seconds.

    Threads of tiny products spin while they wait for each other: with as many processes as cores, a serial
    reference took seven times the processor time.
    """
    kept = {name: value for name, value in os.environ.items() if name != "PYTHONDONTWRITEBYTECODE"}
    return {**kept, "OMP_NUM_THREADS": "1"}


def selection(tier: str, kinds: str) -> str:
    """Write what a group runs of a tier as pytest's `-m` wants it."""
    return f"({TIERS[tier]}) and ({kinds})" if TIERS[tier] else kinds


def groups(tier: str, arguments: list[str]) -> list[Group]:
    """Make all groups; the longest first."""
    profile = "quick" if tier == "quick" else "full"
    limits = [f"--timeout={SECONDS_A_TEST[tier]}", "--durations=12"]
    pytest = [sys.executable, "-m", "pytest", f"--hypothesis-profile={profile}", *limits, *arguments]
    return [
        Group(name, [*priority(name), *pytest, *how, "-m", selection(tier, kinds)])
        for name, (kinds, how) in GROUPS.items()
    ]


def priority(group: str) -> list[str]:
    """Write what lets a group's processes step back, where there is such a command."""
    return ["nice", "-n", NICE[group]] if group in NICE and shutil.which("nice") else []


def main() -> None:
    """Run all groups; print what each says, then how long it took; fail if one does."""
    if len(sys.argv) < 2 or sys.argv[1] not in TIERS:
        sys.exit(f"usage: python tools/run_tests.py {'|'.join(TIERS)} [ARGUMENT ...]")
    # started with `&` by a script, Ctrl-C would be ignored here and in all that is started
    signal.signal(signal.SIGINT, signal.default_int_handler)
    tier, begun = sys.argv[1], time.monotonic()
    running = groups(tier, sys.argv[2:])

    def end(*_: object) -> NoReturn:
        """Let each say how far it came, as it does at Ctrl-C."""
        for group in running:
            if group.is_running():
                group.process.send_signal(signal.SIGINT)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, end)
    try:
        for group in running:
            group.start()
        for group in running:
            group.listener.join()
    except KeyboardInterrupt:  # all heard it too
        last = time.monotonic() + SECONDS_TO_END
        for group in filter(Group.has_begun, running):
            group.listener.join(max(0.0, last - time.monotonic()))
            print(f"--- {group.name}, ended after {time.monotonic() - begun:.0f} s\n{''.join(group.lines)}", flush=True)
        sys.exit(130)
    finally:
        for group in filter(Group.is_running, running):
            group.process.kill()
            group.listener.join()
    outcomes: Counter[str] = Counter()
    for group in running:
        print(f"--- {group.name}\n{''.join(group.lines)}", flush=True)
        outcomes.update(
            {what: int(count) for count, what in re.findall(r"(\d+) ([a-z]+)", group.closing().split(" in ")[0])}
        )
    for group in running:
        print(f"{group.name:>6}: {group.seconds:6.1f} s, {group.cpu_seconds:6.1f} CPU seconds, exit code {group.code}")
    total = ", ".join(f"{count} {what}" for what, count in outcomes.items() if what != "deselected")
    print(f"{tier}: {total} in {time.monotonic() - begun:.2f}s")
    codes = {group.code for group in running}
    sys.exit(0 if codes <= {0, NOTHING_COLLECTED} and 0 in codes else 1)


if __name__ == "__main__":
    main()
