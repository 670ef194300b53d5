"""Strategies of a search beside each other: a card of the page of its candidates."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import dash_mantine_components as dmc
from dash.development.base_component import Component

from dashboards.candidates import SavedCandidate
from dashboards.catalog import Entry
from dashboards.figures.strategies import beside, best_of
from dashboards.parts import card, graph, seconds, table, with_table

STRATEGIES, MAX_REASONS, MAX_REASON = "strategies", 20, 400
"""The figure; reasons why some cannot run, and letters of each, of a stranger's file."""
SLOWER = "slower than the fastest (%)"


def strategies_card(entry: Entry, found: Sequence[SavedCandidate]) -> list[Component]:
    """The best of each strategy side by side; nothing of a search under one."""
    if not any(c.several for c in found):
        return []
    best = best_of(found)
    rows = [_row(c, found, best[0]) for c in best]
    lacking = entry.head.get("cannot_run")
    reasons = lacking.items() if isinstance(lacking, dict) else ()
    words = [f"{str(name)[:40]} cannot run: {str(reason)[:MAX_REASON]}" for name, reason in list(reasons)[:MAX_REASONS]]
    said = "No candidate was simulated."
    if best:
        others = [f"; {row['strategy']} {row[SLOWER]:.3g} % slower" for row in rows[1:]]
        said = f"Fastest: {best[0].name}, {seconds(best[0].step_seconds or 0.0)}{''.join(others)}."
    figure = graph(STRATEGIES, beside(best), label="The best of each strategy", height=150 + 44 * len(best))
    return [
        card(
            "Strategies beside each other",
            said,
            with_table(figure, table("strategies-table", rows, height=90 + 45 * len(rows))),
            *(dmc.Text(one, size="sm") for one in words),
        )
    ]


def _row(best: SavedCandidate, found: Sequence[SavedCandidate], fastest: SavedCandidate) -> dict[str, Any]:
    own = [c for c in found if c.strategy == best.strategy]
    step = best.step_seconds or 0.0
    return {
        "strategy": best.strategy,
        "best grid": best.name.partition(", ")[2],
        "step (s)": step,
        SLOWER: round(100 * (step / (fastest.step_seconds or step or 1.0) - 1), 2),
        "exposed communication (s)": best.exposed_seconds,
        "memory (B)": best.memory_bytes,
        "energy (J)": best.energy_joules,
        "of peak (%)": None if best.percent_of_peak is None else round(best.percent_of_peak, 2),
        "candidates": len(own),
        "can run": sum(c.feasible for c in own),
        "simulated": sum(c.step_seconds is not None for c in own),
    }
