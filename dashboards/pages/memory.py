"""Memory: a rank's categories against the device, and what other options would need."""

from __future__ import annotations

from typing import Any

import plotly.graph_objects as go
from dash import html
from dash.development.base_component import Component

from dashboards.catalog import Entry
from dashboards.members import job_of
from dashboards.page import Page, PageContext, Query
from dashboards.parts import bytes_axis, card, escape, finished, graph, table, with_table
from twin.cost.memory import MemoryUse, largest_micro_sequences, memory_use, with_micro_sequences
from twin.description.job import Job
from twin.description.problems import fail
from twin.description.units import counted, format_memory
from twin.strategies import strategy_of

COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#8C8C8C", "#F0E442")
FAR = 8.0
"""A device so many times larger than what is used is not drawn, but told."""
PATTERNS = ("", "/", "\\", "x", "-", ".", "|", "+")
"""As many as a strategy has categories, and one more: two that look alike would be read as one."""


def shown(context: PageContext, query: Query) -> Component:
    """Show the memory of one run or two, as the twin counts it."""
    if "run" not in query:
        raise fail("run", "choose one run, or two, on the page Runs first")
    entries = [context.catalog.entry(query[key]) for key in ("run", "other") if key in query]
    jobs = [(entry, _job(entry)) for entry in entries]
    uses = [(entry.label, memory_use(job)) for entry, job in jobs]
    label, use = uses[0]
    summary = (
        f"{label}: {format_memory(use.per_rank_bytes)} of {format_memory(use.capacity_bytes)} per rank, most of it "
        f"{use.largest_category}; it {'fits' if use.fits else 'does not fit'}.{beyond(use)} "
        "Counted by the twin, not measured."
    )
    others = variants(jobs[0][1])
    return html.Div(
        [
            card(
                "Peak of a rank",
                summary,
                with_table(
                    graph("memory", stacked(uses), label=summary, height=200 + 60 * len(uses)),
                    table("memory-table", rows_of(uses), height=220),
                ),
            ),
            card(
                "With other options",
                "The same job with one thing changed, by the same count.",
                with_table(
                    graph(
                        "memory-options",
                        stacked(others),
                        label="Memory with other options",
                        height=160 + 38 * len(others),
                    ),
                    table("memory-options-table", rows_of(others)),
                ),
            ),
        ]
    )


def _job(entry: Entry) -> Job:
    job = job_of(entry)
    if job is None or job.grid == "auto" or job.batch.micro_sequences == "auto":
        raise fail(entry.label, "its job is not one that the twin knows; memory cannot be counted")
    return job


def variants(job: Job) -> list[tuple[str, MemoryUse]]:
    """Memory of the job as it is, and with one option changed."""
    micro = job.concrete_micro_sequences
    changed = {
        "as it is": job,
        f"recompute {'off' if job.recompute else 'on'}": job.model_copy(update={"recompute": not job.recompute}),
        **dict(strategy_of(job).memory_variants(job)),
        "plain attention": job.model_copy(update={"attention": "plain"}),
    }
    of_a_replica = job.batch.sequences // job.concrete_grid.replicas
    for other in (max(1, micro // 2), micro * 2):
        if other != micro and of_a_replica % other == 0:
            changed[f"{counted(other, 'sequence')} at a time"] = with_micro_sequences(job, other)
    largest = largest_micro_sequences(job)
    if largest is not None and largest != micro:
        changed[f"{counted(largest, 'sequence')} at a time, the most that fit"] = with_micro_sequences(job, largest)
    return [(name, memory_use(one)) for name, one in changed.items()]


def beyond(use: MemoryUse) -> str:
    """Say what the ranks of a node hold beyond their devices."""
    said = ""
    for tier, held in use.tiers.items():
        room = "" if held.capacity_bytes is None else f" of {format_memory(held.capacity_bytes)}"
        short = "" if held.fits else ", which is too much"
        of_what = f"most of it {max(held.by_category, key=lambda name: held.by_category[name])}{short}"
        where = "memory of each host" if tier == "host" else "drives of each node"
        said += f" Beyond the devices {format_memory(held.node_bytes)}{room} in the {where}, {of_what}."
    return said


def categories_of(uses: list[tuple[str, MemoryUse]]) -> list[str]:
    """Return every category that one of them has, in their order."""
    return list(dict.fromkeys(name for _, use in uses for name in use.by_category))


def rows_of(uses: list[tuple[str, MemoryUse]]) -> list[dict[str, Any]]:
    """Memory of several jobs, with the same columns."""
    found = [row(label, use, categories_of(uses)) for label, use in uses]
    columns = dict.fromkeys(key for one in found for key in one)
    return [{key: one.get(key) for key in columns} for one in found]


def row(label: str, use: MemoryUse, categories: list[str]) -> dict[str, Any]:
    """One job's memory; 0 of what it has not."""
    categories_bytes = {f"{name} (B)": use.by_category.get(name, 0) for name in categories}
    tiers = {f"{tier}, a node (B)": held.node_bytes for tier, held in use.tiers.items()}
    return {
        "job": label,
        **categories_bytes,
        "all (B)": use.per_rank_bytes,
        "device (B)": use.capacity_bytes,
        **tiers,
        "fits": "yes" if use.fits else "no",
    }


def stacked(uses: list[tuple[str, MemoryUse]]) -> go.Figure:
    """Stacked bars of categories, one per job, and a line where the device ends."""
    figure = go.Figure()
    for number, category in enumerate(categories_of(uses)):
        figure.add_trace(
            go.Bar(
                y=[escape(label) for label, _ in uses],
                x=[use.by_category.get(category, 0) for _, use in uses],
                orientation="h",
                name=category,
                marker={
                    "color": COLOURS[number % len(COLOURS)],
                    "pattern": {"shape": PATTERNS[(number + number // len(COLOURS)) % len(PATTERNS)]},
                },
                hovertemplate=f"{category}: %{{x:.3s}}B<extra></extra>",
            )
        )
    device, most = uses[0][1].capacity_bytes, max(use.per_rank_bytes for _, use in uses)
    title = "bytes"
    if device < FAR * most:
        figure.add_vline(x=device, line_dash="dash", line_color="#8c8c8c", annotation_text="device")
    else:  # bars would be slivers beside it
        title = f"bytes (the device has {format_memory(device)}, far to the right)"
    figure.update_xaxes(**bytes_axis(title))
    figure.update_yaxes(autorange="reversed", automargin=True)
    return finished(figure, barmode="stack")


PAGE = Page("/memory", "Memory", shown, needs="run,other", kinds=("predicted", "measured"), runs=1)
