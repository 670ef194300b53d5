"""One rank to another: half of a round trip."""

from __future__ import annotations

import time
from statistics import median
from typing import Any

import torch
import torch.distributed as dist

from runtime.calibration.sample import spread, synchronize
from runtime.calibration.team import Team

SIZES = (8, 1 << 10, 8 << 10, 64 << 10, 256 << 10, 1 << 20, 4 << 20)
"""Bytes."""
MIN_REPEATS, MAX_REPEATS = 4, 50


def measure_messages(team: Team, seconds: float) -> list[dict[str, Any]]:
    """Time messages between rank 0 and a few others, nobody else talking; entries on rank 0."""
    peers = chosen_peers(team.hosts)
    entries = []
    for peer in peers:
        for size in SIZES:
            times = _round_trips(team, peer, size, seconds / (len(peers) * len(SIZES)))
            if team.first:
                entries.append(
                    {
                        "from": 0,
                        "to": peer,
                        "same_host": team.hosts[peer] == team.hosts[0],
                        "bytes": size,
                        "seconds": median(times) / 2,
                        "spread": spread(times),
                        "repeats": len(times),
                    }
                )
    return entries


def chosen_peers(hosts: tuple[int, ...]) -> list[int]:
    """A neighbour, the last rank of the same host, the first of the next host, the last of all.

    >>> chosen_peers((0, 0, 0, 1, 1, 1)), chosen_peers((0,))
    ([1, 2, 3, 5], [])
    """
    last_here = max(rank for rank, host in enumerate(hosts) if host == 0)
    other = [rank for rank, host in enumerate(hosts) if host][:1]
    return sorted({1, last_here, *other, len(hosts) - 1} - {0, len(hosts)})


def _round_trips(team: Team, peer: int, size: int, seconds: float) -> list[float]:
    """Seconds of round trips between rank 0 and a peer; empty on other ranks."""
    buffer = torch.zeros(size // 4, device=team.device)
    warm = _some(team, peer, buffer, 2)
    wanted = seconds / max(warm[-1], 1e-6) if warm else 0.0
    repeats = round(team.told([min(MAX_REPEATS, max(MIN_REPEATS, wanted))])[0])
    return _some(team, peer, buffer, repeats)


def _some(team: Team, peer: int, buffer: torch.Tensor, repeats: int) -> list[float]:
    if team.rank not in (0, peer):
        return []
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        if team.first:
            dist.send(buffer, group_dst=peer)
            dist.recv(buffer, group_src=peer)
        else:
            dist.recv(buffer, group_src=0)
            dist.send(buffer, group_dst=0)
        synchronize(team.device)
        times.append(time.perf_counter() - begin)
    return times
