"""Which start of a run has its directory: one at a time.

The file `owner` names the start that uses the directory, and rank 0 of that start holds a lock on it. The
kernel lets go of a lock with its process, however that ends, so a lock that is held means a process that
lives: no process number has to be trusted, which may be taken again or belong to another container.

* Nobody holds it: the directory is free, at once after a SIGKILL too.
* A process of this host holds it: this start is refused. It would end a healthy run.
* A process of another host seems to hold it, or an earlier round of the same torchrun job does: this start
  takes over, and the other one ends when it looks (`check`). torchrun may take a host for dead that is not.
"""

from __future__ import annotations

import errno
import fcntl
import json
import os
import secrets
import time
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime
from io import TextIOWrapper
from pathlib import Path
from typing import Any

from runtime.parallel.failures import TakenOverError
from runtime.parallel.host import BOOT_ID, HOST, host_name
from twin.description.problems import fail

OWNER = "owner"
"""Holds the name of the start that uses the directory now."""
HELD = (errno.EWOULDBLOCK, errno.EACCES)
"""Errors by which a file system says that another process has the lock; all else means that it knows no locks."""


@dataclass
class Ownership:
    """A start's hold on the directory of its run."""

    out: Path
    file: TextIOWrapper
    launch: str
    """Name of the torchrun job that this start is a round of; empty if there is none."""
    name: str = field(default_factory=lambda: secrets.token_hex(8))
    locked: bool = False
    _seen: float = 0.0

    @classmethod
    def claim(cls, out: Path, launch: str = "") -> Ownership:
        """Take the directory, before anything in it is changed.

        Raises DescriptionError if a start that lives on this host has it, or it cannot be written.
        """
        try:
            out.mkdir(parents=True, exist_ok=True)
            owned = cls(out, (out / OWNER).open("a+", encoding="ascii", errors="replace"), launch)
            held = not owned._lock()
            if held and not owned._may_take_over(before := _described(out)):
                owned.file.close()
                raise fail(str(out), f"is in use by a start of this run that is alive: {_who(before)}")
            owned._sign()
        except OSError as error:
            raise fail(str(out), f"cannot be written: {error.strerror}; choose another --out") from None
        return owned

    def check(self, *, at_most_every_seconds: float = 0.0) -> None:
        """Raise TakenOverError if another start has claimed the directory since."""
        now = time.monotonic()
        if now - self._seen < at_most_every_seconds:
            return
        self._seen = now
        described = _described(self.out)
        if described.get("name", self.name) != self.name:
            raise TakenOverError(f"{self.out}: another start of this run has taken over; this one ends")
        if not self.locked:  # whoever had it when this start took over may have ended since
            self._lock()

    def release(self) -> None:
        """Let another start have the directory."""
        self.file.close()

    def _lock(self) -> bool:
        """Take the lock; false if another process has it, and true where the file system knows none."""
        try:
            fcntl.flock(self.file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            self.locked = True
        except OSError as error:
            return error.errno not in HELD
        return True

    def _may_take_over(self, before: dict[str, Any]) -> bool:
        same_launch = bool(self.launch) and before.get("launch") == self.launch
        here = _this_host()
        return same_launch or before.get("host", here) != here  # unsigned: it is just being claimed

    def _sign(self) -> None:
        self.file.seek(0)
        self.file.truncate()
        facts = {
            "name": self.name,
            "host": _this_host(),
            "host_name": host_name(),
            "pid": os.getpid(),
            "since": datetime.now(UTC).strftime("%Y-%m-%d %H:%M:%S UTC"),
            "launch": self.launch,
        }
        self.file.write(json.dumps(facts) + "\n")
        self.file.flush()


def _this_host() -> str:
    """Tell apart what cannot share locks: not containers of one host, but hosts that a user has named apart."""
    boot = ""
    with suppress(OSError):
        boot = BOOT_ID.read_text(encoding="ascii").strip()
    return f"{os.environ.get(HOST, '')}/{boot or host_name()}"


def _described(out: Path) -> dict[str, Any]:
    """Read who has the directory; a bare word is a name, as older versions wrote it."""
    try:
        text = (out / OWNER).read_text(encoding="ascii", errors="replace").strip()
    except OSError:
        return {}  # deleted, or the file system is away: nobody has taken over
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if isinstance(found, dict):
        return found
    return {"name": text} if text else {}


def _who(owner: dict[str, Any]) -> str:
    process, host = owner.get("pid", "unknown"), owner.get("host_name", "this host")
    return (
        f"process {process} on {host}, since {owner.get('since', 'an unknown time')}; let it end, or end it "
        f"(kill -TERM {process}: it saves first) and start again, or choose another --out"
    )
