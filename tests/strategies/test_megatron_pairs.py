"""A forward and a backward pass at once, as DualPipe runs them: the same work, each hiding what the other waits for."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.strategies.pipelined import described, ops
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.schedule.emit import Emitter
from twin.schedule.kernels import Memory
from twin.schedule.ops import Compute, Op, Wait
from twin.strategies.megatron.bodies import at_once
from twin.strategies.megatron.step import _Writer


def passes(prefix: str, pieces: list[int]) -> list[Op]:
    """So many kernels, then an exposed collective, and again."""
    emit = Emitter(prefix, "fwd")
    for number, kernels in enumerate(pieces):
        for kernel in range(kernels):
            emit.compute(f"{number}/{kernel}", Memory(1e6))
        emit.collective("all_reduce", "tensor", 1e6, f"{number}/all_reduce")
    return emit.ops


@examples()
@given(st.lists(st.integers(0, 3), max_size=6), st.lists(st.integers(0, 3), max_size=6))
def test_each_pass_keeps_its_order_and_nothing_is_lost(ahead: list[int], behind: list[int]) -> None:
    one, other = passes("F/", ahead), passes("B/", behind)
    both = at_once(one, other)
    assert [op for op in both if name(op).startswith("F/")] == one
    assert [op for op in both if name(op).startswith("B/")] == other


def name(op: Any) -> str:
    return str(op.name)


def test_where_one_would_wait_the_other_goes_on() -> None:
    """Of F: a, sum, b, sum and B: c, sum: a and its sum's start, c and its, then the wait of a."""
    both = at_once(passes("F/", [1, 1]), passes("B/", [1]))
    order = [f"{'wait ' * isinstance(op, Wait)}{name(op)}" for op in both]
    assert order == [
        *("F/0/0", "F/0/all_reduce", "B/0/0", "B/0/all_reduce"),
        *("wait F/0/all_reduce", "F/1/0", "F/1/all_reduce", "wait B/0/all_reduce"),
        "wait F/1/all_reduce",
    ]


@pytest.mark.parametrize(("schedule", "chunks"), [("dualpipe", 1), ("dualpipe_v", 2)])
def test_pairs_hide_tensor_communication(monkeypatch: Any, schedule: str, chunks: int) -> None:
    """The same kernels, less of the all-reduces exposed, a shorter step than passes one after the other."""
    grid = {"pipeline": 2, "data": 2, "tensor": 4}
    model = {"layers": 8, "hidden": 4096, "heads": 32, "sequence": 2048}
    options: dict[str, Any] = {"schedule": schedule, "chunks": chunks, "model": model}
    job = described(grid, micro_steps=8, **options)
    paired, kernels = simulate(job), sorted(key for key, op in ops(job) if isinstance(op, Compute))

    def in_turn(self: Any, ahead: Any, behind: Any) -> None:
        self._act(ahead)
        self._act(behind)

    monkeypatch.setattr(_Writer, "_act_at_once", in_turn)
    apart = simulate(job)
    assert kernels == sorted(key for key, op in ops(job) if isinstance(op, Compute))
    assert paired.step_seconds < apart.step_seconds
    exposed = [report(each).exposed_by_axis["tensor"] for each in (paired, apart)]
    assert exposed[0] < 0.8 * exposed[1]
