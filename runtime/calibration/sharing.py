"""The same work on more and more ranks at once: which cores, or memory, do ranks share, and how do they take turns?"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median
from typing import Any

import torch

from runtime.calibration.busy import joined, timed_on
from runtime.calibration.gemms import dtypes, product
from runtime.calibration.sample import copies_beyond_cache, in_turn, spread
from runtime.calibration.team import Team
from runtime.strategies.four_d.gemm import Signature

PRODUCT = Signature("forward", 512, 512, 512)
STREAM_ELEMENTS = 2 << 20
TURN = "turn"
"""Of rows of ranks that only look at the clock."""
SPIN_SECONDS = 0.5
GAP_NS = 200_000
"""Between two looks, from which on somebody else had the core: kernels are quicker, turns are milliseconds."""
FEWEST_STRETCHES = 4


def measure_sharing(team: Team, seconds: float) -> list[dict[str, Any]]:
    """Time a product and a sum of large vectors on growing sets of ranks, and turns of all; entries on rank 0."""
    works = {"gemm": product(PRODUCT, dtypes(team.device)[0], team.device), "memory": stream(team.device)}
    sets = rank_sets(team.hosts)
    each = 0.8 * seconds / (len(works) * len(sets))
    entries = []
    for work, run in works.items():
        for busy in sets:
            found = team.gather(timed_on(team, busy, run, each, time.perf_counter))
            sample = joined(found) if found else None
            if sample is not None:
                entries.append(
                    {
                        "work": work,
                        "ranks": list(busy),
                        "busy": len(busy),
                        "hosts": len({team.hosts[rank] for rank in busy}),
                        "seconds": sample.seconds,
                        "spread": sample.spread,
                        "bytes": 12.0 * STREAM_ELEMENTS if work == "memory" else 0.0,
                        "flops": 0.0 if work == "memory" else 2.0 * PRODUCT.m * PRODUCT.n * PRODUCT.k,
                    }
                )
    return entries + _turn(team)


def _turn(team: Team) -> list[dict[str, Any]]:
    """See how long a rank keeps a core while all want one; nothing where each has its own."""
    team.start_together()
    mine = stretches_ns(SPIN_SECONDS) if team.device.type == "cpu" else []
    everyone = team.gather(mine[1:-1])
    found = [stretch / 1e9 for each in everyone or [] for stretch in each]
    if len(found) < FEWEST_STRETCHES * team.ranks:
        return []
    ranks = list(range(team.ranks))
    hosts = len(set(team.hosts))
    about = {"work": TURN, "ranks": ranks, "busy": team.ranks, "hosts": hosts, "bytes": 0.0, "flops": 0.0}
    return [{**about, "seconds": median(found), "spread": spread(found)}]


def stretches_ns(seconds: float) -> list[int]:
    """Look at the clock for so long; return how long this thread kept a core each time."""
    begin = last = time.monotonic_ns()
    end, found = begin + round(seconds * 1e9), []
    while last < end:
        now = time.monotonic_ns()
        if now - last > GAP_NS:
            found.append(last - begin)
            begin = now
        last = now
    return [*found, last - begin]


def rank_sets(hosts: tuple[int, ...]) -> list[tuple[int, ...]]:
    """Growing sets: of the first host's ranks, of one rank a host, of all ranks of so many hosts.

    >>> rank_sets((0, 0, 1, 1))
    [(0,), (0, 1), (0, 2), (0, 1, 2, 3)]
    """
    by_host = [[r for r, h in enumerate(hosts) if h == host] for host in range(max(hosts) + 1)]
    sets = [by_host[0][:count] for count in _doubling(len(by_host[0]))]
    for count in _doubling(len(by_host))[1:]:
        sets.append([ranks[0] for ranks in by_host[:count]])
        sets.append([rank for ranks in by_host[:count] for rank in ranks])
    return list(dict.fromkeys(tuple(each) for each in sets))


def _doubling(most: int) -> list[int]:
    """1, 2, 4, … and the last."""
    return sorted({most, *(1 << i for i in range(most.bit_length()) if 1 << i <= most)})


def stream(device: torch.device) -> Callable[[], object]:
    """Add two large vectors into a third: three passes over memory."""

    def once(a: torch.Tensor, b: torch.Tensor, out: torch.Tensor) -> Callable[[], object]:
        return lambda: torch.add(a, b, out=out)

    sets = copies_beyond_cache(12.0 * STREAM_ELEMENTS, device)
    vectors = [[torch.ones(STREAM_ELEMENTS, device=device) for _ in range(3)] for _ in range(sets)]
    return in_turn([once(*three) for three in vectors])
