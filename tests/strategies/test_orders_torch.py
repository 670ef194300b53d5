"""The same schedules in PyTorch, which writes them down without any process."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from twin.strategies.megatron.orders import Name, order, stage_of

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")


def ours(name: Name, rank: int, ranks: int, micro_steps: int, chunks: int = 1, group: int | None = None) -> list[str]:
    actions = order(name, rank, ranks, micro_steps, chunks, group)
    names = [f"{stage_of(name, rank, a.chunk, ranks, chunks)}{a.kind}{a.micro}" for a in actions]
    return paired(names, [a.with_next for a in actions])


def paired(names: list[str], with_next: list[bool]) -> list[str]:
    return [f"{name}&" if pair else name for name, pair in zip(names, with_next, strict=True)]


def theirs(actions: list[Any]) -> list[str]:
    found: list[str] = []
    for action in actions:
        parts = [] if action is None else action.sub_actions or [action]
        names = [f"{part.stage_index}{part.computation_type.value}{part.microbatch_index}" for part in parts]
        found += paired(names, [len(names) > 1, False][: len(names)])
    return [name for name in found if "REDUCE" not in name]


def made(which: str, ranks: int, micro_steps: int, chunks: int = 1) -> Any:
    """What the methods that write a schedule down read of it."""
    rounds = max(1, micro_steps // ranks)
    return getattr(schedules, which), SimpleNamespace(
        pp_group_size=ranks,
        n_local_stages=chunks,
        num_stages=ranks * chunks,
        _num_stages=ranks * chunks,
        _n_microbatches=micro_steps,
        number_of_rounds=rounds,
        microbatches_per_round=micro_steps // rounds,
    )


SIZES = [(2, 2), (2, 7), (4, 4), (4, 8), (4, 12), (5, 17), (8, 16), (8, 24)]


@pytest.mark.parametrize(("ranks", "micro_steps"), SIZES)
@pytest.mark.parametrize(("name", "which"), [("1f1b", "Schedule1F1B"), ("gpipe", "ScheduleGPipe")])
def test_one_stage_per_rank(name, which, ranks, micro_steps):
    kind, self = made(which, ranks, micro_steps)
    table = kind._get_pipeline_order(self)
    for rank in range(ranks):
        expected = theirs(table[rank])
        if name == "1f1b" and rank == ranks - 1:  # 2.13 numbers these forward passes from 1, backward passes from 0
            assert expected[0] == f"{rank}F1"
            expected = [f"{rank}F{int(one.split('F')[1]) - 1}" if "F" in one else one for one in expected]
        assert ours(name, rank, ranks, micro_steps) == expected


@pytest.mark.parametrize(("ranks", "micro_steps"), [(2, 2), (2, 6), (4, 4), (4, 8), (4, 10), (5, 12), (8, 16), (8, 20)])
@pytest.mark.parametrize("chunks", [2, 3])
def test_interleaving(ranks, micro_steps, chunks):
    """PyTorch's groups are as many as fit, and of equal size: Megatron's with a `group` of that size."""
    kind, self = made("ScheduleInterleaved1F1B", ranks, micro_steps, chunks)
    group = self.microbatches_per_round
    for rank in range(ranks):
        table = kind._calculate_single_rank_operations(self, rank)
        assert ours("interleaved", rank, ranks, micro_steps, chunks, group) == theirs(table)


@pytest.mark.parametrize(("ranks", "micro_steps"), [*SIZES, (4, 1), (8, 5)])
def test_zero_bubble(ranks, micro_steps):
    kind, self = made("ScheduleInterleavedZeroBubble", ranks, micro_steps)
    for rank in range(ranks):
        table = kind._calculate_single_rank_operations(self, rank)
        assert ours("zb_h1", rank, ranks, micro_steps) == theirs(table)


@pytest.mark.parametrize(("ranks", "micro_steps"), [*SIZES, (4, 1), (8, 5)])
def test_zero_bubble_in_a_v(ranks, micro_steps):
    kind, self = made("ScheduleZBVZeroBubble", ranks, micro_steps, 2)
    for rank in range(ranks):
        table = kind._calculate_single_rank_operations(self, rank)
        assert ours("zb_v", rank, ranks, micro_steps, 2) == theirs(table)


@pytest.mark.parametrize(("ranks", "micro_steps"), [(2, 4), (2, 7), (3, 6), (4, 8), (4, 13), (8, 16), (8, 24)])
def test_dualpipe_in_a_v(ranks, micro_steps):
    kind, self = made("ScheduleDualPipeV", ranks, micro_steps, 2)
    for rank in range(ranks):
        table = kind._calculate_single_rank_operations(self, rank)
        assert ours("dualpipe_v", rank, ranks, micro_steps, 2) == theirs(table)
