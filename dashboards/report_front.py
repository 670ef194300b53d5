"""The front of a report: job, conclusion in three sentences, machine, date, cost, energy, what it rests on."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from html import escape
from typing import Any

from dashboards.anatomy import anatomies_of
from dashboards.catalog import Entry
from dashboards.events import step_seconds
from dashboards.figures.waterfall import largest, times_as_long
from dashboards.jobs import grid_words, job_in, machine_of, model_of
from dashboards.members import job_of
from dashboards.page import PageContext, Query
from dashboards.pages.compare import verdict
from dashboards.pages.verdict import compared, summary_of
from dashboards.parts import seconds
from dashboards.run_rows import tokens_per_second
from twin.description.units import format_memory

MAX_NAME, MAX_PRICE = 120, 1e9
HOUR, BILLION = 3600.0, 1e9


@dataclass(frozen=True)
class Front:
    """What stands before the figures."""

    name: str
    conclusion: tuple[str, ...]
    facts: tuple[tuple[str, str], ...]
    rests_on: tuple[str, ...]


def front_of(context: PageContext, query: Query, name: str, price: Any) -> Front:
    """Say of one run or two what a reader must know first. Raises DescriptionError."""
    entries = [context.catalog.entry(query[key]) for key in ("run", "other") if query.get(key)]
    named = name.strip()[:MAX_NAME] or str(job_in(entries[0]).get("name") or entries[0].label)[:MAX_NAME]
    cost = float(price) if isinstance(price, int | float) and 0 <= price < MAX_PRICE else None
    facts = [fact for entry in entries for fact in _facts(context, entry, cost)]
    return Front(named, _conclusion(context, query, entries), tuple(facts), tuple(_rests_on(entries)))


def _conclusion(context: PageContext, query: Query, entries: list[Entry]) -> tuple[str, ...]:
    """Three sentences: how long the step is, what most of it or of the difference is, and how fast that makes it."""
    first = _speed(context, entries[0])
    if len(entries) == 1:
        found_of = anatomies_of(context.catalog, entries[0])
        middle = found_of.middle
        parts = sorted(middle.parts.items(), key=lambda part: -part[1])
        most = ", ".join(f"{n} {seconds(v)} ({100 * v / middle.step_seconds:.0f} %)" for n, v in parts[:3] if v > 0)
        return (first, f"Of a step, mean over {found_of.parts_over}: {most}.", _memory(entries[0]))
    if {entry.kind for entry in entries} == {"predicted", "measured"}:
        found = compared(context, query)
        difference = found.measured_seconds - found.predicted_seconds
        most_term = largest(found.terms, difference)
        ratio = times_as_long(found.predicted_seconds, found.measured_seconds)
        why = f"The largest part of the difference is {most_term.label}." if most_term else "No term stands out."
        return (first, f"Measured, it is {ratio} than predicted." if ratio != "as fast" else summary_of(found), why)
    halves = [anatomies_of(context.catalog, entry).middle for entry in entries]
    return (first, _speed(context, entries[1]), verdict(entries, halves[0], halves[1]).rsplit(". ", 1)[-1])


def _speed(context: PageContext, entry: Entry) -> str:
    job, step = job_in(entry), step_seconds(context.catalog, entry)
    rate = tokens_per_second(job, step)
    devices = f"{job['ranks']:,}" if isinstance(job.get("ranks"), int) else "its"
    long = "not known" if step is None else seconds(step)
    more = f", {rate:,.0f} tokens/s" if rate else ""
    return f"{model_of(job)} on {devices} devices of {machine_of(job)}, {entry.kind}: a step takes {long}{more}."


def _memory(entry: Entry) -> str:
    figures = entry.head.get("figures")
    memory = figures.get("memory") if isinstance(figures, dict) else None
    size = memory.get("per_rank_bytes") if isinstance(memory, dict) else None
    most = memory.get("capacity_bytes") if isinstance(memory, dict) else None
    if isinstance(size, int | float) and isinstance(most, int | float):
        return f"A device needs {format_memory(size)} of its {format_memory(most)}."
    return "What memory it needs was not written down."


def _facts(context: PageContext, entry: Entry, price: float | None) -> list[tuple[str, str]]:
    job, step = job_in(entry), step_seconds(context.catalog, entry)
    figures = entry.head.get("figures")
    energy = figures.get("energy_joules") if isinstance(figures, dict) else None
    rate, ranks = tokens_per_second(job, step), job.get("ranks")
    written = datetime.fromtimestamp(entry.changed).astimezone().strftime("%Y-%m-%d %H:%M %Z")
    facts = [
        (f"{entry.kind} run", entry.label),
        ("model", model_of(job)),
        ("machine", machine_of(job)),
        ("grid", grid_words(job)),
        ("written", written),
    ]
    if rate and isinstance(ranks, int):
        hours = BILLION / rate * ranks / HOUR
        facts.append(("device hours for a billion tokens", _number(hours)))
        if price is not None:
            facts.append(("cost of a billion tokens, at the price given", _number(hours * price)))
    if isinstance(energy, int | float) and rate and step:
        per_billion = energy / (rate * step) * BILLION
        facts.append(("energy of devices for a billion tokens", f"{_number(per_billion / 3.6e6)} kWh"))
    return facts


def _number(value: float) -> str:
    """Write a number with three digits, of large ones all before the point, with separators.

    >>> _number(13620.4), _number(509.72), _number(0.0190123)
    ('13,620', '510', '0.019')
    """
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _rests_on(entries: list[Entry]) -> list[str]:
    """Say where the numbers come from: versions, clocks, and kinds of the machine's numbers."""
    found = []
    for entry in entries:
        clock = entry.head.get("clock")
        method = clock.get("method") if isinstance(clock, dict) else None
        said = f"{entry.label}: {entry.kind} by Fourfold {str(entry.head.get('code_version', '?'))[:40]}"
        found.append(f"{said}; clock: {str(method)[:80]}." if method else f"{said}.")
        job = job_of(entry)
        if job is not None:
            caveat = job.machine.caveat
            found.append(
                f"Numbers of {job.machine.name}: {caveat or 'each with its source, see the machine file.'}"[:400]
            )
    whole = "Steps alone: without checkpoints, failures and restarts."
    return [*dict.fromkeys(found), whole]


def written(front: Front) -> str:
    """Write the front as HTML, everything escaped."""
    rows = "".join(f"<tr><th>{escape(what)}</th><td>{escape(value)}</td></tr>" for what, value in front.facts)
    rests = "".join(f"<li>{escape(one)}</li>" for one in front.rests_on)
    said = escape(" ".join(front.conclusion))
    return f'<p class="conclusion">{said}</p><table>{rows}</table><h3>What this rests on</h3><ul>{rests}</ul>'
