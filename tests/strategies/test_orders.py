"""Pipeline schedules against published bubble rates, closed forms, and what every schedule must do."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import get_args

import pytest
import yaml
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.strategies.megatron.orders import Action, Name, Replay, in_flight, order, problems, replay, stage_of

GOLDEN = yaml.safe_load((Path(__file__).parent / "data" / "zero-bubble.yaml").read_text(encoding="utf-8"))["rows"]
NAMES = get_args(Name)
RANKS = st.integers(2, 8)


@dataclass(frozen=True)
class Pipeline:
    """A schedule with its numbers; the times of a stage are for all chunks of a rank together."""

    name: Name
    ranks: int
    micro_steps: int
    chunks: int = 1
    group: int | None = None

    @property
    def orders(self) -> list[tuple[Action, ...]]:
        numbers = (self.ranks, self.micro_steps, self.chunks, self.group)
        return [order(self.name, rank, *numbers) for rank in range(self.ranks)]

    def stage(self, rank: int, chunk: int) -> int:
        return stage_of(self.name, rank, chunk, self.ranks, self.chunks)

    def replay(self, f: float = 1, i: float = 1, w: float = 1, hop: float = 0) -> Replay:
        seconds = {kind: s / self.chunks for kind, s in {"F": f, "B": i + w, "I": i, "W": w}.items()}
        return replay(self.orders, self.stage, lambda kind, _: seconds[kind], hop)

    def bubble(self, f: float, i: float, w: float) -> float:
        found = self.replay(f, i, w)
        assert found.busy == pytest.approx([self.micro_steps * (f + i + w)] * self.ranks)
        return found.cost - found.busy[0]


@st.composite
def pipelines(draw: st.DrawFn) -> Pipeline:
    """Draw what `problems` finds nothing wrong with."""
    name = draw(st.sampled_from(NAMES))
    group = draw(st.integers(2, 32)) if name == "interleaved" and draw(st.booleans()) else None
    chunks = draw(st.integers(2, 4)) if name == "interleaved" else 2 if name in {"zb_v", "dualpipe_v"} else 1
    ranks = draw(st.integers(1, 4).map(lambda half: 2 * half) if name == "dualpipe" else RANKS)
    micro_steps = draw(st.integers(1, 32))
    if name == "dualpipe":
        micro_steps = 2 * ranks + 2 * draw(st.integers(0, 8))
    elif name == "dualpipe_v":
        micro_steps += 2 * ranks - 1
    found = Pipeline(name, ranks, micro_steps, chunks, group)
    assume(not problems(name, ranks, micro_steps, chunks, group))
    return found


# Published rates


@pytest.mark.parametrize("name", ["1f1b", "zb_h1", "zb_h2"])
@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row['model']}-{row['micro_steps']}")
def test_bubble_rates_are_those_of_the_zero_bubble_paper(row, name):
    found = Pipeline(name, row["ranks"], row["micro_steps"]).replay(*row["ms"].values())
    assert round(found.bubble_rate, 4) == row["bubble_rate"][name]


@pytest.mark.parametrize("row", GOLDEN, ids=lambda row: f"{row['model']}-{row['micro_steps']}")
def test_interleaving_has_the_rates_of_the_zero_bubble_paper_but_for_some_messages(row):
    """The paper's cost has a message per rank less than the 2(vP − 1) that are waited for here; it doesn't say why."""
    found = Pipeline("interleaved", row["ranks"], row["micro_steps"], row["chunks"]).replay(*row["ms"].values())
    cost = found.cost - row["ranks"] * row["ms"]["hop"]
    assert round(1 - found.busy[0] / cost, 4) == row["bubble_rate"]["interleaved"]
    assert 0 <= found.bubble_rate - row["bubble_rate"]["interleaved"] < 0.004


# Closed forms, with free communication


@given(name=st.sampled_from(["gpipe", "1f1b", "deepspeed"]), ranks=RANKS, micro_steps=st.integers(1, 32))
@examples()
def test_gpipe_and_1f1b_wait_for_one_micro_batch_less_than_ranks(name, ranks, micro_steps):
    found = Pipeline(name, ranks, micro_steps).replay(1.7, 2.9, 0.4)
    assert found.bubble_rate == pytest.approx((ranks - 1) / (micro_steps + ranks - 1), rel=1e-9)
    assert found.cost == pytest.approx(found.seconds, rel=1e-9)


@given(ranks=RANKS, groups=st.integers(1, 4), chunks=st.integers(2, 4))
@examples()
def test_interleaving_divides_the_bubble_by_the_chunks(ranks, groups, chunks):
    found = Pipeline("interleaved", ranks, groups * ranks, chunks).replay(1.7, 2.9, 0.4)
    over = found.cost / found.busy[0] - 1
    assert over == pytest.approx((ranks - 1) / (chunks * groups * ranks), rel=1e-9)


TIMES = st.tuples(st.integers(1, 9), st.integers(1, 9), st.integers(1, 9)).filter(lambda t: t[2] <= min(t[:2]))
"""F, I and W, of which W is the shortest, as the closed forms want it."""


@given(ranks=RANKS, more=st.integers(0, 16), times=TIMES)
@examples()
def test_zb_h1_fills_bubbles_with_weight_gradients(ranks, more, times):
    f, i, w = times
    assert Pipeline("zb_h1", ranks, ranks + more).bubble(f, i, w) == pytest.approx((ranks - 1) * (f + i - w))


@given(ranks=RANKS, more=st.integers(0, 16), times=TIMES)
@examples()
def test_zb_h2_fills_twice_as_much(ranks, more, times):
    f, i, w = times
    found = Pipeline("zb_h2", ranks, 2 * ranks - 1 + more)
    assert found.bubble(f, i, w) == pytest.approx((ranks - 1) * (f + i - 2 * w))


@given(ranks=RANKS, micro_steps=st.integers(1, 32))
@examples()
def test_zb_v_has_no_bubble_if_all_times_are_equal(ranks, micro_steps):
    """From as many micro-batches as fill the way there and back; each one less costs a pass of each chunk."""
    missing = max(0, 2 * ranks - 1 - micro_steps)
    assert Pipeline("zb_v", ranks, micro_steps, 2).bubble(2, 2, 2) == pytest.approx(2.0 * missing)


@given(name=st.sampled_from(["dualpipe", "dualpipe_v"]), half=st.integers(1, 4), more=st.integers(0, 8), times=TIMES)
@examples()
def test_dualpipe_waits_as_published(name, half, more, times):
    """(P/2 − 1)(F&B + B − 3W) of P stages, where F = I, and a pair takes as long as both passes."""
    _, i, w = times
    if name == "dualpipe":
        found, scale = Pipeline(name, 2 * half, 4 * half + 2 * more), 1
    else:
        found, scale = Pipeline(name, half + 1, 2 * half + 2 + more, 2), 2
    stages = scale * found.ranks
    pair, backward = i + i + w, i + w
    assert found.bubble(scale * i, scale * i, scale * w) == pytest.approx((stages // 2 - 1) * (pair + backward - 3 * w))


# Activations held


@given(ranks=RANKS, micro_steps=st.integers(1, 32))
@examples()
def test_activations_of_one_chunk(ranks, micro_steps):
    def held(name: Name) -> list[int]:
        return [in_flight(one) for one in Pipeline(name, ranks, micro_steps).orders]

    assert held("gpipe") == [micro_steps] * ranks
    assert held("1f1b") == held("deepspeed") == [min(ranks - rank, micro_steps) for rank in range(ranks)]
    assert held("zb_h1") == [max(held("1f1b"))] * ranks
    assert held("zb_h2") == [min(2 * ranks - 1, micro_steps)] * ranks


@given(ranks=RANKS, groups=st.integers(1, 4), chunks=st.integers(2, 4))
@examples()
def test_activations_of_interleaving(ranks, groups, chunks):
    held = [in_flight(one) for one in Pipeline("interleaved", ranks, groups * ranks, chunks).orders]
    total = groups * ranks * chunks
    assert held == [min(2 * (ranks - 1 - rank) + (chunks - 1) * ranks + 1, total) for rank in range(ranks)]
    if groups > 1:
        assert held[0] / chunks == pytest.approx(ranks * (1 + (ranks - 1) / (ranks * chunks)))


@given(ranks=RANKS, more=st.integers(0, 16))
@examples()
def test_activations_of_two_chunks(ranks, more):
    v = Pipeline("zb_v", ranks, ranks + more, 2)
    assert max(map(in_flight, v.orders)) <= 2 * ranks, "half chunks: as much as 1F1B"
    assert {*map(in_flight, Pipeline("dualpipe_v", ranks, 2 * ranks + more, 2).orders)} == {2 * ranks + 1}
    even = 2 * (ranks // 2)
    assert {*map(in_flight, Pipeline("dualpipe", even, 2 * even + 2 * more).orders)} == {even + 1}


# What every schedule does


@given(pipeline=pipelines())
@examples(2)
def test_every_micro_batch_passes_every_stage_once(pipeline):
    forward, backward, weights = [], [], []
    for rank, actions in enumerate(pipeline.orders):
        for action in actions:
            piece = (pipeline.stage(rank, action.chunk), action.micro)
            forward += [piece] * (action.kind == "F")
            backward += [piece] * (action.kind in "BI")
            weights += [piece] * (action.kind in "BW")
    stages = pipeline.ranks * pipeline.chunks
    every = [(stage, micro) for stage in range(stages) for micro in range(pipeline.micro_steps)]
    assert sorted(forward) == sorted(backward) == sorted(weights) == every


@given(pipeline=pipelines(), hop=st.floats(0, 3))
@examples(2)
def test_nobody_waits_for_ever(pipeline, hop):
    found = pipeline.replay(1.3, 1.1, 0.7, hop)
    assert [len(ends) for ends in found.ends] == [len(actions) for actions in pipeline.orders]
    assert max(found.busy) <= found.cost <= found.seconds
    assert 0 <= found.bubble_rate < 1


@given(pipeline=pipelines(), hop=st.integers(0, 3))
@examples(0.5)
def test_replay_is_the_least_solution_of_the_dependencies(pipeline, hop):
    times = {"F": 2.0, "B": 3.0, "I": 2.0, "W": 1.0}
    found = replay(pipeline.orders, pipeline.stage, lambda kind, _: times[kind], hop)
    assert [list(ends) for ends in found.ends] == relaxed(pipeline, times.__getitem__, hop)


def relaxed(pipeline: Pipeline, seconds: Callable[[str], float], hop: float) -> list[list[float]]:
    """Ends of actions by letting everything end too early and putting off what contradicts a rule, until none does."""
    orders, ends = pipeline.orders, {}
    where = {
        (action.kind in "BI", action.kind == "W", pipeline.stage(rank, action.chunk), action.micro): (rank, at)
        for rank, actions in enumerate(orders)
        for at, action in enumerate(actions)
    }
    last = pipeline.ranks * pipeline.chunks - 1
    changed = True
    while changed:
        changed = False
        for rank, actions in enumerate(orders):
            at = 0
            while at < len(actions):
                span = range(at, at + 1 + actions[at].with_next)
                before = [(rank, at - 1)] if at else []
                for action in (actions[k] for k in span):
                    stage, micro = pipeline.stage(rank, action.chunk), action.micro
                    if action.kind == "F" and stage:
                        before.append(where[False, False, stage - 1, micro])
                    if action.kind in "BI":
                        before.append(where[False, False, stage, micro])
                        if stage < last:
                            before.append(where[True, False, stage + 1, micro])
                    if action.kind == "W":
                        before.append(where[True, False, stage, micro])
                start = max((ends.get(there, 0.0) + hop * (there[0] != rank) for there in before), default=0.0)
                end = start + sum(seconds(actions[k].kind) for k in span)
                for k in span:
                    changed |= ends.get((rank, k)) != end
                    ends[rank, k] = end
                at = span.stop
    return [[ends[rank, at] for at in range(len(actions))] for rank, actions in enumerate(orders)]


def test_ranks_that_wait_for_each_other_are_named():
    orders = [[Action("B", 0), Action("F", 0)], [Action("F", 0), Action("B", 0)]]
    words = "rank 0 stands before B0, which waits for the forward pass of micro-batch 0 in stage 0"
    with pytest.raises(ValueError, match=words):
        replay(orders, lambda rank, _: rank, lambda *_: 1.0)


def test_what_is_done_twice_is_named():
    with pytest.raises(ValueError, match="forward pass of micro-batch 3 in stage 0 is done twice"):
        replay([[Action("F", 3), Action("F", 3)]], lambda rank, _: rank, lambda *_: 1.0)


def test_a_pair_may_be_shorter_than_its_passes():
    both = [[Action("F", 0), Action("F", 1, with_next=True), Action("B", 0), Action("B", 1)]]
    found = replay(both, lambda rank, _: rank, lambda *_: 2.0, pair_seconds=lambda *_: 3.0)
    assert found.starts == ((0.0, 2.0, 2.0, 5.0),)
    assert found.ends == ((2.0, 5.0, 5.0, 7.0),)
    assert found.busy == (7.0,)
    assert found.bubble_rate == 0


def test_nothing_takes_no_time():
    assert replay([], lambda rank, _: rank, lambda *_: 1.0).bubble_rate == 0
    assert replay([[]], lambda rank, _: rank, lambda *_: 1.0).seconds == 0
