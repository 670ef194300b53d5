"""DistFlashAttn's balanced schedule, against who works on what and sends what to whom, played rank by rank."""

from __future__ import annotations

from collections import Counter

import pytest

from tests.strategies.pipelined import BF16, FP32, HEADS, B, H, S, described, hidden_by, ops, started
from twin.description.problems import DescriptionError
from twin.schedule.ops import Compute

RANKS = [2, 3, 4, 5, 8]


def played(ranks: int) -> list[list[tuple[int, int, int]]]:
    """Return for each step who works on which block: worker, rank of the queries, rank of the keys.

    Rank r ≥ t takes keys of r − t to its own queries, a rank r < t queries of c + r − t to its own keys, but where that
    would be the other half of pairs of even c that the first kind of ranks has already.
    """
    steps = [[(rank, rank, rank) for rank in range(ranks)]]
    for t in range(1, ranks // 2 + 1):
        own = [(rank, rank, rank - t) for rank in range(t, ranks)]
        steps.append(own + ([] if 2 * t == ranks else [(rank, ranks + rank - t, rank) for rank in range(t)]))
    return steps


@pytest.mark.parametrize("ranks", RANKS)
def test_every_block_of_the_triangle_is_worked_on_once(ranks: int) -> None:
    """And no rank has more to do than what is written: half a block, and c/2 whole ones."""
    blocks = Counter((queries, keys) for step in played(ranks) for _, queries, keys in step)
    assert blocks == Counter({(queries, keys): 1 for queries in range(ranks) for keys in range(queries + 1)})
    units = Counter[int]()
    for worker, queries, keys in (each for step in played(ranks) for each in step):
        units[worker] += 1 if queries == keys else 2  # of causal attention over a part
    job = described({"context": ranks}, model={"sequence": S * ranks}, context_exchange="balanced", attention="flash")
    kernels = [
        op.kernel
        for name, op in ops(job)
        if name.startswith("micro1/F/block2/attention")
        and isinstance(op, Compute)
        and "attention" in name.split("/")[-1]
    ]
    assert sum(kernel.sequences for kernel in kernels) == max(units.values()) * B  # type: ignore[union-attr]
    assert {kernel.sequence_length for kernel in kernels} == {S}  # type: ignore[union-attr]


def busiest(ranks: int, backward: bool, keys: float, queries: float, rows: float) -> list[float]:
    """Return for each step what the busiest rank sends or receives: for the next one, and what came of the last."""
    steps = played(ranks)
    given = 3 * queries + rows if backward else queries
    amounts = []
    for step in range(len(steps) + 1):
        sent, received = Counter[int](), Counter[int]()

        def move(
            source: int, target: int, size: float, sent: Counter[int] = sent, received: Counter[int] = received
        ) -> None:
            sent[source] += size  # type: ignore[assignment]
            received[target] += size  # type: ignore[assignment]

        for worker, of_queries, of_keys in steps[step + 1] if step + 1 < len(steps) else []:
            if worker == of_queries:
                move(of_keys, worker, keys)
            else:
                move(of_queries, worker, given)
        for worker, of_queries, of_keys in steps[step - 1] if step > 1 else []:
            if worker != of_queries:
                move(worker, of_queries, queries if backward else queries + 2 * rows)
            elif backward:
                move(worker, of_keys, keys)
        amounts.append(max([*sent.values(), *received.values(), 0.0]))
    return amounts


@pytest.mark.parametrize("kv", [HEADS, 2])
@pytest.mark.parametrize("ranks", RANKS)
def test_a_step_takes_as_long_as_its_busiest_rank_sends_or_receives(ranks: int, kv: int) -> None:
    keys, queries = 2.0 * BF16 * B * S * kv * (H // HEADS), float(BF16 * B * S * H)
    rows = float(FP32 * B * S * HEADS)
    job = described(
        {"context": ranks},
        model={"sequence": S * ranks, "kv_heads": kv},
        context_exchange="balanced",
        attention="flash",
    )
    for kind in "FB":
        found = [op.bytes for name, op in started(job, within=f"micro1/{kind}/block2/", communicator="context")]
        assert found == [size for size in busiest(ranks, kind == "B", keys, queries, rows) if size]


def test_blocks_come_beside_those_before() -> None:
    job = described({"context": 4}, context_exchange="balanced", attention="flash")
    beside = {name for name in hidden_by(job, "micro1/F/block2/", "shift") if name.startswith("attention")}
    assert beside == {"attention0", "attention1", "attention2"}


def test_parts_lie_in_order_and_need_not_be_halved() -> None:
    described({"context": 3}, model={"sequence": 3 * 255}, context_exchange="balanced", attention="flash")
    with pytest.raises(DescriptionError, match="into 2 × context parts"):
        described({"context": 3}, model={"sequence": 3 * 255}, attention="flash")
    with pytest.raises(DescriptionError, match="into context parts"):
        described({"context": 3}, model={"sequence": 256}, context_exchange="balanced", attention="flash")
