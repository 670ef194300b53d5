"""The distance of this rank's clock from rank 0's.

Processes of one boot share the monotonic clock. Between hosts, the first rank of each answers rank
0's time stamps a number of times; the exchange with the shortest round trip tells the offset, half of
that round trip is its uncertainty (as NTP does it).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import torch
import torch.distributed as dist

ROUNDS = 32
BOOT_ID = Path("/proc/sys/kernel/random/boot_id")


@dataclass(frozen=True)
class ClockOffset:
    """Add `offset_ns` to this rank's monotonic clock to get rank 0's."""

    offset_ns: int
    uncertainty_ns: int
    method: str


def align(group: dist.ProcessGroup | None, ranks: int, rank: int, host: str = "") -> ClockOffset:
    """Measure this rank's offset; every rank of the (gloo) group must call it."""
    if group is None:
        return ClockOffset(0, 0, "one process")
    host = host or _host()
    hosts = [host] * ranks
    dist.all_gather_object(hosts, host, group=group)
    leaders = {name: hosts.index(name) for name in dict.fromkeys(hosts)}
    offsets = [(0, 0)] * ranks
    mine = (0, 0)
    for name, leader in leaders.items():
        if name == hosts[0]:
            continue
        if rank == 0:
            _serve(leader, group)
        elif rank == leader:
            mine = _ask(group)
    dist.all_gather_object(offsets, mine, group=group)
    offset, uncertainty = offsets[leaders[hosts[rank]]]
    method = (
        "one host's monotonic clock"
        if len(leaders) == 1
        else (f"monotonic clocks, offset by the shortest of {ROUNDS} round trips")
    )
    return ClockOffset(offset, uncertainty, method)


def _host() -> str:
    try:
        return BOOT_ID.read_text(encoding="ascii").strip()
    except OSError:
        import socket  # noqa: PLC0415  only where there is no boot id

        return socket.gethostname()


def _serve(peer: int, group: dist.ProcessGroup) -> None:
    stamp = torch.zeros(1, dtype=torch.int64)
    for _ in range(ROUNDS):
        dist.recv(stamp, group=group, group_src=peer)
        stamp[0] = time.monotonic_ns()
        dist.send(stamp, group=group, group_dst=peer)


def _ask(group: dist.ProcessGroup) -> tuple[int, int]:
    stamp, best = torch.zeros(1, dtype=torch.int64), (0, 2**62)
    for _ in range(ROUNDS):
        sent = time.monotonic_ns()
        dist.send(stamp, group=group, group_dst=0)
        dist.recv(stamp, group=group, group_src=0)
        back = time.monotonic_ns()
        uncertainty = (back - sent) // 2
        if uncertainty < best[1]:
            best = int(stamp[0]) - (sent + back) // 2, uncertainty
    return best
