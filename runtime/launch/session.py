"""Which keys of a store belong to these very processes.

torchrun's agents keep one store for all rounds. Neither its count of restarts nor the number of ranks tells
rounds apart: agents that join later count from zero, and a lost node may come back. So rank 0 makes a
name for the round, and gives it to whoever says hello with a token of its own.
"""

from __future__ import annotations

import secrets
import time
from datetime import timedelta

from torch._C._distributed_c10d import PrefixStore, Store

POLL_SECONDS = 0.02


def own_part(store: Store, rank: int, ranks: int, timeout_seconds: float) -> Store:
    """Return the part of a store that processes of no other round use; every rank must call it.

    Raises RuntimeError, as torch's stores do, if not all come within the time.
    """
    if rank == 0:
        return _welcome(store, ranks, timeout_seconds)
    token = secrets.token_hex(8)
    store.set(f"hello/{rank}", token)
    store.wait([f"welcome/{token}"], timedelta(seconds=timeout_seconds))
    part = PrefixStore(store.get(f"welcome/{token}").decode(), store)
    part.set(f"here/{rank}", "")
    return part


def _welcome(store: Store, ranks: int, timeout_seconds: float) -> Store:
    """Answer every hello until all are here; what processes of other rounds left there does no harm."""
    name = f"round-{secrets.token_hex(8)}"
    part, welcomed = PrefixStore(name, store), set[str]()
    missing = list(range(1, ranks))
    deadline = time.monotonic() + timeout_seconds
    while missing:
        for rank in missing:
            if not store.check([f"hello/{rank}"]):
                continue
            token = store.get(f"hello/{rank}").decode()
            if token not in welcomed:
                store.set(f"welcome/{token}", name)
                welcomed.add(token)
        missing = [rank for rank in missing if not part.check([f"here/{rank}"])]
        if missing and time.monotonic() > deadline:
            raise RuntimeError(f"rank {missing[0]} has not come within {timeout_seconds:g} s")
        if missing:
            time.sleep(POLL_SECONDS)
    return part
