"""One self-contained HTML page of a comparison: waterfall, errors, worst ops.

No script runs in it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from twin.compare.compare import Comparison
from twin.compare.energy import ComparedEnergy
from twin.compare.errors import ErrorGroup
from twin.compare.pairing import SIDES
from twin.compare.stage_rows import StageRow, op_of, pipeline_facts, stage_rows, subject_of
from twin.compare.terms import Term
from twin.description.files import write_whole
from twin.description.problems import fail
from twin.description.units import format_seconds
from twin.pages.shell import filled

MARK = '<meta name="generator" content="fourfold compare">'
MARK_WITHIN = 400
"""Characters of a page's head in which its mark stands."""
LONGER, SHORTER, UNEXPLAINED, TOTAL = "#D55E00", "#0072B2", "#9aa4ad", "#444c56"
LABELS, VALUES, WIDTH, ROW = 270, 110, 1040, 26
NAMES_SHOWN = 30
UNPAIRED_SHOWN = 50
GROUP_TITLES = {f"{by}": f"Errors by {by}" for by in ("kind", "axis", "phase", "name", "stage")}


@dataclass(frozen=True)
class _Bar:
    """A bar of the waterfall, with its label on the left and its value on the right; in pixels."""

    label: str
    value: str
    colour: str
    top: int
    left: float
    width: float
    value_begins: float


@dataclass(frozen=True)
class _Table:
    title: str
    head: Sequence[str]
    rows: Sequence[Sequence[str]]


def page(found: Comparison) -> str:
    """Return the page."""
    bars = _waterfall(found)
    drawing = {"width": WIDTH, "height": len(bars) * ROW + 4, "labels_end": LABELS - 10, "thickness": ROW - 8}
    return filled(
        "twin.compare",
        "page.html",
        title=f"{found.job}: {found.kinds[0]} against {found.kinds[1]}",
        facts=facts_of(found),
        warnings=found.warnings,
        colours={"longer": LONGER, "shorter": SHORTER, "unexplained": UNEXPLAINED},
        subject=subject_of(found),
        drawing=drawing | {"bars": bars},
        tables=_tables(found),
    )


def write_page(path: Path, found: Comparison, *, overwrite: bool) -> None:
    """Write the page, whole or not at all; only a page of this kind is replaced."""
    check_page(path, overwrite=overwrite)
    write_whole(path, page(found))


def check_page(path: Path, *, overwrite: bool) -> None:
    """Refuse a place where a page may not be written."""
    if not path.exists():
        return
    if not overwrite:
        raise fail(str(path), "exists already; choose another file or pass --force")
    if not path.is_file() or MARK.encode() not in path.read_bytes()[:MARK_WITHIN]:
        raise fail(str(path), "is not a page that `fourfold compare` wrote; it will not be replaced")


def facts_of(found: Comparison) -> list[tuple[str, str]]:
    """What a reader should know before the figures: (what, value)."""
    ratio = found.predicted_seconds / found.measured_seconds - 1.0 if found.measured_seconds else 0.0
    facts = [
        ("predicted step", format_seconds(found.predicted_seconds)),
        ("measured step", format_seconds(found.measured_seconds)),
        ("error", percent(ratio, signed=True)),
        ("median error of GEMMs", error_of(found.error("compute", "kind", "gemm"))),
        ("median error of collectives", error_of(found.error("collective", "all", "all"))),
        ("grid", found.grid),
        ("ranks compared", f"{found.ranks:,} of {found.ranks_of_job:,}"),
        ("machine", " / ".join(dict.fromkeys(found.machines))),
        ("measured step taken apart", taken_apart(found)),
        *pipeline_facts(found),
        ("clocks", f"{found.clock.method}, ± {format_seconds(found.clock.uncertainty_ns / 1e9)}"),
    ]
    if found.energy is not None:
        both = f"{found.energy.predicted_joules:,.4g} J predicted, {found.energy.measured_joules:,.4g} J measured"
        facts.append((f"energy of a step, devices ({found.energy.counter})", f"{both} ({found.energy.error:+.1%})"))
        facts += power_facts(found.energy)
    if found.between_steps_seconds is not None:
        facts.append(("between two measured steps, in neither", format_seconds(found.between_steps_seconds)))
    return facts


def power_facts(energy: ComparedEnergy) -> list[tuple[str, str]]:
    """Mean power of all devices together, and how long the measured joules took, which are of pauses too."""
    if energy.error_of_watts is None or energy.measured_seconds is None:
        return []
    both = f"{energy.predicted_watts:,.4g} W predicted, {energy.measured_watts:,.4g} W measured"
    covered = f"{format_seconds(energy.measured_seconds)} a step, pauses between traced steps included"
    return [("mean power, devices", f"{both} ({energy.error_of_watts:+.1%})"), ("measured energy covers", covered)]


def taken_apart(found: Comparison) -> str:
    """Say which measured step is taken apart, and where it lies among those that were traced.

    The step of median length is a step that was, the shorter of the two in the middle; the median of an even number
    lies between them.
    """
    if len(found.steps) == 1:
        return f"step {found.step}, the only one traced"
    return (
        f"step {found.step}, one of {len(found.steps)} traced, whose median is {format_seconds(found.median_seconds)}"
    )


