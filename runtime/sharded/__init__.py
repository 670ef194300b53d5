"""PyTorch's `fully_shard` below the named collectives, for the strategies that divide weights with it.

* `context`: what its parts share; `units`: what travels together, and where shards lie.
* `gathers`, `reductions`: FSDP2's calls by the named collectives.
"""

from __future__ import annotations
