"""A picture of a page, as plain data for plotly: no plotting library is loaded to make it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Picture:
    """One plot: what it says in a sentence, and plotly's data and layout."""

    title: str
    note: str
    data: list[dict[str, Any]]
    layout: dict[str, Any]
