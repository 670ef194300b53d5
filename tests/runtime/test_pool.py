"""One test whose ranks die or hang fails alone, and says how they ended."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator

import pytest

from tests.runtime.pool import Pool, Worker

NAMED = "tests.runtime.test_pool:"


def rank_of(worker: Worker) -> int:
    return worker.rank


def one_dies(worker: Worker) -> None:
    if worker.rank == 1:
        os.abort()


def one_hangs(worker: Worker) -> int:
    if worker.rank == 0:
        time.sleep(60)
    return worker.rank


def one_fails(worker: Worker) -> None:
    if worker.rank == 1:
        raise ValueError("no such thing")


@pytest.fixture
def two() -> Iterator[Pool]:
    ranks = Pool(2, most_seconds=20.0)
    yield ranks
    ranks.close()


@pytest.mark.process
def test_ranks_that_die_hang_or_fail_are_named_and_replaced(two: Pool) -> None:
    assert two.run(f"{NAMED}rank_of", 2) == [0, 1]
    with pytest.raises(RuntimeError, match=r"one_dies.*\nrank 1 ended with exit code -6: Fatal Python error: Aborted"):
        two.run(f"{NAMED}one_dies", 2)
    assert two.run(f"{NAMED}rank_of", 2) == [0, 1]
    with pytest.raises(AssertionError, match=r"rank 1:\n(?s:.)*ValueError: no such thing"):
        two.run(f"{NAMED}one_fails", 2)
    assert two.run(f"{NAMED}rank_of", 2) == [0, 1]
    two.most_seconds = 0.5
    with pytest.raises(RuntimeError, match=r"one_hangs.*: rank 0 does not answer"):
        two.run(f"{NAMED}one_hangs", 2)
    two.most_seconds = 20.0
    assert two.run(f"{NAMED}rank_of", 2) == [0, 1]
