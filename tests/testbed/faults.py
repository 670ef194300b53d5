"""Faults on the test bed, drawn by a seed: what a run is given, and what nobody tells the tool.

* `rank`: one process may use only a share of a core (a quota of its control group, as containers have).
* `host`: all processes of a host may.
* `link`: a host's link keeps half of its rate, both ways.
* `data`: one rank waits before each read of samples.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from random import Random
from typing import Any, Literal

from tests.testbed.network import Hosts, relimited

Kind = Literal["rank", "host", "link", "data", "none"]
KINDS: tuple[Kind, ...] = ("rank", "host", "link", "data", "none")
GROUPS = Path("/sys/fs/cgroup/cpu")
"""Control groups (version 1) that limit processors."""
PERIOD_MICROSECONDS = 50_000
CORE_SHARES = 0.05, 0.12
"""What a limited process may use of a core. Eight on two cores have a quarter each when all compute; from
about 0.15 on a limit is hardly reached, and slows nothing."""
LINK_RATE = 0.5
WAIT_SECONDS = 0.1, 0.4


@dataclass(frozen=True)
class Fault:
    """What is wrong in one run."""

    kind: Kind
    where: int = -1
    """A rank, or a host."""
    amount: float = 0.0
    """Share of a core, share of the rate, or seconds."""

    def slow_ranks(self, per_host: int) -> tuple[int, ...]:
        """Ranks whose processor is limited."""
        if self.kind == "rank":
            return (self.where,)
        if self.kind == "host":
            return tuple(range(self.where * per_host, (self.where + 1) * per_host))
        return ()

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return asdict(self)


def drawn(seed: int, hosts: int, per_host: int) -> Fault:
    """Draw one fault; five runs in a row have each kind once, in any order.

    >>> sorted(drawn(seed, 4, 2).kind for seed in range(5)) == sorted(KINDS)
    True
    """
    block, place = divmod(seed, len(KINDS))
    kind = Random(f"kinds {block}").sample(KINDS, len(KINDS))[place]
    random = Random(f"fault {seed}")
    if kind == "none":
        return Fault(kind)
    if kind == "data":
        return Fault(kind, random.randrange(hosts * per_host), random.uniform(*WAIT_SECONDS))
    if kind == "link":
        return Fault(kind, random.randrange(hosts), LINK_RATE)
    share = random.uniform(*CORE_SHARES)
    return Fault(kind, random.randrange(hosts * per_host if kind == "rank" else hosts), share)


def no_limits() -> str | None:
    """Why processors cannot be limited here; None if they can."""
    try:
        with limited(0.5, "probe"):
            return None
    except OSError as error:
        return f"control groups cannot be made here: {error}"


@contextmanager
def limited(core_share: float, name: str) -> Iterator[Path]:
    """Make a control group whose processes together may use this share of a core."""
    group = GROUPS / f"fourfold-{os.getpid()}-{name}"
    group.mkdir()
    try:
        (group / "cpu.cfs_period_us").write_text(str(PERIOD_MICROSECONDS), encoding="ascii")
        quota = max(1000, round(core_share * PERIOD_MICROSECONDS))
        (group / "cpu.cfs_quota_us").write_text(str(quota), encoding="ascii")
        yield group
    finally:
        with suppress(OSError):  # a process that is being killed may still be in it
            group.rmdir()


@contextmanager
def injected(fault: Fault, network: Hosts) -> Iterator[None]:
    """Have the fault in the network, if it is one of a link."""
    if fault.kind != "link":
        yield
        return
    relimited(network, fault.where, fault.amount)
    try:
        yield
    finally:
        relimited(network, fault.where, 1.0)
