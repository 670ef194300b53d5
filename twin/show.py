"""How answers look on a terminal: rich tables, or one JSON object for programs."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from twin.description.parameter import Counted, Parameter
from twin.description.spec import Spec
from twin.description.units import format_si, split_name

if TYPE_CHECKING:
    from twin.description.machine import Machine
    from twin.description.model import Model
    from twin.engine.report import Report
    from twin.engine.simulate import Simulation
    from twin.study.choose import Choice
    from twin.study.measurements import Group, Validation
    from twin.study.validate import PublishedValidation

BAR_WIDTH = 30
COLLECTIVES_TITLE = (
    "Collectives, package data (Frontier all-gather from 256 MiB: the source reports spikes below)"
)
WORST_SHOWN = 5
DERIVED = {
    "group", "predicted", "measured", "error", "source", "microseconds", "iteration_milliseconds",
    "predicted_microseconds", "measured_microseconds", "predicted_milliseconds", "measured_milliseconds",
}  # fmt: skip
"""Columns of a compared row that the shown row does not repeat."""


def _console() -> Console:
    width = None if sys.stdout.isatty() else 120
    return Console(width=width, highlight=False)


def print_json(value: Any) -> None:
    """Print one JSON object."""
    print(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False))


@contextmanager
def progress(title: str) -> Iterator[Callable[[int, int], None]]:
    """Show a bar on standard error, if it is a terminal, for work that reports (done, all)."""
    from rich.progress import Progress

    console = Console(stderr=True)
    with Progress(console=console, transient=True, disable=not console.is_terminal) as bars:
        task = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(task, completed=done, total=total)


def _percent(part: float, whole: float) -> str:
    return f"{100 * part / whole:5.1f} %" if whole else ""


def _bar(part: float, whole: float, colour: str) -> str:
    return f"[{colour}]{'█' * round(BAR_WIDTH * part / whole)}[/]" if whole > 0 else ""


def step(
    simulation: Simulation, figures: Report, answer: Mapping[str, Any], out: Path | None
) -> None:
    """Print a simulated step."""
    console, job = _console(), simulation.job
    total = figures.step_seconds
    title = "" if job.name == job.model.name else f"{escape(job.name)}: "
    console.print(
        f"{title}[bold]{escape(job.model.name)}[/] on [bold]{job.ranks:,}[/] ranks "
        f"of [bold]{escape(job.machine.name)}[/]"
    )
    console.print(
        f"grid {job.concrete_grid}, {job.concrete_micro_sequences} sequences at a time, "
        f"{job.micro_steps} micro-step{'s' if job.micro_steps > 1 else ''}"
    )
    if not figures.memory.fits:
        console.print(
            "\n[bold red]This job cannot run: it does not fit into memory (see below).[/]"
        )
    energy = figures.energy_joules
    console.print(
        f"\n[bold]{total:.3f} s[/] per step   {figures.tokens_per_second:,.0f} tokens/s   "
        + (f"{energy / 3.6e6:,.1f} kWh" if energy >= 3.6e6 else format_si(energy, "J", digits=3))
        + " (devices alone)"
    )
    console.print(
        f"[bold]{figures.hardware_percent_of_peak:.1f} %[/] of the {job.precision} peak with recomputation counted "
        f"({format_si(figures.hardware_flops_per_second, 'FLOP/s')}), "
        f"[bold]{figures.model_percent_of_peak:.1f} %[/] without "
        f"({format_si(figures.model_flops_per_second, 'FLOP/s')})\n"
    )
    if simulation.partition.rank_classes > 1:
        console.print("Where the step of a rank goes, mean over all ranks:")
    table = Table(box=None, show_header=False, pad_edge=False)
    for _ in range(4):
        table.add_column()
    rows = [("compute", figures.compute_seconds, "blue")]
    if figures.slowest_device_wait_seconds > 0:
        rows.append(("wait for the slowest device", figures.slowest_device_wait_seconds, "cyan"))
    for axis, seconds in figures.exposed_by_axis.items():
        if simulation.job.concrete_grid.size(axis) > 1:  # type: ignore[arg-type]
            rows.append((f"exposed communication, {axis}", seconds, "yellow"))
    rows.append(("idle (host, skew)", figures.idle_seconds, "red"))
    for name, seconds, colour in rows:
        table.add_row(
            f"  {name}", f"{seconds:9.3f} s", _percent(seconds, total), _bar(seconds, total, colour)
        )
    console.print(table)
    _memory(console, figures)
    if "step_seconds_interval" in answer:
        low, high = answer["step_seconds_interval"]
        console.print(
            f"\nBetween {low:.3f} s and {high:.3f} s if the uncertain terms are all good or all bad."
        )
    console.print(
        f"\n{len(simulation.program):,} ops per rank, {simulation.partition.rank_classes} "
        f"{'class' if simulation.partition.rank_classes == 1 else 'classes'} of ranks simulated, "
        f"{answer['wall_seconds']:.2f} s"
    )
    if job.machine.caveat:
        console.print(f"[yellow]{escape(job.machine.name)}:[/] {escape(job.machine.caveat)}")
    if out is not None:
        console.print(
            f"Run written to {escape(str(out))}; look at {escape(str(out / 'timeline.html'))}"
        )


def choice(made: Choice) -> None:
    """Print the candidates that `auto` was chosen from."""
    console = _console()
    console.print(f"Chosen from {made.feasible} grids that keep the rules and fit into memory; the best by the "
                  "published communication model were simulated:")  # fmt: skip
    table = Table("data × z × y × x", "sequences at a time", "step", box=None, pad_edge=False)
    for simulation in made.simulations:
        grid = simulation.job.concrete_grid
        table.add_row(" × ".join(map(str, grid.sizes)), str(simulation.job.concrete_micro_sequences),
                      f"{simulation.step_seconds:.3f} s")  # fmt: skip
    console.print(table)
    console.print()


def _memory(console: Console, figures: Report) -> None:
    memory = figures.memory
    verdict = "[green]fits[/]" if memory.fits else "[bold red]does not fit[/]"
    if not memory.fits:
        verdict += f": {escape(figures.memory_advice)}"
    need, have = format_si(memory.per_rank_bytes, "B"), format_si(memory.capacity_bytes, "B")
    console.print(f"\nMemory {need} of {have} per rank: {verdict}")
    table = Table(box=None, show_header=False, pad_edge=False)
    for name, size in memory.by_category.items():
        table.add_row(f"  {name}", f"{format_si(size, 'B', digits=3):>9}",
                      _bar(size, max(memory.per_rank_bytes, memory.capacity_bytes), "magenta"))  # fmt: skip
    console.print(table)


def machine_list(machines: Sequence[Machine], *, as_json: bool) -> None:
    """Print the machines that are known."""
    if as_json:
        print_json([{"name": m.name, "title": m.title, "nodes": m.nodes, "devices_per_node": m.devices_per_node,
                     "device": m.device.name, "libraries": list(m.libraries)} for m in machines])  # fmt: skip
        return
    table = Table(
        "machine", "nodes", "devices", "device", "peak", "memory", "NICs per node", "libraries"
    )
    for m in machines:
        table.add_row(m.name, f"{m.nodes:,}", f"{m.nodes * m.devices_per_node:,}", m.device.title,
                      format_si(m.device.peak_flops_per_second, "FLOP/s"), format_si(m.device.memory_bytes, "B"),
                      f"{len(m.nic.devices)} × {format_si(m.nic.bandwidth_bytes_per_second, 'B/s')}",
                      ", ".join(m.libraries))  # fmt: skip
    _console().print(table)


def machine(described: Machine, *, as_json: bool) -> None:
    """Print one machine: every number with kind and source."""
    if as_json:
        print_json(described.model_dump(mode="json", by_alias=True))
        return
    console = _console()
    console.print(f"[bold]{escape(described.title)}[/]\n{escape(described.caveat)}\n")
    table = Table("key", "value", "kind", "source")
    table.columns[0].overflow = "fold"
    table.columns[3].overflow = "fold"
    for key, value in _rows(described):
        if isinstance(value, Counted):
            table.add_row(_yaml_path(key), f"{value:,}", value.kind, escape(value.source))
        elif isinstance(value, Parameter):
            _, dimension = split_name(key.rsplit(".", 1)[-1])
            shown = format_si(value, dimension.si) if dimension else f"{value:.4g}"
            table.add_row(_yaml_path(key), shown, value.kind, escape(value.source))
        else:
            table.add_row(_yaml_path(key), escape(str(value)), "", "")
    console.print(table)
    sources = dict(described.sources) | described.device.sources
    for library in described.libraries.values():
        sources |= library.sources
    console.print("[bold]Sources[/]")
    for short, document in sources.items():
        console.print(f"  {escape(short)}: {escape(document)}")


def _yaml_path(key: str) -> str:
    return ".".join(split_name(part)[0] for part in key.split("."))


def _rows(spec: Spec, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(spec).model_fields:
        if name in {"sources", "schema_version", "caveat"}:
            continue
        yield from _value_rows(f"{prefix}{name}", getattr(spec, name))


def _value_rows(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Spec):
        yield from _rows(value, key + ".")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _value_rows(f"{key}.{name}", item)
    elif isinstance(value, tuple) and value and isinstance(value[0], Spec):
        for item in value:
            plain = [f"{v}" for n, v in item if not isinstance(v, Parameter)]
            for name, inner in _rows(item):
                if isinstance(inner, Parameter):
                    yield f"{key}[{' '.join(plain)}].{name}", inner
    elif value is not None and value != ():
        yield key, value


def models(known: Sequence[Model], *, as_json: bool) -> None:
    """Print models."""
    if as_json:
        print_json(
            [m.model_dump(mode="json", by_alias=True) | {"parameters": m.parameters} for m in known]
        )
        return
    table = Table("model", "parameters", "layers", "hidden", "heads", "sequence", "vocabulary")
    for m in known:
        table.add_row(m.name, f"{m.parameters / 1e9:.2f} B", str(m.layers), str(m.hidden), str(m.heads),
                      str(m.sequence), str(m.vocabulary))  # fmt: skip
    _console().print(table)


def answer(values: Mapping[str, Any], *, as_json: bool) -> None:
    """Print a flat answer."""
    if as_json:
        print_json(values)
        return
    table = Table(box=None, show_header=False, pad_edge=False)
    for key, value in values.items():
        name, dimension = split_name(key)
        shown = value
        if isinstance(value, float):
            unit = dimension.si if dimension else ""
            shown = format_si(value, {"seconds": "s", "bytes": "B", "flops": "FLOP"}.get(key, unit))
            if not dimension and key not in {
                "seconds",
                "bytes",
                "flops",
                "seconds_with_all_groups",
            }:
                shown = f"{value:.4g}"
            if key == "seconds_with_all_groups":
                shown = format_si(value, "s")
        elif isinstance(value, dict):
            shown = ", ".join(
                f"{k} {v:.3g}" if isinstance(v, float) else f"{k} {v}" for k, v in value.items()
            )
        table.add_row(f"[dim]{name.replace('_', ' ')}[/]", escape(str(shown)))
    _console().print(table)


def _groups(title: str, groups: Sequence[Group]) -> Table:
    table = Table(
        "group",
        "rows",
        "median error",
        "mean error",
        "90 % below",
        "bias",
        title=title,
        title_justify="left",
    )
    for column in table.columns[1:]:
        column.justify = "right"
    for g in groups:
        table.add_row(
            escape(g.name),
            str(g.count),
            f"{g.median:.1%}",
            f"{g.mean:.1%}",
            f"{g.p90:.1%}",
            f"{g.bias:+.1%}",
        )
    return table


def measurements(result: Validation, *, as_json: bool) -> None:
    """Print a comparison with a user's measurements."""
    if as_json:
        print_json({"kind": result.kind, "groups": [vars_of(g) for g in result.groups], "rows": result.rows,
                    "skipped": result.skipped})  # fmt: skip
        return
    console = _console()
    console.print(_groups(f"Predicted against measured: {result.kind}", result.groups))
    worst = sorted(result.rows, key=lambda row: -abs(row["error"]))[:WORST_SHOWN]
    if len(result.rows) > WORST_SHOWN:
        console.print(f"The {WORST_SHOWN} rows that are furthest off (all rows: --json)")
    table = Table("row", "predicted", "measured", "error")
    for row in worst:
        own = {k: v for k, v in row.items() if k not in DERIVED}
        shown = ", ".join(f"{k} {v:g}" if isinstance(v, float) else f"{v}" for k, v in own.items())
        table.add_row(
            escape(shown),
            f"{row['predicted']:.4g}",
            f"{row['measured']:.4g}",
            f"{row['error']:+.1%}",
        )
    console.print(table)
    for reason, count in result.skipped.items():
        console.print(f"[yellow]{count} rows left out:[/] {escape(reason)}")
    if not result.rows:
        console.print("[bold red]No row could be compared.[/]")


