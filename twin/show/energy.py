"""What a step draws, for the terminal: power, energy of a token, carbon and money, as far as they are known."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

from twin.description.units import format_si
from twin.engine.bill import missing

if TYPE_CHECKING:
    from twin.description.job import Job
    from twin.engine.report import Report


def drawn(console: Console, job: Job, figures: Report) -> None:
    """Print what a step draws, and what is known of its facility; what is not known is said to be."""
    found = figures.energy
    if found is None:
        console.print(f"[dim]{escape(job.machine.device.name)} does not say what it draws by kind of work[/]")
        return
    watts = {key: format_si(found[key], "W", digits=3) for key in ("mean_watts", "peak_watts") if key in found}
    peak = f", {watts['peak_watts']} at most" if "peak_watts" in watts else ""
    console.print(f"devices draw {watts['mean_watts']} in the mean{peak}", end="")
    console.print(f"; clock {found['clock']:.0%} of the full one" if found["clock"] < 1 else "")
    unit = "J a token" if found["joules_per_token"] >= 1 else "mJ a token"
    each = found["joules_per_token"] * (1 if found["joules_per_token"] >= 1 else 1e3)
    parts = [f"{each:.3g} {unit} ({found['boundary']})"]
    if found["carbon_kg"] is not None:
        parts.append(f"{found['carbon_kg']:.3g} kg CO2e a step")
    if found["cost"] is not None:
        parts.append(f"{found['cost']:.3g} {escape(found['currency'])} a step")
    console.print(", ".join(parts))
    if unknown := missing(job):
        console.print(f"[dim]not known: {', '.join(unknown)}[/]")
