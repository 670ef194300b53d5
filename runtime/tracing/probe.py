"""Speed of messages between hosts: every rank sends to one some hosts away, all at once.

A step's collectives say that a link is slow, not always whose: where every group crosses every host,
all are slow together. Pairs of hosts can be told apart.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

import torch
import torch.distributed as dist

TRIES = 8
FIRST_BYTES, MAX_BYTES = 1 << 18, 1 << 26
MIN_SECONDS = 0.04
"""Most messages take at least as long, so that it is bandwidth that is seen."""


def probe_links(
    group: dist.ProcessGroup | None, device: torch.device, rank: int, hosts: Sequence[int]
) -> dict[str, Any] | None:
    """Measure; every rank of the group must call it. `hosts` has the host of every rank.

    Returns {"bytes", "rounds": [{"hops", "seconds": [of each host]}]} on every rank: how long it took until
    all ranks of a host had a message from the host `hops` before it, in the fastest of several tries. None
    if there is one host only, or if hosts differ in their ranks.
    """
    per_host = _ranks_per_host(hosts)
    if group is None or per_host is None:
        return None
    count = len(hosts) // per_host

    def tried(hops: int, size: int) -> list[float]:
        """Seconds of each host; the last of its ranks counts, since they may share a link unfairly."""
        mine = _exchanged(group, device, rank, hops * per_host, size)
        everyone = _everyone(group, device, mine, len(hosts))
        return [max(everyone[at : at + per_host]) for at in range(0, len(hosts), per_host)]

    size = FIRST_BYTES
    while size < MAX_BYTES and sorted(tried(1, size))[count // 4] < MIN_SECONDS:
        size *= 2  # a host that was held up does not count
    rounds = []
    for hops in sorted({1, 2, count // 2, count - 1} & set(range(1, count))):
        tries = [tried(hops, size) for _ in range(TRIES)]
        fastest = [float(f"{min(times):.6g}") for times in zip(*tries, strict=True)]
        rounds.append({"hops": hops, "seconds": fastest})
    return {"bytes": size, "rounds": rounds}


def _ranks_per_host(hosts: Sequence[int]) -> int | None:
    """Ranks of each host, if they come host by host, equally many."""
    count = len(set(hosts))
    if count < 2 or len(hosts) % count:
        return None
    per_host = len(hosts) // count
    return per_host if all(host == hosts[0] + rank // per_host for rank, host in enumerate(hosts)) else None


def _exchanged(group: dist.ProcessGroup, device: torch.device, rank: int, shift: int, size: int) -> float:
    """Send to the rank `shift` further on, and time what comes from the one as far before."""
    ranks = dist.get_world_size(group)
    mine = torch.zeros(size, dtype=torch.uint8, device=device)
    theirs = torch.empty_like(mine)
    dist.all_reduce(torch.zeros(1, device=device), group=group)  # begin together
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    begin = time.monotonic_ns()
    works = dist.batch_isend_irecv(
        [
            dist.P2POp(dist.irecv, theirs, group=group, group_peer=(rank - shift) % ranks),
            dist.P2POp(dist.isend, mine, group=group, group_peer=(rank + shift) % ranks),
        ]
    )
    works[0].wait()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    end = time.monotonic_ns()
    for work in works[1:]:
        work.wait()
    return max(1, end - begin) / 1e9


def _everyone(group: dist.ProcessGroup, device: torch.device, seconds: float, ranks: int) -> list[float]:
    found = torch.zeros(ranks, dtype=torch.float64, device=device)
    found[dist.get_rank(group)] = seconds
    dist.all_reduce(found, group=group)
    return [float(value) for value in found.tolist()]
