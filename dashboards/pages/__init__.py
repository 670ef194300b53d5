"""All pages, in the order of the menu."""

from __future__ import annotations

from dashboards.page import Page
from dashboards.pages import (
    communication,
    compare,
    configurations,
    memory,
    rank_map,
    report,
    runs,
    scaling,
    timeline,
    training,
    trust,
    verdict,
    whatif,
)

PAGES: tuple[Page, ...] = (
    runs.PAGE,
    training.PAGE,
    verdict.PAGE,
    compare.PAGE,
    timeline.PAGE,
    configurations.PAGE,
    whatif.PAGE,
    scaling.PAGE,
    communication.PAGE,
    memory.PAGE,
    trust.PAGE,
    rank_map.PAGE,
    report.PAGE,
)
