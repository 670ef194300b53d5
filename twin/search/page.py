"""One self-contained HTML page of a search: tables, step time against memory, both orders."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from typing import Any

from twin.description.units import format_amount, format_memory
from twin.pages.shell import filled, printable
from twin.search.across import Across
from twin.search.entries import RankedCandidate
from twin.search.fleet import DAY_SECONDS, Fleet, Sized
from twin.search.search import Search, options_varied
from twin.search.words import BEST_WORDS, axes_title, facts_of, grid_words, joules_per_token, model_words, options_words
from twin.trace.palette import SEQUENTIAL

ROWS = 20
"""Candidates in the page's table."""


def pareto(points: Sequence[tuple[float, float]]) -> list[int]:
    """Indices of the points that no other beats in both coordinates, by the first coordinate.

    Smaller is better; of equal points only one is taken.

    >>> pareto([(1.0, 5.0), (2.0, 5.0), (2.0, 3.0), (4.0, 1.0), (4.0, 2.0)])
    [0, 2, 3]
    """
    front: list[int] = []
    lowest = float("inf")
    for index in sorted(range(len(points)), key=lambda i: points[i]):
        if points[index][1] < lowest:
            lowest = points[index][1]
            front.append(index)
    return front


def spans_much(values: Sequence[float]) -> bool:
    """Tell whether values want a logarithmic axis; on one of less than a factor of five hardly a tick would stand.

    >>> spans_much([0.1, 0.2]), spans_much([0.1, 0.6]), spans_much([])
    (False, True, False)
    """
    return bool(values) and max(values) > 5 * min(values) > 0


@dataclass(frozen=True)
class _Table:
    head: Sequence[str] = ()
    rows: Sequence[Sequence[str]] = ()


def page(fleet: Fleet) -> str:
    """Return the page; the plots are of the number of ranks that is chosen."""
    found = fleet.chosen.found
    assert found is not None
    job = found.job
    how = {"simulation": "every grid simulated", "energy": "by energy"}.get(found.by, "ranked by the published model")
    return _page(fleet, found, f"{job.model.name} on {job.ranks:,} ranks of {job.machine.name}: {how}", facts_of(fleet))


def page_across(found: Across) -> str:
    """Return the page of a search over strategies: the candidates of the fastest, and the best of each."""
    best = found.best
    job, names = best.job, list(found.searches)
    fleet = Fleet(job, None, None, (Sized(job.ranks, best),), found.wall_seconds)
    which = f"{names[0]}, the fastest of {', '.join(names)}" if len(names) > 1 else names[0]
    facts = [(f"best of {name}", f"{one.best.step_seconds:.3f} s") for name, one in found.searches.items()]
    facts += [(f"{name} cannot run", reason) for name, reason in found.reasons.items()]
    title = f"{job.model.name} on {job.ranks:,} ranks of {job.machine.name}: {which}"
    return _page(fleet, best, title, [*facts, *facts_of(fleet)])


def _page(fleet: Fleet, found: Search, title: str, facts: Sequence[tuple[str, str]]) -> str:
    return filled(
        "twin.search",
        "page.html",
        title=title,
        facts=facts,
        data=_data(found),
        plotly=True,
        by_ranks=_by_ranks(fleet),
        ordered=bool(found.top_of_model),
        model=model_words(found),
        first=BEST_WORDS[found.by].capitalize(),
        fastest=_fastest(found),
    )


def _data(found: Search) -> dict[str, Any]:
    shown = found.in_order_of_time
    points = [_point(entry, place, options_varied(found)) for place, entry in enumerate(shown, 1)]
    columns = {name: [point[name] for point in points] for name in points[0]}
    places = [(point["memory"], point["step"]) for point in points]
    chosen = {entry.model_rank for entry in found.top_of_model}
    top = [i for i, entry in enumerate(shown) if entry.model_rank in chosen]
    look = {"log": spans_much(columns["step"]), "scale": SEQUENTIAL}
    return {"points": columns, "front": pareto(places), "published": top, **look}


