"""Sentences about the candidates of a search, and about those that filters leave."""

from __future__ import annotations

from collections.abc import Sequence

from dashboards.candidate_rows import model_top
from dashboards.candidates import SavedCandidate
from dashboards.figures.pareto import MAX_POINTS, TOP, drawable, modelled
from dashboards.parts import seconds
from twin.description.units import format_memory, format_si
from twin.search.words import HINDRANCES


def summary_of(found: Sequence[SavedCandidate], kept: Sequence[SavedCandidate]) -> str:
    """Say in a sentence what there is and which is fastest."""
    if not kept:
        return f"The filters leave none of {len(found):,} candidates."
    drawn = drawable(kept)
    axes = f" ({found[0].axes})" if found and not found[0].several else ""
    seen = f"{min(len(drawn), MAX_POINTS):,}"
    if len(drawn) > MAX_POINTS:
        seen += f" of {len(drawn):,}, the fastest and the front,"
    words = f"{len(found):,} candidates, {sum(c.feasible for c in found):,} can run; {seen} drawn"
    if not drawn:
        return f"{words}."
    best = min(drawn, key=lambda c: c.step_seconds or 0.0)
    said = (
        f"{words}. Fastest: {best.name}{axes}, {seconds(best.step_seconds or 0.0)}, "
        f"{format_memory(best.memory_bytes or 0.0)}."
    )
    return said + _thriftiest(kept, axes)


def _thriftiest(kept: Sequence[SavedCandidate], axes: str) -> str:
    """Say which draws the fewest joules, where a search was for that."""
    able = [c for c in kept if c.by_energy and c.feasible and c.billed_joules is not None]
    if not able:
        return ""
    best = min(able, key=lambda c: c.billed_joules or 0.0)
    words = f" Fewest joules: {best.name}{axes}, {format_si(best.billed_joules or 0.0, 'J')} a step."
    if best.several:  # places among all strategies are those in time
        return words
    ranks = ", of each number of ranks by itself" if len({c.ranks for c in able}) > 1 else ""
    return f"{words} Places are by joules{ranks}."


def model_summary(kept: Sequence[SavedCandidate], found: Sequence[SavedCandidate]) -> str:
    """Say where the published communication model's best lie in simulated time, for each number of ranks by itself."""
    top = model_top(kept)
    if not kept:
        return "The filters leave no candidate."
    if not top:
        return "No candidate of the published communication model's first ten is shown."
    if not any(c.rank for c in top):
        return f"None of the published communication model's first {TOP}{modelled(top)} can run, or can be the fastest."
    several = len({c.ranks for c in found}) > 1
    said = [_places(kept, found, ranks, several) for ranks in dict.fromkeys(c.ranks for c in top)]
    of = modelled(top)
    first = f"first {TOP}{of}{' of each number of ranks' if several else ''}"
    words = f"The published communication model's {first} lie at "
    rest = sum(c.rank is None for c in top)
    without = f"; without a place, as they cannot run or cannot be the fastest: {rest}" if rest else ""
    among = f", among those{of}" if of else ""
    return f"{words}{'; '.join(each for each in said if each)} in simulated time{among}{without}."


def _places(kept: Sequence[SavedCandidate], found: Sequence[SavedCandidate], ranks: int, several: bool) -> str:
    """Say the places of the model's first of one number of ranks, and how many a filter hides."""
    shown, there = (model_top([c for c in of if c.ranks == ranks]) for of in (kept, found))
    places = ", ".join(f"{c.rank:,}" for c in shown if c.rank)
    hidden = f" ({len(shown)} of {len(there)} are shown)" if len(shown) < len(there) else ""
    return f"places {places}{f' of {ranks:,} ranks' if several else ''}{hidden}" if places else ""


def refused_words(kept: Sequence[SavedCandidate]) -> str:
    """Say how many cannot run, by what hinders them."""
    if not kept:
        return "The filters leave no candidate."
    rows = [c for c in kept if not c.feasible]
    counts = [
        f"{sum(c.hindrance == kind for c in rows):,} for {words}"
        for kind, words in HINDRANCES.items()
        if any(c.hindrance == kind for c in rows)
    ]
    return f"{len(rows):,} candidates cannot run: {', '.join(counts)}." if rows else "All of them can run."