def vars_of(value: Any) -> dict[str, Any]:
    """Return a dataclass as a dictionary of its fields."""
    return {name: getattr(value, name) for name in value.__dataclass_fields__}


def published(result: PublishedValidation, *, as_json: bool) -> None:
    """Print the comparison with published runs."""
    if as_json:
        print_json({
            **{part: [vars_of(c) | {"error": c.error} for c in getattr(result, part)]
               for part in ("weak_scaling", "other_grids", "ablation", "kernel_tuning")},
            "weak_scaling_summary": vars_of(result.summary),
            "collectives": [vars_of(g) for g in result.collectives],
        })  # fmt: skip
        return
    console = _console()
    parts = (
        ("Weak scaling, seconds per batch (arXiv 2502.08145)", result.weak_scaling),
        ("The same, on grids that the authors' scripts point to", result.other_grids),
        ("Overlap ablation, GPT-80B on 8,192 GCDs of Frontier", result.ablation),
        ("Kernel tuning, GPT-320B on Frontier, computation per batch", result.kernel_tuning),
    )
    for title, part in parts:
        table = Table("case", "predicted", "measured", "error", "compute", "wait", "exposed", "data × z × y × x",
                      title=title, title_justify="left")  # fmt: skip
        for c in part:
            d = c.details
            low, high = d.get("interval", (c.predicted, c.predicted))
            table.add_row(escape(c.name), f"{c.predicted:.2f} s" + (f" [{low:.2f}–{high:.2f}]" if low < high else ""),
                          f"{c.measured:.2f} s", f"{c.error:+.1%}", f"{d['compute_seconds']:.2f}",
                          f"{d['slowest_device_wait_seconds']:.2f}", f"{d['exposed_seconds']:.2f}",
                          " × ".join(str(size) for size in d["grid"].values()))  # fmt: skip
        console.print(table)
    s = result.summary
    worst = max(abs(c.error) for c in result.weak_scaling)
    console.print(f"Weak scaling: median error {s.median:.1%}, largest {worst:.1%}. "
                  "Nothing was fitted to these times.\n")  # fmt: skip
    console.print(
        _groups(
            COLLECTIVES_TITLE,
            result.collectives,
        )
    )
