"""A search on a terminal."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from twin.description.units import format_amount, format_memory
from twin.show.console import make_console, step_time

if TYPE_CHECKING:
    from twin.search.fleet import Fleet
    from twin.search.search import By, Search


_FIRST: dict[By, str] = {
    "simulation": "Fastest",
    "energy": "Fewest joules",
    "axonn": "First by the published communication model",
}


def search(fleet: Fleet, fixed: Sequence[str], top: int, out: Path | None) -> None:
    """Print a search: by number of ranks if there are several, the fastest, what cannot run."""
    from twin.search.words import hindered, model_words

    console, found = make_console(), fleet.chosen.found
    assert found is not None
    job = found.job
    console.print(
        f"[bold]{escape(job.model.name)}[/] on [bold]{escape(job.machine.name)}[/], "
        f"{job.batch.sequences:,} sequences per step"
    )
    if fixed:
        console.print(f"The job fixes {escape(' and '.join(fixed))}; the search leaves that open.")
    if len(fleet.plans) > 1 or fleet.tokens is not None:
        _by_ranks(console, fleet)
        _bill(console, fleet)
    console.print(
        f"\n[bold]{job.ranks:,} ranks[/]: {len(found.entries):,} candidates, {found.feasible:,} feasible, "
        f"{found.simulated:,} simulated, {found.wall_seconds:.1f} s"
    )
    if words := hindered(found):
        console.print(f"The others cannot run: {', '.join(words)} (each with its reason: --json, --out).")
    _candidates(console, found, top)
    if said := model_words(found):
        console.print(f"\n{said}")
    if any(e.figures and not e.figures.global_link_contention for e in found.entries[:top]):
        console.print(
            "* without contention on the links between dragonfly groups: with it the ranks fall into too "
            "many classes, and the step may take longer."
        )
    if job.machine.caveats:
        console.print(f"[yellow]{escape(job.machine.name)}:[/] {escape(job.machine.caveats)}")
    if out is not None:
        console.print(
            f"Search written to {escape(str(out))}; look at {escape(str(out / 'search.html'))}, "
            f"run {escape(str(out / 'best.yaml'))}"
        )


def search_object(fleet: Fleet, fixed: Sequence[str]) -> dict[str, object]:
    """Return what `--json` prints."""
    from twin.search.fleet import fleet_json

    return fleet_json(fleet) | {"left_open": list(fixed)}


def _candidates(console: Console, found: Search, top: int) -> None:
    from twin.search.search import options_varied
    from twin.search.words import axes_title, joules_per_token, options_words

    varied, ordered, energy = options_varied(found), bool(found.top_of_model), found.by == "energy"
    console.print(f"\n{_FIRST[found.by]}:")
    table = Table(
        "",
        axes_title(found),
        "options",
        "step",
        "exposed",
        "of peak",
        "tokens/s",
        *(["J/token"] if energy else []),
        "memory",
        *(["model's place"] if ordered else []),
        box=None,
        pad_edge=False,
    )
    for column in (table.columns[0], *table.columns[3:]):
        column.justify = "right"
    for number, entry in enumerate(found.entries[:top], 1):
        figures, candidate = entry.figures, entry.candidate
        if not candidate.feasible or candidate.memory is None:
            break
        cells = [""] * (5 if energy else 4)
        if figures is not None:
            star = "" if figures.global_link_contention else "*"
            cells = [
                f"{step_time(figures.step_seconds)}{star}",
                f"{100 * figures.exposed_share:.1f} %",
                f"{format_amount(figures.hardware_percent_of_peak)} %",
                format_amount(figures.tokens_per_second, 0),
                *([joules_per_token(found, figures)] if energy else []),
            ]
        table.add_row(
            str(number),
            " × ".join(map(str, candidate.grid.sizes)),
            ", ".join(options_words(candidate, varied)),
            *cells,
            format_memory(candidate.memory.per_rank_bytes),
            *([f"{entry.model_rank:,}"] if ordered else []),
        )
    console.print(table)


def _bill(console: Console, fleet: Fleet) -> None:
    """Print what the tokens cost with the best plan: energy, carbon and money as far as their inputs are given."""
    from twin.engine.bill import KWH_JOULES, bill, missing
    from twin.search.words import tokens_words

    chosen, found = fleet.chosen, fleet.chosen.found
    price = fleet.bill(chosen)
    if price is None or found is None or fleet.tokens is None or (found.job.energy is None and found.by != "energy"):
        return
    trained = price.steps * found.job.tokens_per_step
    whole = bill(found.job, price.energy_joules, price.seconds, trained)
    parts = [
        f"{format_amount(whole['joules'] / KWH_JOULES / 1e3)} MWh ({whole['boundary']})",
        f"{1e3 * whole['joules_per_token']:,.3g} mJ a token",
    ]
    if whole["carbon_kg"] is not None:
        parts.append(f"{format_amount(whole['carbon_kg'] / 1e3, 2)} t CO2e")
    if whole["cost"] is not None:
        parts.append(f"{format_amount(whole['cost'], 0)} {escape(whole['currency'])}")
    console.print(f"\n{tokens_words(fleet.tokens)} on {chosen.ranks:,} ranks: {', '.join(parts)}")
    if unknown := missing(found.job):
        console.print(f"[dim]not known: {', '.join(unknown)}[/]", soft_wrap=True)


def _by_ranks(console: Console, fleet: Fleet) -> None:
    from twin.search.fleet import DAY_SECONDS
    from twin.search.words import axes_title, tokens_words

    if fleet.tokens is not None:
        limit = ""
        if fleet.within_seconds is not None:
            limit = f" within {fleet.within_seconds / DAY_SECONDS:g} days"
        console.print(f"\n{tokens_words(fleet.tokens)}{limit}; the global batch stays as it is:")
    else:
        console.print("\nThe best of each number of ranks; the global batch stays as it is:")
    heads = ["ranks", axes_title(fleet.chosen.found), "micro-batch", "step", "tokens/s"]
    heads += ["days", "device hours", fleet.energy_title, ""] if fleet.tokens is not None else []
    table = Table(*heads, box=None, pad_edge=False)
    for column in (table.columns[0], *table.columns[2:]):
        column.justify = "right"
    reasons = []
    for plan in fleet.plans:
        if plan.found is None:
            table.add_row(f"{plan.ranks:,}", "cannot train")
            reasons.append(f"{plan.ranks:,} ranks: {plan.reason}")
            continue
        best, bill = plan.found.entries[0], fleet.bill(plan)
        assert best.figures is not None
        row = [
            f"{plan.ranks:,}",
            " × ".join(map(str, best.candidate.grid.sizes)),
            str(best.candidate.micro_sequences),
            step_time(best.figures.step_seconds),
            format_amount(best.figures.tokens_per_second, 0),
        ]
        if bill is not None:
            verdict = {None: "", True: "[green]in time[/]", False: "[red]too late[/]"}[fleet.in_time(plan)]
            row += [
                format_amount(bill.seconds / DAY_SECONDS),
                format_amount(bill.device_hours, 0),
                f"{format_amount(bill.billed_joules / 3.6e9)} MWh",
                verdict,
            ]
        table.add_row(*row)
    console.print(table)
    for reason in reasons:
        console.print(escape(reason), soft_wrap=True)
    if fleet.within_seconds is not None:
        fewest = fleet.fewest
        console.print(
            "[red]None of these is enough.[/]"
            if fewest is None
            else f"The thriftiest of these that keep the deadline: [bold]{fleet.chosen.ranks:,}[/]"
            if fleet.thrifty
            else f"The fewest of these that keep the deadline: [bold]{fewest.ranks:,}[/]"
        )
