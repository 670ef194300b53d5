"""Candidates of a search as rows of tables, and side by side."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import islice
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from dashboards.anatomy import SLOWEST
from dashboards.candidates import SavedCandidate
from dashboards.figures.pareto import TOP
from dashboards.figures.strategies import slowest_wait
from dashboards.parts import aria, card, seconds
from twin.description.units import format_memory, format_si
from twin.search.words import HINDRANCES

MAX_ROWS = 5000
"""Of a table: they travel as JSON with the page; the file has all."""


def model_top(kept: Sequence[SavedCandidate]) -> list[SavedCandidate]:
    """The published model's best, in its order."""
    return sorted((c for c in kept if c.model_rank and c.model_rank <= TOP), key=lambda c: (c.ranks, c.model_rank or 0))


def row(candidate: SavedCandidate) -> dict[str, Any]:
    """One candidate as a row, SI figures."""
    step = candidate.step_seconds
    return {
        "id": str(candidate.number),
        "place": candidate.place,
        **({"place in its strategy": candidate.rank} if candidate.several else {}),
        candidate.axes: candidate.name,
        "ranks": candidate.ranks,
        "micro-batch": candidate.micro_sequences,
        "step (s)": step,
        **({"energy of a step (J)": candidate.billed_joules} if candidate.by_energy else {}),
        "exposed (%)": None if not step else round(100 * (candidate.exposed_seconds or 0.0) / step, 2),
        "memory (B)": candidate.memory_bytes,
        "of peak (%)": None if candidate.percent_of_peak is None else round(candidate.percent_of_peak, 2),
        "tokens/s": None if candidate.tokens_per_second is None else round(candidate.tokens_per_second),
        "model's place": candidate.model_rank,
        **candidate.options.columns(),
    }


def columns_of(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the names of the columns of all rows, in order: those of several strategies have options of their own."""
    return list(dict.fromkeys(name for row in rows for name in row))


def refused_row(candidate: SavedCandidate) -> dict[str, Any]:
    """One candidate that cannot run, with the reason."""
    why = {str(k): v for k, v in HINDRANCES.items()}.get(candidate.hindrance, candidate.hindrance or "simulation")
    return {
        candidate.axes: candidate.name,
        "ranks": candidate.ranks,
        "hindered by": why,
        "memory (B)": candidate.memory_bytes,
        "reason": candidate.reason,
    }


def able(kept: Sequence[SavedCandidate]) -> list[dict[str, Any]]:
    """Rows of those that were simulated or ranked."""
    return [row(c) for c in islice((c for c in kept if c.feasible and not c.reason), MAX_ROWS)]


def unable(kept: Sequence[SavedCandidate]) -> list[dict[str, Any]]:
    """Rows of those that cannot run."""
    return [refused_row(c) for c in islice((c for c in kept if not c.feasible or c.reason), MAX_ROWS)]


def model_rows(kept: Sequence[SavedCandidate], found: Sequence[SavedCandidate]) -> list[dict[str, Any]]:
    """The published model's best with their simulated places, and how much slower than the first place they are.

    Places are among candidates of as many ranks, under one strategy; so is the first.
    """
    first = {(c.strategy, c.ranks): c.step_seconds for c in found if c.rank == 1}

    def slower(one: SavedCandidate) -> float | None:
        least = first.get((one.strategy, one.ranks))
        return round(100 * (one.step_seconds / least - 1), 2) if one.step_seconds and least else None

    return [
        {
            "ranks": c.ranks,
            "model's place": c.model_rank,
            "simulated place": c.rank,
            c.axes: c.name,
            "step (s)": c.step_seconds,
            "slower than place 1 (%)": slower(c),
        }
        for c in model_top(kept)
    ]


def comparison(chosen: Sequence[SavedCandidate], search: str = "", prefix: str = "") -> Component:
    """Show one candidate, or two side by side; `search` is what addresses call the search they are of."""
    if not chosen:
        return html.Div()
    parts = [facts(c) for c in chosen]
    body = []
    for key in dict.fromkeys(key for part in parts for key in part):
        cells = [part.get(key, "") for part in parts]
        bold = 700 if len(set(cells)) > 1 else 400
        shown_cells = [dmc.TableTd(dmc.Text(cell, size="sm", fw=bold)) for cell in cells]
        body.append(dmc.TableTr([dmc.TableTh(key), *shown_cells]))
    heads = [dmc.TableTh(dmc.Group([c.name, _download(c), *_what_if(c, search, prefix)])) for c in chosen]
    words = (
        "Choose a second one to compare."
        if len(chosen) == 1
        else "Bold: where the two differ. Times are means over ranks."
    )
    return card(
        "Chosen" if len(chosen) == 1 else "Side by side",
        words,
        dmc.Table(
            [dmc.TableThead(dmc.TableTr([dmc.TableTh(chosen[0].axes), *heads])), dmc.TableTbody(body)], striped="even"
        ),
    )


def _what_if(candidate: SavedCandidate, search: str, prefix: str) -> list[Component]:
    """Lead to the page that simulates the candidate, shows its timeline, and changes it."""
    if not search or candidate.micro_sequences is None:
        return []
    address = f"{prefix.rstrip('/')}/whatif?run={search}&candidate={candidate.number}"
    return [dmc.Anchor("What if, timeline", href=address, size="sm", **aria(f"What if, of {candidate.name}"))]


def _download(candidate: SavedCandidate) -> Component:
    return dmc.Button(
        "Job file",
        id={"type": "candidate", "number": candidate.number},
        size="xs",
        variant="default",
        disabled=candidate.micro_sequences is None,
        **aria(f"Job file of {candidate.name}"),
    )


def facts(candidate: SavedCandidate) -> dict[str, str]:
    """Everything about one candidate: options, parts of the step, memory."""

    def time(value: float | None) -> str:
        return "–" if value is None else seconds(value)

    of = " in its strategy" if candidate.several else ""
    return {
        "ranks": f"{candidate.ranks:,}",
        "micro-batch": str(candidate.micro_sequences or "–"),
        **{title: str(value) for title, value in candidate.options.columns().items()},
        "step": time(candidate.step_seconds),
        "place": f"{candidate.place:,}" if candidate.place else "–",
        **({f"place{of}": f"{candidate.rank:,}" if candidate.rank else "–"} if of else {}),
        f"model's place{of}": f"{candidate.model_rank:,}" if candidate.model_rank else "–",
        "compute": time(candidate.compute_seconds),
        "exposed communication": time(candidate.exposed_seconds),
        **{f"exposed, {axis}": time(value) for axis, value in candidate.exposed_by_axis.items()},
        SLOWEST: time(None if candidate.step_seconds is None else slowest_wait(candidate)),
        "idle": time(candidate.idle_seconds),
        "energy of a step, devices": "–"
        if candidate.energy_joules is None
        else format_si(candidate.energy_joules, "J"),
        "memory of a rank": "–" if candidate.memory_bytes is None else format_memory(candidate.memory_bytes),
        **{f"memory, {name}": format_memory(size) for name, size in candidate.memory.items()},
    }