def error_of(group: ErrorGroup | None) -> str:
    """Median error of a group in words."""
    if group is None:
        return "there are none"
    return percent(group.median_error)


def percent(value: float | None, *, signed: bool = False) -> str:
    """A share for people.

    >>> percent(0.0123), percent(0.5, signed=True), percent(-0.0001, signed=True), percent(None)
    ('1.2 %', '+50.0 %', '+0.0 %', '')
    """
    if value is None:
        return ""
    return f"{100 * value:{'+' if signed else ''}z,.1f} %"


def _waterfall(found: Comparison) -> list[_Bar]:
    """Draw the steps as bars from zero, and each term from where the one before ended."""
    level, edges = found.predicted_seconds, [0.0, found.predicted_seconds, found.measured_seconds]
    for term in found.terms:
        level += term.difference_seconds
        edges.append(level)
    low, high = min(edges), max(edges)
    scale = (WIDTH - LABELS - VALUES) / ((high - low) or 1.0)

    def bar(number: int, label: str, begin: float, end: float, colour: str, value: str) -> _Bar:
        left, right = (LABELS + (x - low) * scale for x in sorted((begin, end)))
        return _Bar(label, value, colour, number * ROW, left, max(right - left, 1), max(right, LABELS) + 6)

    bars = [bar(0, "predicted", 0.0, found.predicted_seconds, TOTAL, format_seconds(found.predicted_seconds))]
    level = found.predicted_seconds
    for number, term in enumerate(found.terms, 1):
        step = term.difference_seconds
        bars.append(bar(number, term.label, level, level + step, _colour(term), _signed(term)))
        level += step
    bars.append(bar(len(bars), "measured", 0.0, found.measured_seconds, TOTAL, format_seconds(found.measured_seconds)))
    return bars


def _colour(term: Term) -> str:
    if term.unexplained:
        return UNEXPLAINED
    return LONGER if term.difference_seconds > 0 else SHORTER


def _signed(term: Term) -> str:
    sign = "+" if term.difference_seconds > 0 else ""
    return sign + format_seconds(term.difference_seconds) + (" (below clocks)" if term.below_clocks else "")


def _tables(found: Comparison) -> list[_Table]:
    tables = [
        _Table(
            title,
            (first, "predicted", "measured", "difference"),
            [
                (t.label, format_seconds(t.predicted_seconds), format_seconds(t.measured_seconds), _signed(t))
                for t in terms
            ],
        )
        for title, first, terms in (
            ("What the steps are made of", "term", found.terms),
            ("The same by phase, gaps included", "phase", found.phases),
        )
    ]
    if rows := stage_rows(found):
        titles = ("stage: predicted → measured", *(part[0] for part in rows[0].parts))
        tables.append(_Table("The same by stage, mean over the ranks of each", titles, _stage_cells(rows)))
    head = ("", "ops", "predicted", "measured", "median error", "90 % below", "bias", "predicted skew", "measured skew")
    for by, title in GROUP_TITLES.items():
        chosen = sorted(
            (g for g in found.errors if g.by == by), key=lambda g: -abs(g.predicted_seconds - g.measured_seconds)
        )
        shown = chosen[:NAMES_SHOWN]
        more = f" (the {NAMES_SHOWN} furthest off of {len(chosen)})" if len(chosen) > NAMES_SHOWN else ""
        tables.append(_Table(title + more, head, [_group_row(g) for g in shown]))
    tables.append(
        _Table(
            "Ops that are furthest off",
            ("op", "predicted", "measured", "difference"),
            [
                (
                    op_of(w),
                    format_seconds(w.predicted_seconds),
                    format_seconds(w.measured_seconds),
                    format_seconds(w.measured_seconds - w.predicted_seconds),
                )
                for w in found.worst
            ],
        )
    )
    for side, names in zip(SIDES, (found.unpaired.predicted, found.unpaired.measured), strict=True):
        if names:
            unpaired = [(name,) for name in names[:UNPAIRED_SHOWN]]
            more = f", the first {UNPAIRED_SHOWN}" if len(names) > UNPAIRED_SHOWN else ""
            tables.append(_Table(f"{len(names)} ops in {side} only{more}", ("op",), unpaired))
    return tables


def _stage_cells(rows: Sequence[StageRow]) -> list[tuple[str, ...]]:
    cells = []
    for row in rows:
        sums = [f"{format_seconds(a)} → {format_seconds(b)}" for _, a, b in row.parts]
        cells.append((row.name + (", critical" if row.critical else ""), *sums))
    return cells


def _group_row(group: ErrorGroup) -> tuple[str, ...]:
    skews = (group.predicted_skew_seconds, group.measured_skew_seconds)
    return (
        f"{group.name} ({group.part})",
        f"{group.ops:,}",
        format_seconds(group.predicted_seconds),
        format_seconds(group.measured_seconds),
        percent(group.median_error),
        percent(group.p90_error),
        percent(group.bias, signed=True),
        *((format_seconds(s) if group.part == "collective" else "") for s in skews),
    )
