"""PyTorch's flight recorder, which remembers the last 2,000 collectives that gloo's own threads do.

It does so in pieces of memory that lie between tensors: each keeps what is freed beside it from being one with its
neighbours, and on CPUs the heap grows by tens of megabytes a step, over y and x most of all. Nobody reads it where gloo
is at work.
"""

from __future__ import annotations

from collections.abc import MutableMapping

SIZES = ("TORCH_FR_BUFFER_SIZE", "TORCH_NCCL_TRACE_BUFFER_SIZE")
"""Environment: how many collectives are remembered, by the name of today and by an older one."""


def forget_collectives(environment: MutableMapping[str, str]) -> None:
    """Let it remember none, before the first group is made; unless the user has said how many it shall."""
    if not any(name in environment for name in SIZES):
        environment[SIZES[0]] = "0"
