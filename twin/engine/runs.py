"""Write a simulated run: trace directory, resolved job, timeline page, Chrome trace."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import yaml

from twin import __version__
from twin.description.files import replacing
from twin.description.problems import fail
from twin.description.units import format_amount, format_si
from twin.engine.events import event_table, fitting
from twin.engine.simulation import Simulation
from twin.pages.timeline import timeline_html
from twin.trace.bubbles import PipelineRun
from twin.trace.chrome import is_chrome_trace, write_chrome
from twin.trace.store import write_trace

MAX_SHOWN = 8
"""Ranks drawn in the timeline page."""


def rank_name(simulation: Simulation, rank: int) -> str:
    """Name a rank with its coordinates."""
    at = simulation.job.concrete_grid.coordinates(rank)
    return f"rank {rank} ({', '.join(f'{axis} {place}' for axis, place in at.items())})"


def default_ranks(simulation: Simulation) -> list[int]:
    """One rank of each class; of as many classes as a table holds the events of."""
    return fitting(simulation, [int(r) for r in simulation.partition.representatives])


def write_run(
    directory: Path,
    simulation: Simulation,
    figures: Mapping[str, Any],
    ranks: Sequence[int] | None,
    *,
    overwrite: bool,
    tables: Mapping[str, pa.Table] | None = None,
    pipeline: PipelineRun | None = None,
) -> None:
    """Write `manifest.json`, `events.parquet`, `classes.parquet`, `job.yaml`, `timeline.html`.

    `tables` are further Parquet files by name; `pipeline` is drawn on the page.
    """
    chosen = list(ranks or default_ranks(simulation))
    events = _events(simulation, chosen)
    job = simulation.job
    manifest = {
        "kind": "predicted",
        "job": job.model_dump(mode="json", by_alias=True),
        "code_version": __version__,
        "clock": {"method": "simulated", "uncertainty_ns": 0},
        "seed": job.seed,
        "figures": {k: v for k, v in figures.items() if k != "wall_seconds"},
        "ranks_written": chosen,
    }
    class_of_rank, rank_class = simulation.partition.rank_class, None
    if class_of_rank.min() >= 0:  # a rank of each class was simulated, and stands for it
        manifest["classes"] = [
            {"representative": int(rank), "ranks": int(count)}
            for rank, count in zip(simulation.partition.representatives, np.bincount(class_of_rank), strict=True)
        ]
        columns = {"rank": np.arange(job.ranks), "class": class_of_rank}
        rank_class = pa.table({name: of.astype(np.int32) for name, of in columns.items()})
    extra = {
        "job.yaml": yaml.safe_dump(job.model_dump(mode="json", by_alias=True), sort_keys=False, allow_unicode=True),
        "timeline.html": timeline_page(simulation, figures, chosen[:MAX_SHOWN], len(chosen), pipeline),
    }
    write_trace(directory, manifest, events, rank_class, extra, tables, overwrite=overwrite)


def timeline_page(
    simulation: Simulation,
    figures: Mapping[str, Any],
    ranks: Sequence[int],
    written: int,
    pipeline: PipelineRun | None = None,
) -> str:
    """Return the HTML timeline of a few of the ranks that were written."""
    job = simulation.job
    memory = figures.get("memory")  # a module of the user's own has none of a model's figures
    mean = ", mean over ranks" if figures["classes"] > 1 else ""
    facts = [
        ("step", f"{figures['step_seconds']:.3f} s"),
        (f"compute{mean}", f"{figures['compute_seconds']:.3f} s"),
        ("waiting for the slowest device", f"{figures['slowest_device_wait_seconds']:.3f} s"),
        (f"exposed communication{mean}", f"{figures['exposed_communication_seconds']:.3f} s"),
        ("grid", str(job.concrete_grid)),
    ]
    if memory is not None:
        facts[1:1] = [
            ("percent of peak", f"{format_amount(figures['hardware_percent_of_peak'])} %"),
            ("without recomputation", f"{format_amount(figures['model_percent_of_peak'])} %"),
        ]
        facts[-1:-1] = [
            ("tokens per second", format_amount(figures["tokens_per_second"], 0)),
            (
                "memory per rank",
                " of ".join(format_si(memory[key], "B", digits=3) for key in ("per_rank_bytes", "capacity_bytes")),
            ),
        ]
        if not memory["fits"]:
            facts.insert(0, ("CANNOT RUN", "does not fit into memory"))
    if written > len(ranks):
        facts.append(("drawn", f"{len(ranks)} of {written} ranks written"))
    title = f"{job.model.name} on {job.ranks:,} ranks of {job.machine.name}, predicted"
    names = {rank: rank_name(simulation, rank) for rank in ranks}
    return timeline_html(_events(simulation, list(ranks)), names, title, facts, pipeline)


def write_chrome_trace(path: Path, simulation: Simulation, ranks: Sequence[int] | None, *, overwrite: bool) -> None:
    """Write the chosen ranks for Perfetto; whole or not at all."""
    chosen = list(ranks or default_ranks(simulation))
    if path.exists():
        if not overwrite:
            raise fail(str(path), "exists already; choose another file or pass --force")
        if not is_chrome_trace(path):
            raise fail(str(path), "is not a trace that Fourfold wrote; it will not be replaced")
    with replacing(path) as temporary:
        write_chrome(temporary, _events(simulation, chosen), {r: rank_name(simulation, r) for r in chosen})


def _events(simulation: Simulation, ranks: list[int]) -> pa.Table:
    try:
        return event_table(simulation, ranks)
    except ValueError as error:
        raise fail("--ranks", str(error)) from None
