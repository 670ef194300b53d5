"""All pages, in the order of the menu."""

from __future__ import annotations

from dashboards.page import Page
from dashboards.pages import communication, memory, rank_map, runs, timeline, trust, verdict

PAGES: tuple[Page, ...] = (
    runs.PAGE,
    verdict.PAGE,
    timeline.PAGE,
    communication.PAGE,
    memory.PAGE,
    trust.PAGE,
    rank_map.PAGE,
)
