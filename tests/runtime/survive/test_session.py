"""Rounds of processes that share one store: none reads what another round has left there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest
from torch._C._distributed_c10d import HashStore

from runtime.launch.session import own_part


def round_of(store: HashStore, ranks: int) -> list[bytes]:
    """Each rank writes a key, and reads that of its neighbour."""

    def talk(rank: int) -> bytes:
        part = own_part(store, rank, ranks, 20.0)
        assert not part.check([f"said/{rank}"]), "of another round"
        part.set(f"said/{rank}", f"{rank} of {ranks}")
        return part.get(f"said/{(rank + 1) % ranks}")

    with ThreadPoolExecutor(ranks) as pool:
        return list(pool.map(talk, range(ranks)))


def test_rounds_of_any_size_one_after_the_other():
    store = HashStore()
    for ranks in (4, 2, 4, 1, 3, 4):
        expected = [f"{(rank + 1) % ranks} of {ranks}".encode() for rank in range(ranks)]
        assert round_of(store, ranks) == expected


def test_a_rank_that_does_not_come():
    with pytest.raises(RuntimeError, match=r"rank 1 has not come within 0\.2 s"):
        own_part(HashStore(), 0, 2, 0.2)
