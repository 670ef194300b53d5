"""Which host this is."""

from __future__ import annotations

import os
import socket

HOST = "FOURFOLD_HOST"
"""Environment: a name for this host, where several share one (as network namespaces do)."""


def host_name() -> str:
    """Name this host as its user would."""
    return os.environ.get(HOST) or socket.gethostname()
