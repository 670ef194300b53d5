"""What fills a window of time, and what ops of a name add up to."""

from __future__ import annotations

from typing import Any

import numpy as np

from dashboards.events import CATEGORIES
from dashboards.figures.timeline_picture import WORDS
from dashboards.timeline.lanes import Lanes
from dashboards.timeline.view import Pair

MAX_FOUND = 300
"""Names of ops in a table: of more the largest totals."""


def window_rows(pair: Pair, shown: Lanes, window: tuple[float, float]) -> list[dict[str, Any]]:
    """Return for each kind how long it is busy inside a window, mean over the ranks shown, and its share; each run."""
    low, high = window
    length = high - low
    inside = np.clip(np.minimum(shown.end, high) - np.maximum(shown.start, low), 0.0, None)
    rows = []
    for kind, name in enumerate(CATEGORIES):
        of_kind = shown.category == kind
        if not of_kind.any():
            continue
        row: dict[str, Any] = {"kind": WORDS[name]}
        for side, label in enumerate(pair.labels):
            at = of_kind & (shown.side == side)
            ranks = _ranks(shown, pair, side)
            mean = float(inside[at].sum()) / max(ranks, 1)
            row[f"{label} (s)"] = mean
            row[f"{label}, share (%)"] = round(100 * mean / length, 3)
            row[f"{label}, ops"] = int((inside[at] > 0).sum())
        rows.append(row)
    return rows


def _ranks(shown: Lanes, pair: Pair, side: int) -> int:
    several = len(pair.steps) > 1
    names = [n for n in range(len(shown.names)) if not several or shown.names[n].endswith(f"· {pair.labels[side]}")]
    return len({rank for n in names for rank in shown.ranks[n]})


def found_rows(pair: Pair, shown: Lanes, text: str) -> list[dict[str, Any]]:
    """Return ops whose names hold a text: how often, totals and means over the ranks shown; the largest first."""
    words = text.lower()
    tables: list[dict[str, tuple[int, float, int]]] = []
    for side, step in enumerate(pair.steps):
        known = np.array([words in name.lower() for name in step.names], dtype=bool)
        at = np.flatnonzero(shown.side == side)
        at = at[known[step.base[shown.event[at]]]]
        base = step.base[shown.event[at]]
        total = np.bincount(base, weights=(shown.end - shown.start)[at], minlength=len(step.names))
        count = np.bincount(base, minlength=len(step.names))
        first = np.full(len(step.names), -1)
        first[base[::-1]] = shown.event[at][::-1]
        table = {step.names[n]: (int(count[n]), float(total[n]), int(first[n])) for n in np.flatnonzero(count)}
        tables.append(table)
    names = sorted({n for table in tables for n in table}, key=lambda n: -max(t.get(n, (0, 0.0, 0))[1] for t in tables))
    rows = []
    for name in names[:MAX_FOUND]:
        row: dict[str, Any] = {"op": name}
        for label, table in zip(pair.labels, tables, strict=True):
            times, seconds, _ = table.get(name, (0, 0.0, -1))
            row |= {f"{label}, times": times, f"{label}, total (s)": seconds}
            row[f"{label}, mean (s)"] = seconds / times if times else None
        side = next(side for side in reversed(range(len(tables))) if name in tables[side])
        rows.append(row | {"key": f"{side}.{tables[side][name][2]}"})
    return rows
