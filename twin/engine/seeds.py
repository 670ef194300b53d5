"""Distributions over seeds: the same step again and again, with other devices and other luck."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa

from twin.engine.all_ranks import AllRanks, cube_of_simulation
from twin.engine.report import Report

PERCENTILES = (10, 50, 90)


def spread_of(reports: Sequence[Report]) -> dict[str, dict[str, float]]:
    """Return p10, p50 and p90 over seeds of every figure that is one number."""
    figures: dict[str, list[float]] = {}
    for one in reports:
        for name, value in scalars(one).items():
            figures.setdefault(name, []).append(value)
    return {name: {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES} for name, values in figures.items()}


def scalars(figures: Report) -> dict[str, float]:
    """Return the figures of a step that are one number each, by the names that JSON has."""
    return {
        "step_seconds": figures.step_seconds,
        "compute_seconds": figures.compute_seconds,
        "exposed_communication_seconds": figures.exposed_seconds,
        "idle_seconds": figures.idle_seconds,
        **{f"exposed_{axis}_seconds": seconds for axis, seconds in figures.exposed_by_axis.items()},
        **{f"peers_{axis}_seconds": seconds for axis, seconds in figures.peers_by_axis.items()},
        "tokens_per_second": figures.tokens_per_second,
        "hardware_flops_per_second": figures.hardware_flops_per_second,
        "energy_joules": figures.energy_joules,
    }


def rank_table(every: AllRanks) -> pa.Table:
    """One row per rank: its coordinates, its device's slowness, and where its step went."""
    outcome, nominal = every.outcome, every.nominal
    cube = cube_of_simulation(nominal)
    at = np.unravel_index(np.arange(cube.ranks), nominal.mesh.sizes)
    columns: Mapping[str, np.ndarray[tuple[int, ...], np.dtype[np.float64]]] = {
        "slowness": every.slowness,
        "end_seconds": outcome.end,
        "compute_seconds": outcome.compute,
        "host_seconds": outcome.host,
        **{f"exposed_{axis}_seconds": seconds for axis, seconds in outcome.exposed.items()},
        **{f"peers_{axis}_seconds": seconds for axis, seconds in outcome.peers.items()},
    }
    table: dict[str, Any] = {"rank": np.arange(cube.ranks, dtype=np.int32)}
    table |= {axis: at[i].astype(np.int32) for i, axis in enumerate(cube.axes)}
    table |= {name: cube.in_rank_order(values) for name, values in columns.items()}
    return pa.table(table)