def _point(entry: RankedCandidate, place: int, varied: Sequence[str]) -> dict[str, Any]:
    figures, candidate = entry.figures, entry.candidate
    assert figures is not None
    assert candidate.memory is not None
    memory = candidate.memory.per_rank_bytes / 1e9
    exposed = 100.0 * figures.exposed_share
    axes = ", ".join(f"{a} {s:.3g} s" for a, s in figures.exposed_by_axis.items() if s > 0)
    tokens = format_amount(figures.tokens_per_second, 0)
    lines = [
        f"<b>{figures.step_seconds:.4g} s</b>, {_text(grid_words(candidate.grid))}",
        _text(", ".join(options_words(candidate, varied))),
        f"place {place} in simulated time"
        + (f", {entry.model_rank} by the published model" if entry.model_rank else ""),
        f"{memory:.3g} GB per rank, {candidate.memory.largest_category} most",
        f"{format_amount(figures.hardware_percent_of_peak)} % of peak, {tokens} tokens/s",
        f"compute {figures.compute_seconds:.3g} s, exposed communication {exposed:.1f} %"
        + (f" ({axes})" if axes else ""),
    ]
    if not figures.global_link_contention:
        lines.append("without contention on links between dragonfly groups")
    return {
        "memory": round(memory, 4),
        "step": figures.step_seconds,
        "exposed": round(exposed, 3),
        "rank": place,
        "model": entry.model_rank,
        "text": "<br>".join(lines),
    }


def _fastest(found: Search) -> _Table:
    varied, energy = options_varied(found), ("J/token",) if found.by == "energy" else ()
    head = (axes_title(found), "options", "step", "exposed", "of peak", "tokens/s", *energy, "memory")
    ordered = ("place by the model",) if found.top_of_model else ()
    rows = []
    for entry in found.entries[:ROWS]:
        figures, candidate = entry.figures, entry.candidate
        if figures is None or candidate.memory is None:
            continue
        rows.append(
            (
                " × ".join(map(str, candidate.grid.sizes)),
                ", ".join(options_words(candidate, varied)),
                f"{figures.step_seconds:.3f} s",
                f"{100 * figures.exposed_share:.1f} %",
                f"{format_amount(figures.hardware_percent_of_peak)} %",
                format_amount(figures.tokens_per_second, 0),
                *(joules_per_token(found, figures) for _ in energy),
                format_memory(candidate.memory.per_rank_bytes),
                *(f"{entry.model_rank:,}" for _ in ordered),
            )
        )
    return _Table((*head, *ordered), rows)


def _by_ranks(fleet: Fleet) -> _Table:
    if len(fleet.plans) == 1 and fleet.tokens is None:
        return _Table()
    head = ["ranks", axes_title(fleet.chosen.found), "step", "tokens/s"]
    head += ["days", "device hours", fleet.energy_title] if fleet.tokens else []
    rows = []
    for plan in fleet.plans:
        if plan.found is None:
            rows.append([f"{plan.ranks:,}", plan.reason, *[""] * (len(head) - 2)])
            continue
        best, bill = plan.found.entries[0], fleet.bill(plan)
        assert best.figures is not None
        row = [
            f"{plan.ranks:,}",
            " × ".join(map(str, best.candidate.grid.sizes)),
            f"{best.figures.step_seconds:.3f} s",
            format_amount(best.figures.tokens_per_second, 0),
        ]
        if bill is not None:
            row += [
                format_amount(bill.seconds / DAY_SECONDS),
                format_amount(bill.device_hours, 0),
                f"{format_amount(bill.billed_joules / 3.6e9)} MWh",
            ]
        rows.append(row)
    return _Table(head, rows)


def _text(word: str) -> str:
    """Escape a word of a label, in which plotly reads tags."""
    return escape(printable(word))
