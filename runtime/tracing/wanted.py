"""What is to be traced."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class TraceWanted:
    """Which steps to record, and where to write them."""

    directory: Path
    first_step: int
    last_step: int
    """Included."""
    overwrite: bool = False
