"""Stretches that one class of ranks goes through alone share links with what else the class does: equal to SimPy."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest

from twin.engine import classes, des
from twin.engine import simulate as simulated
from twin.engine.program import START, Program
from twin.engine.segments import Segments
from twin.engine.setting import Setting, Timeline
from twin.strategies import load_job

RELATIVE = 1e-9
JOB: dict[str, Any] = {
    "strategy": "megatron",
    "machine": "selene",
    "precision": "bf16",
    "ranks": 128,
    "grid": {"pipeline": 2, "data": 32, "tensor": 2},
    "model": {"layers": 16, "hidden": 8192, "heads": 64, "sequence": 2048, "vocabulary": 51200},
    "batch": {"sequences": 128, "micro_sequences": 1},
    "sequence_parallel": True,
    "recompute": False,
    "distributed_optimizer": True,
    "overlap_gradients": True,
    "overlap_parameters": True,
}
"""Four tensor groups a node: gradients of the data ranks leave it by links that tensor ranks use too."""


def run(monkeypatch: pytest.MonkeyPatch, **changed: Any) -> tuple[Segments, list[Timeline], list[Timeline]]:
    """Simulate with segments, and the same setting by SimPy, op by op."""
    found: list[tuple[Segments, list[Timeline], list[Timeline]]] = []
    quick = classes.run

    def both(programs: Sequence[Program], setting: Setting, segments: Segments) -> list[Timeline]:
        timelines = quick(programs, setting, segments)
        found.append((segments, timelines, des.run(programs, setting)))
        return timelines

    monkeypatch.setattr(classes, "run", both)
    simulated.simulate(load_job({**JOB, **changed}))
    return found[0]


def same(timelines: list[Timeline], expected: list[Timeline]) -> None:
    """Compare every op of every class of ranks."""
    step = max(line.step_seconds for line in expected)
    for one, other in zip(timelines, expected, strict=True):
        for name in ("start", "end", "arrival"):
            mine, theirs = getattr(one, name), getattr(other, name)
            np.testing.assert_allclose(mine, theirs, rtol=RELATIVE, atol=RELATIVE * step, err_msg=name)
        # the share of a transfer of microseconds, as the difference of two times of the step
        np.testing.assert_allclose(one.share, other.share, rtol=1e-6)


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1", "interleaved"])
def test_gradients_on_links_of_tensor_ranks(monkeypatch: pytest.MonkeyPatch, schedule: str) -> None:
    """Beside them passes go op by op, and each slows the other; all other passes are known as a whole."""
    more = {"chunks": 2} if schedule == "interleaved" else {}
    segments, timelines, expected = run(monkeypatch, schedule=schedule, **more)
    assert "tensor" not in segments.outer
    assert segments.disturbing == {"data"}
    rows = [row for line in timelines for row in line.rows]
    assert all(row.segments for row in rows)
    assert least_share("tensor", segments, expected) < 0.9
    same(timelines, expected)


def test_what_all_ranks_await_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The norm of all gradients loads the links of tensor ranks too, when nothing else does."""
    segments, timelines, expected = run(monkeypatch, overlap_gradients=False, overlap_parameters=False)
    assert links_of("pipeline_everyone", segments) & links_of("tensor", segments)
    assert "pipeline_everyone" in segments.outer
    assert "tensor" not in segments.outer
    assert not segments.disturbing
    same(timelines, expected)


def links_of(communicator: str, segments: Segments) -> set[int]:
    """Return the links that a communicator's collectives load."""
    calls, transfers = segments.programs[0].calls, segments.setting.transfers
    of = [each for (name, _, _), each in zip(calls, transfers, strict=True) if name == communicator]
    return {resource for groups in of for transfer in groups for resource, _ in transfer.demands}


def least_share(communicator: str, segments: Segments, timelines: Sequence[Timeline]) -> float:
    """Return what links let a communicator's collectives have of their speed, where that is least."""
    found = []
    for program, line in zip(segments.programs, timelines, strict=True):
        ops = zip(program.code, program.target, strict=True)
        of = [code == START and program.calls[target][0] == communicator for code, target in ops]
        found.append(line.share[:, of].min())
    return float(min(found))
