"""Which ranks are on one host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch.distributed as dist

from runtime.parallel.host import host_identity


@dataclass(frozen=True)
class Hosts:
    """Names of hosts, and the host of each rank."""

    names: tuple[str, ...]
    of_rank: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """Plain values."""
        return {"names": list(self.names), "of_rank": list(self.of_rank)}


def find_hosts(group: dist.ProcessGroup | None, ranks: int) -> Hosts:
    """Ask all ranks of a group; each must call it. Hosts are numbered in the order of their first rank."""
    mine = host_identity()
    everyone = [mine]
    if group is not None:
        everyone = [mine] * ranks
        dist.all_gather_object(everyone, mine, group=group)
    hosts = list(dict.fromkeys(everyone))
    return Hosts(tuple(host[0] for host in hosts), tuple(hosts.index(each) for each in everyone))
