"""What hosts measured of their links when a trace was written: all send to their k-th next neighbour."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from twin.description.problems import fail
from twin.diagnose.observed import Floats, Ints

MAX_BYTES = 1 << 40
"""Of a message; a larger size is a damaged file, not a probe."""
MIN_PAIRS = 4
"""Of fewer pairs of hosts the median is no more than one of those it should judge."""


@dataclass(frozen=True)
class Probe:
    """In each round every host received a message from the one so many hops before it."""

    bytes: int
    """Sent by each rank."""
    hops: tuple[int, ...]
    """Hosts, by round."""
    seconds: Floats
    """(rounds, hosts): until all ranks of the host had theirs, in the fastest of several tries."""

    def pairs(self, without: Collection[int]) -> tuple[Ints, Ints, Floats] | None:
        """Hosts that sent, hosts that received, and the seconds; without some hosts' messages.

        None if too few are left to be compared.
        """
        hosts = self.seconds.shape[1]
        to = np.tile(np.arange(hosts), len(self.hops))
        sent_by = np.concatenate([(np.arange(hosts) - hops) % hosts for hops in self.hops])
        slow = np.array(list(without), dtype=np.int64)
        kept = ~(np.isin(to, slow) | np.isin(sent_by, slow))
        if kept.sum() < MIN_PAIRS:
            return None
        return sent_by[kept], to[kept], self.seconds.reshape(-1)[kept]


def read_probe(manifest: Mapping[str, Any], hosts: int, origin: str) -> Probe | None:
    """Read a trace's probe; None if it has none. Raises DescriptionError if it makes no sense."""
    said = manifest.get("probe")
    if said is None:
        return None
    problem = fail(f"{origin}: probe", f"expected bytes, and rounds with hops and the seconds of {hosts} hosts")
    size, rounds = (said.get(k) for k in ("bytes", "rounds")) if isinstance(said, dict) else (None, None)
    if type(size) is not int or not 0 < size <= MAX_BYTES or not isinstance(rounds, list) or not rounds:
        raise problem
    if not all(_is_round(each, hosts) for each in rounds):
        raise problem
    return Probe(
        size, tuple(each["hops"] for each in rounds), np.array([each["seconds"] for each in rounds], dtype=np.float64)
    )


def _is_round(each: Any, hosts: int) -> bool:
    if not isinstance(each, dict) or type(each.get("hops")) is not int or not 0 < each["hops"] < hosts:
        return False
    seconds = each.get("seconds")
    if not isinstance(seconds, list) or len(seconds) != hosts:
        return False
    return all(type(s) in {int, float} and 0 < s < 1e6 for s in seconds)
