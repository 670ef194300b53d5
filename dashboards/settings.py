"""What the application is told when it starts."""

from __future__ import annotations

import os
import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa

from twin.description.problems import fail

LOCAL_HOSTS = ("localhost", "127.0.0.1", "[::1]")
TOKEN_BYTES = 24
"""192 random bits: nobody guesses them."""
MIN_TOKEN = 16
"""Characters of a token of one's own; fewer can be tried out over a network."""


@dataclass(frozen=True)
class Settings:
    """Where runs lie, who may look, and under which address."""

    root: Path
    """Directory with runs; nothing outside it is read."""
    token: str = field(default_factory=lambda: secrets.token_urlsafe(TOKEN_BYTES))
    """What a visitor must know; empty for a server that others guard."""
    prefix: str = "/"
    """Path under which the public sees the application; ends with a slash."""
    hosts: tuple[str, ...] = LOCAL_HOSTS
    """Names under which it may be asked for, without port."""
    workers: int = 1
    """Processes that simulate for the what-if page."""

    def __post_init__(self) -> None:
        """Refuse what cannot work."""
        if not self.root.is_dir():
            raise fail(str(self.root), "is not a directory; name one that holds runs")
        if not (self.prefix.startswith("/") and self.prefix.endswith("/")):
            raise fail("--prefix", "must begin and end with a slash, such as /user/me/proxy/8050/", self.prefix)
        if self.token and len(self.token) < MIN_TOKEN:
            raise fail("FOURFOLD_DASHBOARD_TOKEN", f"is shorter than {MIN_TOKEN} characters", "…")


def prepare_process() -> None:
    """Let Arrow take memory from the system's allocator, for the whole process that serves.

    Its own takes large pages, which cost seconds to clear when three million events are read (3.8 s
    against 0.6 s), and holds more of them.
    """
    pa.set_memory_pool(pa.system_memory_pool())


def from_environment(environment: Mapping[str, str]) -> Settings:
    """Read settings for a WSGI server: FOURFOLD_DASHBOARD_{RUNS, TOKEN, PREFIX, HOSTS}.

    Raises:
        DescriptionError: if RUNS or TOKEN is missing or wrong. An empty TOKEN must be asked for by
            the word `none`.
    """

    def value(name: str, missing: str) -> str:
        found = environment.get(f"FOURFOLD_DASHBOARD_{name}", "")
        if not found and missing:
            raise fail(f"FOURFOLD_DASHBOARD_{name}", missing)
        return found

    token = value("TOKEN", "is not set; give a secret of at least 16 characters, or none")
    hosts = [host.strip() for host in value("HOSTS", "").split(",") if host.strip()]
    return Settings(
        root=Path(value("RUNS", "is not set; name the directory with runs")),
        token="" if token == "none" else token,
        prefix=value("PREFIX", "") or "/",
        hosts=(*LOCAL_HOSTS, *hosts),
        workers=max(1, (os.cpu_count() or 1) - 1),
    )
