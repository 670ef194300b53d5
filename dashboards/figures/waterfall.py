"""From the predicted step to the measured one, term by term: what it takes longer first, then what it saves."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import plotly.graph_objects as go

from dashboards.colours import FIRST, GREY, ORANGE, SECOND, SKY
from dashboards.parts import escape, finished, seconds, seconds_axis
from twin.compare.terms import Term

LONGER, SHORTER, UNEXPLAINED = "takes longer", "takes less", "longer, and no op accounts for it"
SAME = "as long"
COLOURS = {LONGER: ORANGE, SHORTER: SKY, UNEXPLAINED: GREY, SAME: GREY}
PATTERNS = {LONGER: "", SHORTER: "/", UNEXPLAINED: ".", SAME: ""}
"""So that they are told apart without colour too."""


def in_order(terms: Sequence[Term]) -> list[Term]:
    """Sort terms: those that take longer, the largest first; then savings, the largest first; then the rest."""
    longer = sorted((t for t in terms if t.difference_seconds > 0), key=lambda t: -t.difference_seconds)
    shorter = sorted((t for t in terms if t.difference_seconds < 0), key=lambda t: t.difference_seconds)
    return [*longer, *shorter, *(t for t in terms if t.difference_seconds == 0)]


def largest(terms: Sequence[Term], difference_seconds: float) -> Term | None:
    """Return the term that has most of a difference, in its direction; None if none has."""
    sign = 1.0 if difference_seconds >= 0 else -1.0
    found = max(terms, key=lambda t: sign * t.difference_seconds, default=None)
    return found if found is not None and sign * found.difference_seconds > 0 else None


def times_as_long(first_seconds: float, second_seconds: float) -> str:
    """Say how the second time compares with the first.

    >>> times_as_long(1.0, 1.64), times_as_long(2.0, 1.0), times_as_long(1.0, 1.0)
    ('1.64 × slower', '2.00 × faster', 'as fast')
    """
    if first_seconds <= 0 or second_seconds <= 0:
        return "not comparable"
    ratio = second_seconds / first_seconds
    if f"{ratio:.2f}" == "1.00":
        return "as fast"
    return f"{ratio:.2f} × slower" if ratio > 1 else f"{1 / ratio:.2f} × faster"


def times_the_rate(first: float, second: float) -> str:
    """Say how the second job's tokens per second compare with the first's: steps of other batches do not tell.

    >>> times_the_rate(7754.0, 7849.0), times_the_rate(1.0, 0.5)
    ('1.01 × faster', '2.00 × slower')
    """
    return times_as_long(second, first)


def same_tokens(*steps: tuple[float, float]) -> bool:
    """Tell whether steps train on as many tokens: of each its seconds and its tokens per second."""
    tokens = [step * rate for step, rate in steps]
    return max(tokens) - min(tokens) <= 1e-6 * max(tokens)


def waterfall(
    predicted_seconds: float,
    measured_seconds: float,
    terms: Sequence[Term],
    names: tuple[str, str] = ("predicted", "measured"),
) -> go.Figure:
    """Draw both steps as bars from zero, and each term from where the one before ended.

    A bar's customdata is the term's name.
    """
    ordered, level = in_order(terms), predicted_seconds
    bars: dict[str, list[tuple[Term, float]]] = {LONGER: [], SHORTER: [], UNEXPLAINED: [], SAME: []}
    for term in ordered:
        bars[_kind(term)].append((term, level))
        level += term.difference_seconds
    ends = ((names[0], "predicted", predicted_seconds, FIRST), (names[1], "measured", measured_seconds, SECOND))
    figure = go.Figure([_end(*end) for end in ends])
    for name, found in bars.items():
        if found:
            figure.add_trace(_terms(name, found))
    edges = [predicted_seconds, measured_seconds, *(at for found in bars.values() for _, at in found)]
    labels = [names[0], *(escape(term.label) for term in ordered), names[1]]
    figure.update_xaxes(**seconds_axis(), range=[0.0, 1.18 * (max(edges) or 1.0)])
    figure.update_yaxes(autorange="reversed", automargin=True, categoryorder="array", categoryarray=labels)
    legend = {"orientation": "h", "y": 1.02, "yanchor": "bottom", "x": 0}
    return finished(figure, barmode="overlay", legend=legend, showlegend=True)


def _kind(term: Term) -> str:
    if term.difference_seconds > 0:
        return UNEXPLAINED if term.unexplained else LONGER
    return SHORTER if term.difference_seconds < 0 else SAME


def _end(label: str, name: str, length: float, colour: str) -> go.Bar:
    return _bar(label, [label], [length], [0.0], [seconds(length)], [name], {"color": colour})


def _terms(name: str, found: Sequence[tuple[Term, float]]) -> go.Bar:
    lengths = [term.difference_seconds for term, _ in found]
    words = [("+" if length > 0 else "") + seconds(length) for length in lengths]
    marker = {"color": COLOURS[name], "pattern": {"shape": PATTERNS[name], "size": 5}}
    labels, keys = [escape(term.label) for term, _ in found], [term.name for term, _ in found]
    return _bar(name, labels, lengths, [at for _, at in found], words, keys, marker).update(showlegend=name != SAME)


def _bar(
    name: str,
    labels: list[str],
    lengths: list[float],
    base: list[float],
    words: list[str],
    keys: list[str],
    marker: Mapping[str, object],
) -> go.Bar:
    return go.Bar(
        name=name,
        y=labels,
        x=lengths,
        base=base,
        orientation="h",
        text=words,
        textposition="outside",
        cliponaxis=False,
        marker=marker,
        customdata=keys,
        hovertext=[f"{label}: {said}" for label, said in zip(labels, words, strict=True)],
        hoverinfo="text",
    )
