"""Which ranks are on one host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from runtime.environment import Process
from runtime.host import host_name


@dataclass(frozen=True)
class Hosts:
    """Names of hosts, and the host of each rank."""

    names: tuple[str, ...]
    of_rank: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"names": list(self.names), "of_rank": list(self.of_rank)}


def find_hosts(group: dist.ProcessGroup | None, process: Process) -> Hosts:
    """Ask all ranks of a group; each must call it.

    Hosts of one name (containers may have one) are told apart by the first rank there.
    """
    mine = host_name(), process.rank - process.local_rank
    everyone = [mine]
    if group is not None:
        everyone = [mine] * process.ranks
        dist.all_gather_object(everyone, mine, group=group)
    hosts = list(dict.fromkeys(everyone))
    return Hosts(tuple(name for name, _ in hosts), tuple(hosts.index(each) for each in everyone))
