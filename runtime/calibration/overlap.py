"""Compute beside a collective: how much does each slow the other?"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from statistics import mean, median
from typing import Any

import torch

from runtime.calibration.core_time import PRODUCT, CoreTime, core_time
from runtime.calibration.gemms import dtypes, product
from runtime.calibration.groups import SLOW_SECONDS, times_of
from runtime.calibration.layouts import KINDS, Axis, GroupLayout
from runtime.calibration.listening import new_listener
from runtime.calibration.sample import chunk_of, repeat, synchronize
from runtime.calibration.team import Team
from runtime.parallel.ops import Op
from runtime.strategies.four_d.gemm import Signature
from runtime.tracing.listener import DeviceListener, HostListener
from twin.description.library import CollectiveKind

WIDE_PRODUCT = Signature("forward", 4096, 4096, 4096)
SIZES = (256 << 10, 2 << 20)
WIDE_SIZES = (8 << 20, 128 << 20)
MIN_REPEATS, MAX_REPEATS = 3, 10
COUNTED = 20
"""Repeats of quick collectives whose processor time is counted."""
PATIENCE_SECONDS = 60.0
WORK = Op("calibration/product", "fwd", None, None)
MIN_SECONDS = 0.05
"""Of products alone: long enough for ranks that share cores to have had their turns."""


@dataclass(frozen=True)
class Products:
    """Products that one rank computed, and the time they took."""

    count: int
    seconds: float


@dataclass(frozen=True)
class Beside:
    """One repeat on one rank."""

    compute_alone: Products
    compute_beside: Products
    collective_alone_seconds: float
    collective_beside_seconds: float


@dataclass(frozen=True)
class Found:
    """All that one rank found of a collective."""

    repeats: list[Beside]
    cores_alone: CoreTime
    """Products behind it."""
    cores_beside: CoreTime
    """As many beside it."""


def measure_overlap(team: Team, seconds: float) -> list[dict[str, Any]]:
    """Time products and collectives, each alone and both at once, on all ranks; entries on rank 0.

    Inside a host, and across hosts if there are several.
    """
    small = team.device.type == "cpu"
    signature, sizes = (PRODUCT, SIZES) if small else (WIDE_PRODUCT, WIDE_SIZES)
    dtype = dtypes(team.device)[0]
    run = product(signature, dtype, team.device)
    chosen = chosen_layouts(team.hosts)
    mine: list[tuple[dict[str, Any], Found]] = []
    for layout in chosen:
        axis = Axis(team, layout)
        for kind in KINDS:
            for size in sizes:
                buffer = axis.buffer(kind, size, dtype)
                each = seconds / (len(chosen) * len(KINDS) * len(sizes))
                found = _measured(team, axis, kind, buffer, run, each)
                mine.append(
                    (
                        {
                            "kind": kind,
                            "bytes": size,
                            "inner": layout.inner,
                            "size": layout.size,
                            "same_host": _inside(team.hosts, layout),
                        },
                        found,
                    )
                )
    everyone = team.gather(mine)
    if everyone is None:
        return []
    gemm = {"m": signature.m, "n": signature.n, "k": signature.k, "element_bytes": dtype.itemsize}
    return [{**same[0][0], **gemm, **_joined([found for _, found in same])} for same in zip(*everyone, strict=True)]


def chosen_layouts(hosts: tuple[int, ...]) -> list[GroupLayout]:
    """Inside a host, across hosts.

    >>> chosen_layouts((0, 0, 1, 1, 2, 2))
    [GroupLayout(inner=1, size=2), GroupLayout(inner=2, size=3)]
    """
    ranks, per_host = len(hosts), hosts.count(0)
    if ranks % per_host or len(set(map(hosts.count, hosts))) > 1:
        return [GroupLayout(1, ranks)]  # hosts of different sizes
    choices = [GroupLayout(1, per_host), GroupLayout(per_host, ranks // per_host)]
    return [layout for layout in choices if layout.size > 1]


def _inside(hosts: tuple[int, ...], layout: GroupLayout) -> bool:
    return len(set(hosts[: layout.inner * layout.size : layout.inner])) == 1


def _measured(
    team: Team, axis: Axis, kind: CollectiveKind, buffer: torch.Tensor, run: Callable[[], object], seconds: float
) -> Found:
    chunk = chunk_of(run, team.device)
    team.start_together()
    expected = team.told([_collective(team, axis, kind, buffer)])[0]
    repeats = round(min(MAX_REPEATS, max(MIN_REPEATS, seconds / (6 * expected + 0.1))))
    found = []
    for _ in range(repeats):
        team.start_together()
        alone = _collective(team, axis, kind, buffer)
        team.start_together()
        mean_seconds = repeat(run, chunk, max(alone, MIN_SECONDS), team.device).mean_seconds
        team.start_together()
        compute, beside = _both(team, axis, kind, buffer, run, max(1, round(alone / mean_seconds)))
        team.start_together()
        products = Products(compute.count, compute.count * mean_seconds)
        found.append(Beside(products, compute, alone, beside))
    usual = round(team.told([median(each.compute_beside.count for each in found)])[0])
    counted = repeats if expected > SLOW_SECONDS else COUNTED
    team.start_together()
    one_by_one = core_time(axis, kind, buffer, run, usual, counted, beside=False)
    team.start_together()
    at_once = core_time(axis, kind, buffer, run, usual, counted, beside=True)
    return Found(found, one_by_one, at_once)


def _collective(team: Team, axis: Axis, kind: CollectiveKind, buffer: torch.Tensor) -> float:
    listener = new_listener(team.device)
    axis.start(kind, buffer, listener).wait()
    synchronize(team.device)
    times = times_of(listener.finish(), 0)
    return (times.ended - times.arrived) / 1e9


def _both(
    team: Team, axis: Axis, kind: CollectiveKind, buffer: torch.Tensor, run: Callable[[], object], products: int
) -> tuple[Products, float]:
    """Compute while a collective is under way; on a GPU so many products, for all is issued at once."""
    listener = new_listener(team.device)
    handle = axis.start(kind, buffer, listener)
    if isinstance(listener, DeviceListener):
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(products):
            run()
        end.record()
        torch.cuda.synchronize(team.device)
        milliseconds: float = begin.elapsed_time(end)
        elapsed = milliseconds / 1e3
    else:
        listener.watch()
        products, start = 0, time.perf_counter()
        while not products or _in_flight(listener, start):
            listener.compute(WORK, run)
            products += 1
        elapsed = time.perf_counter() - start
    handle.wait()
    synchronize(team.device)
    times = times_of(listener.finish(), 0)
    return Products(products, elapsed), (times.ended - times.arrived) / 1e9


def _in_flight(listener: HostListener, start: float) -> bool:
    """Tell whether the listener has not been told of the collective's end: a listener watches while ops run beside it.

    A collective that fails never ends; after a while whoever waits for it shall hear why.
    """
    ended = listener.notes[0].end_ns >= 0
    return not ended and time.perf_counter() - start < PATIENCE_SECONDS


def _joined(everyone: list[Found]) -> dict[str, Any]:
    """Medians over repeats, and means over ranks.

    Of products: seconds over count, each summed over ranks, for a rank that was interrupted early computed few.
    """
    repeats = list(zip(*(found.repeats for found in everyone), strict=True))

    def per_product(products: Callable[[Beside], Products]) -> float:
        return median(
            sum(products(each).seconds for each in same) / sum(products(each).count for each in same)
            for same in repeats
        )

    def typical(number: Callable[[Beside], float]) -> float:
        return median(mean(map(number, same)) for same in repeats)

    return {
        "compute_seconds_alone": per_product(lambda each: each.compute_alone),
        "compute_seconds_beside": per_product(lambda each: each.compute_beside),
        "collective_seconds_alone": typical(lambda each: each.collective_alone_seconds),
        "collective_seconds_beside": typical(lambda each: each.collective_beside_seconds),
        "core_seconds_alone": mean(found.cores_alone.collective_seconds for found in everyone),
        "core_seconds_beside": mean(found.cores_beside.collective_seconds for found in everyone),
        "product_core_seconds_alone": mean(found.cores_alone.product_seconds for found in everyone),
        "product_core_seconds_beside": mean(found.cores_beside.product_seconds for found in everyone),
        "products": typical(lambda each: each.compute_beside.count),
        "repeats": len(repeats),
    }
