"""Bubbles by name: they add up to the step, and are what closed forms and a replay of dependencies say."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.strategies.bare import job, kernels_of
from twin.diagnose.pipeline import pipeline_of
from twin.engine.program import COMPUTE
from twin.engine.simulate import simulate
from twin.strategies import load_job
from twin.strategies.megatron.orders import order, replay, stage_of
from twin.trace.bubbles import Bubbles, PipelineRun, bubbles_of
from twin.trace.metrics import union_length
from twin.trace.passes import MESSAGE, NEITHER, PassName, RankOps, numbered, pass_of

F, B, I, W = 3e-3, 5e-3, 4e-3, 1e-3  # noqa: E741 - the field's letter
SECONDS = {"F": F, "B": B, "I": I, "W": W}
RANKS = st.integers(2, 6)


def ran(described: Any, **options: Any) -> PipelineRun:
    found = pipeline_of(simulate(described, **options))
    assert found is not None
    return found


def equal_stages(schedule: str, ranks: int, micro_steps: int, chunks: int = 1) -> PipelineRun:
    with kernels_of(lambda kind, _: SECONDS[kind] / chunks):
        return ran(job(schedule, ranks, micro_steps, chunks))


def span(found: PipelineRun) -> float:
    return max(float(stage.passes.end[-1]) for stage in found.stages)


@given(ranks=RANKS, micro_steps=st.integers(1, 12), schedule=st.sampled_from(["1f1b", "gpipe"]))
@examples(0.3)
def test_1f1b_waits_for_one_micro_batch_less_than_ranks(ranks: int, micro_steps: int, schedule: str) -> None:
    found = equal_stages(schedule, ranks, micro_steps)
    mean, whole = found.mean, span(found)
    assert (mean.warm_up + mean.drain) / whole == pytest.approx((ranks - 1) / (micro_steps + ranks - 1), rel=1e-9)
    assert mean.computing == pytest.approx(micro_steps * (F + B), rel=1e-9)
    assert (mean.imbalance, mean.messages, mean.exposed_in_passes) == pytest.approx((0, 0, 0), abs=1e-12)
    if schedule == "1f1b" and micro_steps >= ranks:  # by rank: the first micro-batch comes, and comes back
        for r, stage in enumerate(found.stages):
            assert stage.bubbles.warm_up == pytest.approx(r * F + (ranks - 1 - r) * B, rel=1e-9)
            assert stage.bubbles.drain == pytest.approx(r * B + (ranks - 1 - r) * F, rel=1e-9)


@given(ranks=RANKS, groups=st.integers(1, 3), chunks=st.integers(2, 4))
@examples(0.2)
def test_interleaving_divides_the_bubble_by_the_chunks(ranks: int, groups: int, chunks: int) -> None:
    mean = equal_stages("interleaved", ranks, groups * ranks, chunks).mean
    assert mean.bubble / mean.computing == pytest.approx((ranks - 1) / (chunks * groups * ranks), rel=1e-9)


@given(ranks=RANKS, more=st.integers(0, 6))
@examples(0.2)
def test_zb_h1_fills_the_drain_with_weight_gradients(ranks: int, more: int) -> None:
    """(P − 1)(F + I − W), arXiv 2401.10241."""
    mean = equal_stages("zb_h1", ranks, ranks + more).mean
    assert mean.bubble == pytest.approx((ranks - 1) * (F + I - W), rel=1e-9)


CASES = [("gpipe", 1), ("1f1b", 1), ("interleaved", 2), ("interleaved", 3), ("zb_h1", 1), ("zb_h2", 1), ("zb_v", 2)]


@given(
    case=st.sampled_from(CASES),
    ranks=st.integers(2, 5),
    groups=st.integers(1, 3),
    lengths=st.lists(st.integers(1, 9), min_size=45, max_size=45),
)
@examples(0.5)
def test_passes_are_when_dependencies_say(case: tuple[Any, int], ranks: int, groups: int, lengths: list[int]) -> None:
    """Stages of any lengths; messages cost nothing, and nobody waits where one is sent."""
    schedule, chunks = case
    micro_steps = groups * ranks

    def seconds(kind: str, stage: int) -> float:
        f, i, w = lengths[3 * stage : 3 * stage + 3]
        return 1e-4 * {"F": f, "I": i, "W": w, "B": i + w}[kind]

    with kernels_of(seconds):
        found = ran(job(schedule, ranks, micro_steps, chunks, overlap_messages=True))
    orders = [order(schedule, rank, ranks, micro_steps, chunks) for rank in range(ranks)]
    expected = replay(orders, lambda rank, chunk: stage_of(schedule, rank, chunk, ranks, chunks), seconds)
    for rank, stage in enumerate(found.stages):
        passes = stage.passes
        assert [*zip(passes.kind, passes.micro.tolist(), passes.chunk.tolist(), strict=True)] == [
            (action.kind, action.micro, action.chunk) for action in orders[rank]
        ]
        begun = passes.end - passes.computing  # a rank may stand before its first message
        np.testing.assert_allclose(begun, expected.starts[rank], atol=1e-9)
        np.testing.assert_allclose(passes.end, expected.ends[rank], atol=1e-9)
        assert stage.bubbles.computing == pytest.approx(expected.busy[rank], rel=1e-9)


@st.composite
def jobs(draw: st.DrawFn) -> Any:
    """Small real jobs: uneven stages, tensor ranks, replicas, slow ranks, all ways to send."""
    schedule, chunks = draw(st.sampled_from([*CASES, ("dualpipe", 1), ("dualpipe_v", 2)]))
    pipeline = draw(st.sampled_from([2, 4]))
    micro_steps = (2 if schedule.startswith("dualpipe") else 1) * pipeline * draw(st.integers(1, 2))
    data, tensor = draw(st.sampled_from([1, 2])), draw(st.sampled_from([1, 2]))
    stages = pipeline if schedule == "dualpipe" else pipeline * chunks
    layers = draw(st.lists(st.integers(0, 2), min_size=stages, max_size=stages).filter(sum))
    ranks = pipeline * data * tensor
    return load_job(
        {
            "strategy": "megatron",
            "model": {"layers": sum(layers), "hidden": 256, "heads": 4, "sequence": 64, "vocabulary": 512},
            "machine": "dgx-h100",
            "ranks": ranks,
            "grid": {"pipeline": pipeline, "data": data, "tensor": tensor},
            "schedule": schedule,
            "chunks": chunks,
            "stage_layers": layers,
            "batch": {"sequences": micro_steps * data, "micro_sequences": 1},
            "overlap_gradients": draw(st.booleans()),
            "stragglers": [{"rank": draw(st.integers(0, ranks - 1)), "slowdown": 1.4}] * draw(st.integers(0, 1)),
        }
    )


@given(jobs())
@examples(0.3)
def test_bubbles_add_up_to_the_step(described: Any) -> None:
    simulation = simulate(described)
    found = pipeline_of(simulation)
    assert found is not None
    numbers = (described.concrete_grid.pipeline, described.micro_steps, described.chunks)
    for stage, part in zip(found.stages, simulation.parts, strict=True):
        bubbles, actions = stage.bubbles, order(described.schedule, stage.stage, *numbers)
        assert bubbles.step == pytest.approx(simulation.step_seconds, rel=1e-12)
        assert min(bubbles.by_name().values()) >= -1e-12
        assert len(stage.passes) == len(actions) or 0 in described.stage_layers
        # computing, counted op by op: all of it but what comes behind the passes
        row = int(np.flatnonzero(part.classes == simulation.partition.rank_class[stage.rank])[0])
        program, line = part.program, part.timeline
        own = [i for i, code in enumerate(program.code) if code == 0 and program.name(i).startswith("micro")]
        assert bubbles.computing == pytest.approx(union_length((line.start[row, own], line.end[row, own])), rel=1e-9)
        assert stage.rank in part.role.ranks
    assert found.mean.step == pytest.approx(found.step_seconds, rel=1e-12)
    assert Bubbles.mean([found.stages[0].bubbles]) == found.stages[0].bubbles


def test_the_pipeline_of_the_slowest_device_is_taken() -> None:
    described = load_job(
        {
            "strategy": "megatron",
            "model": {"layers": 4, "hidden": 256, "heads": 4, "sequence": 64, "vocabulary": 512},
            "machine": "dgx-h100",
            "ranks": 16,
            "grid": {"pipeline": 4, "data": 4},
            "batch": {"sequences": 32, "micro_sequences": 1},
            "stragglers": [{"rank": 6, "slowdown": 1.5}],
        }
    )
    found = ran(described)
    assert [stage.rank for stage in found.stages] == [2, 6, 10, 14]
    assert found.stages[1].bubbles.computing > 1.3 * found.stages[2].bubbles.computing
    assert found.stages[2].bubbles.imbalance > found.stages[1].bubbles.imbalance
    assert found.as_json()["micro_batches"] == 8


def test_a_job_of_one_role_has_no_pipeline() -> None:
    assert pipeline_of(simulate(load_job("examples/tiny-gpt.yaml"))) is None


def test_names_of_passes() -> None:
    assert pass_of("micro12/W3/block0/qkv/weight_gradient") == PassName("W", 3, 12)
    assert pass_of("micro{micro}/F/embedding/lookup") == PassName("F", 0, None)
    assert pass_of("messages/micro0/B/receive") == MESSAGE
    for name in ("micro0/fwd/block1/qkv/gemm", "micro/F/x", "microx/F/", "reduce/all_reduce_data", "micro1/F"):
        assert pass_of(name) == NEITHER


def test_ops_of_a_pass_follow_each_other() -> None:
    """One with its name that comes later, such as a wait for its gradients, is not part of it."""
    found = [PassName("B", 0, 4), PassName("F", 1, None), MESSAGE, NEITHER, PassName("F", 1, 9), PassName("F", 1, None)]
    which, micro = np.array([1, 5, 2, 0, 0, 3, 1, 0, 1, 4]), np.array([7, 7, -1, -1, -1, -1, 8, 9, 7, -1])
    names, number = numbered(found, which, micro)
    assert tuple(names) == (PassName("F", 1, 7), PassName("B", 0, 4), PassName("F", 1, 8), PassName("F", 1, 9))
    assert number.tolist() == [0, 0, MESSAGE, 1, 1, NEITHER, 2, NEITHER, NEITHER, 3]
    names, number = numbered([], np.zeros(0, dtype=np.int64))
    assert (list(names), number.tolist()) == ([], [])


def test_a_step_by_hand() -> None:
    """F from 1 to 4, 1 of it exposed; a message beside it and after it; B from 7 to 9; another rank until 12."""
    ops = ["messages/micro0/F/send", "micro0/F/a", "micro0/F/b", "micro0/B/a", "reduce/x"]
    names, number = numbered([pass_of(op) for op in ops], np.arange(len(ops)))
    arrival = np.array([0.5, 1.0, 3.0, 7.0, 9.0])
    start, end = np.array([3.5, 1.0, 3.0, 7.0, 13.0]), np.array([5.0, 2.0, 4.0, 9.0, 14.0])
    collective = np.array([True, False, False, False, True])
    ran_ops = RankOps(names, number, ~collective, collective, arrival, start, end)
    assert bubbles_of(ran_ops, last=12.0, step=15.0) == Bubbles(
        computing=4.0, exposed_in_passes=1.0, warm_up=1.0 + 2.0, imbalance=0.0, drain=3.0, messages=1.0, end_of_step=3.0
    )


@pytest.mark.parametrize(("schedule", "chunks"), [("dualpipe", 1), ("dualpipe_v", 2)])
def test_passes_at_once_are_counted_once(schedule: str, chunks: int) -> None:
    """Parts add up to the step, computing is the time in which kernels run, and pairs have two sides."""
    model = {"layers": 4, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 4096}
    described = load_job(
        {
            "strategy": "megatron",
            "model": model,
            "machine": "dgx-h100",
            "ranks": 4,
            "grid": {"pipeline": 2, "tensor": 2},
            "schedule": schedule,
            "chunks": chunks,
            "batch": {"sequences": 16, "micro_sequences": 2},
            "recompute": False,
        }
    )
    simulation = simulate(described)
    found = pipeline_of(simulation)
    assert found is not None
    for stage, part in zip(found.stages, simulation.parts, strict=True):
        assert stage.bubbles.step == pytest.approx(simulation.step_seconds, rel=1e-9)
        in_passes = np.array([not isinstance(pass_of(part.program.name(i)), int) for i in range(len(part.program))])
        compute = in_passes & (np.asarray(part.program.code) == COMPUTE)
        times = part.timeline.start[0][compute], part.timeline.end[0][compute]
        assert stage.bubbles.computing == pytest.approx(union_length(times), rel=1e-9)
        sides = stage.passes.side.tolist()
        assert sides.count(1) == sides.count(2) > 0
        assert len(stage.passes) == len(
            set(zip(stage.passes.kind, stage.passes.micro, stage.passes.chunk, strict=True))
        )
