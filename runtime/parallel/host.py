"""Which host this is."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from pathlib import Path

HOST = "FOURFOLD_HOST"
"""Environment: a name for this host, where several share one (as network namespaces do)."""
BOOT_ID, NETWORK = Path("/proc/sys/kernel/random/boot_id"), Path("/proc/self/ns/net")


def host_name() -> str:
    """Name this host as its user would."""
    return os.environ.get(HOST) or socket.gethostname()


def host_identity() -> tuple[str, ...]:
    """Tell this host from others of the same name: its name, its boot, its network (Linux)."""
    found = [host_name()]
    with suppress(OSError):
        found += [BOOT_ID.read_text(encoding="ascii").strip(), str(NETWORK.readlink())]
    return tuple(found)
