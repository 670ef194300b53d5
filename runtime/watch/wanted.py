"""What is to be watched."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from twin.description.job import Job

Ask = Callable[[Mapping[str, Any]], dict[str, Any]]
"""Answers what a window of steps shows, as `fourfold diagnose --json` does."""
AskOf = Callable[[Job], Ask]


@dataclass(frozen=True)
class WatchWanted:
    """The interval between looks, and whom to ask."""

    every: int
    """Steps."""
    ask_of: AskOf
