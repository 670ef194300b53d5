"""Pages: each a path, a title, what it shows for an address, and the callbacks it needs.

What a page shows is a function of the address alone (`Query`), so that an address can be shared. A
page's controls have ids `{"type": "state", "key": KEY}`; the frame keeps their values in the address.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

from dash import Dash
from dash.development.base_component import Component

from dashboards.catalog import Catalog
from dashboards.settings import Settings


@dataclass(frozen=True)
class PageContext:
    """What pages work with."""

    settings: Settings
    catalog: Catalog


Query = Mapping[str, str]
"""The parameters of an address, the first of each name."""


@dataclass(frozen=True)
class Page:
    """One page."""

    path: str
    title: str
    shown: Callable[[PageContext, Query], Component]
    """Its content; DescriptionErrors it raises are shown as text."""
    register: Callable[[Dash, PageContext], None] = lambda _app, _context: None
    needs: str = ""
    """Which parameters the links in the menu carry to it, comma-separated: "run,other"."""
    kinds: tuple[str, ...] = ()
    """Kinds of entries it shows, those of the picker; none if it shows whatever there is."""
    runs: int = 0
    """How many of them must be chosen before it shows anything."""


def state(key: str) -> dict[str, str]:
    """Return the id of a control whose value belongs into the address."""
    return {"type": "state", "key": key}
