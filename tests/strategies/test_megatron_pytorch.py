"""Flavour torch below a pipeline: ranks do what PyTorch's do, in its order; what that order cannot be is refused."""

from __future__ import annotations

import re
from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.strategies.pipelined import BF16, FP32, described, ops, parameters, started
from twin.description.problems import DescriptionError
from twin.engine.simulate import simulate
from twin.schedule.ops import Copy, Start, Wait
from twin.search.floors import Pieces
from twin.strategies import strategy_of
from twin.strategies.megatron.orders.pytorch import Operation
from twin.strategies.megatron.place import Pipeline

CHUNKS = {"gpipe": 1, "1f1b": 1, "interleaved": 2, "zb_h1": 1, "zb_v": 2, "dualpipe_v": 2}


def torch_job(schedule: str, grid: dict[str, int], **options: Any) -> Any:
    options = {"chunks": CHUNKS[schedule], "micro_steps": 2 * grid["pipeline"], **options}
    stages = grid["pipeline"] * options["chunks"]
    return described(grid, flavour="torch", schedule=schedule, model={"layers": stages}, **options)


def done(job: Any, rank: int) -> list[Operation]:
    """Read what a rank does out of the names of its ops."""
    chunks = {stage.number: stage.chunk for stage in Pipeline(job).stages(rank)}
    found = [one for name, op in ops(job, rank) if (one := said(name, op, chunks)) is not None]
    return [one for one, _ in groupby(found)]


def said(name: str, op: Any, chunks: dict[int, int]) -> Operation | None:
    waits = isinstance(op, Wait)
    if message := re.fullmatch(r"messages/micro(\d+)/([FB])(\d*)/(send|receive)", name):
        micro, kind, chunk, way = message.groups()
        does = {"send": "sent", "receive": "received"}[way] if waits else way
        return Operation(does, kind, int(chunk or 0), int(micro))  # type: ignore[arg-type]
    if gather := re.match(r"fwd/stage(\d+)", name):
        does = "unshard" if isinstance(op, Start) else "unsharded"
        return Operation(does, chunk=chunks[int(gather[1])])  # type: ignore[arg-type]
    if reduction := re.match(r"reduce/stage(\d+)", name):
        return Operation("reduce", chunk=chunks[int(reduction[1])])
    if made := re.match(r"micro(\d+)/([FBIW])(\d*)/", name):
        micro, kind, chunk = made.groups()
        return Operation("pass", kind, int(chunk or 0), int(micro))  # type: ignore[arg-type]
    return None


JOBS = st.tuples(
    st.sampled_from(list(CHUNKS)), st.sampled_from([2, 3, 4]), st.integers(1, 3), st.sampled_from([1, 2]), st.booleans()
)


@given(JOBS)
@examples(0.5)
def test_a_rank_does_what_pytorch_does(drawn: tuple[str, int, int, int, bool]) -> None:
    schedule, pipeline, times, data, several = drawn
    options: dict[str, Any] = {"micro_steps": pipeline * (times + (schedule == "dualpipe_v"))}
    if schedule == "interleaved" and several:
        options["chunks"] = 5
    job = torch_job(schedule, {"pipeline": pipeline, "data": data}, **options)
    for rank in range(pipeline):
        expected = [one for one in Pipeline(job).operations(rank) if one.does != "reshard"]
        if data == 1:
            expected = [one for one in expected if one.does not in ("unshard", "unsharded", "reduce")]
        assert done(job, rank) == expected


@pytest.mark.parametrize("schedule", ["interleaved", "zb_h1", "zb_v", "dualpipe_v"])
def test_units_of_a_stage_are_gathered_and_reduced_in_the_order_of_modules(schedule: str) -> None:
    """Embedding, blocks, head; all gathers are under way before the first is waited for."""
    chunks = CHUNKS[schedule]
    options: dict[str, Any] = {
        "chunks": chunks,
        "micro_steps": 4,
        "model": {"layers": 4 * chunks},
        "schedule": schedule,
    }
    job = described({"pipeline": 2, "data": 2}, flavour="torch", **options)
    for rank in range(2):
        for stage in Pipeline(job).stages(rank):
            parts = [f"block{number}" for number in stage.layers]
            parts = ["embedding"] * stage.first + parts + ["head"] * stage.last
            gathers = [
                (name.split("/")[2], op)
                for name, op in ops(job, rank)
                if name.startswith(f"fwd/stage{stage.number}/") and isinstance(op, Start | Wait)
            ]
            assert [part for part, op in gathers if isinstance(op, Start)] == parts
            assert [part for part, op in gathers if isinstance(op, Wait)] == parts
            assert all(isinstance(op, Start) for _, op in gathers[: len(parts)])
            left = [name.split("/")[2] for name, _ in started(job, rank, within=f"reduce/stage{stage.number}/")]
            assert left == parts


def test_stages_beyond_three_are_gathered_again() -> None:
    """Of three chunks a rank each weight travels once a step, of five some do more often; three are held at most."""
    sent = {}
    for chunks in (3, 5):
        job = torch_job("interleaved", {"pipeline": 2, "data": 2}, chunks=chunks)
        psi = [parameters(1, ends=ends) for ends in ("first", *["none"] * (chunks - 1))]
        sent[chunks] = sum(op.bytes for _, op in started(job, communicator="data_gather")) / (BF16 * sum(psi))
        strategy = strategy_of(job)
        held = strategy.memory(job, strategy.roles(job)[0])
        assert held["gathered weights"] == BF16 * sum(psi[:3])
        assert held["gradients"] == FP32 * -(-sum(psi) // 2)
        # whole until they are reduced, and a block on its way
        assert held["buffers"] == FP32 * sum(psi) + (BF16 + FP32) * psi[1]
    assert sent[3] == 1 < sent[5]


def test_a_stage_holds_whole_gradients_of_a_single_micro_step_too() -> None:
    """FSDP2 is given them at the end of a stage's passes, however many there are."""
    held = []
    for micro_steps in (1, 4):
        job = torch_job("zb_h1", {"pipeline": 2, "data": 2}, micro_steps=micro_steps)
        strategy = strategy_of(job)
        held.append(strategy.memory(job, strategy.roles(job)[0])["buffers"])
    assert held[0] == held[1] > FP32 * parameters(1, ends="first")


def test_what_unshard_gathered_is_not_gathered_by_the_pass() -> None:
    """With reshard_after_forward a stage's first pass finds its weights; all others gather them."""
    job = torch_job("interleaved", {"pipeline": 2, "data": 2}, reshard_after_forward=True)
    names = [name for name, _ in started(job, communicator="data_gather")]
    passes = {name.split("/block")[0] for name in names if name.startswith("micro")}
    assert not {"micro0/F0", "micro0/F1"} & passes
    assert passes >= {"micro1/F0", "micro1/F1", "micro0/B0", "micro0/B1"}
    assert sum(name.startswith("fwd/") for name in names) == 3  # two blocks and the table of tokens


@pytest.mark.parametrize("schedule", CHUNKS)
def test_an_older_pytorch_reduces_before_it_sends(schedule: str) -> None:
    """Inside the last backward pass of a stage; now behind its message, if that pass sends one. Passes gathered."""
    jobs = [torch_job(schedule, {"pipeline": 2, "data": 2}, reduces_before_sending=early) for early in (True, False)]
    old, new = ([one for one in done(job, 1) if not one.does.startswith("unshard")] for job in jobs)
    assert [one for one in old if one.does != "reduce"] == [one for one in new if one.does != "reduce"]
    gathers = [name for name, _ in started(jobs[0], 1, communicator="data_gather")]
    assert gathers
    assert all(name.startswith("micro0/F") for name in gathers)
    before = [one for one, after in pairwise(old) if after.does == "reduce"]
    assert all(one.does == "pass" and one.kind in ("B", "W") for one in before)
    assert (old == new) is (schedule in ("zb_h1", "zb_v", "dualpipe_v"))  # where weight gradients come last


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("schedule", ["zb_h1", "zb_v", "dualpipe_v"])
def test_floors_of_split_schedules_are_below_the_step(schedule: str, recompute: bool) -> None:
    """Whose receives stand where a sender of another rank is."""
    model = {"layers": 8, "hidden": 2048, "sequence": 2048}
    options: dict[str, Any] = {"schedule": schedule, "chunks": CHUNKS[schedule], "recompute": recompute}
    job = described({"pipeline": 4, "tensor": 2}, micro_steps=8, flavour="torch", model=model, **options)
    strategy = strategy_of(job)
    small = strategy.rehearsal(job)
    assert small is not None
    step = simulate(job).step_seconds
    assert 0.5 * step < strategy.floor_seconds(job, Pieces(simulate(small))) <= step


def test_a_pair_of_dualpipe_is_one_pass_after_the_other() -> None:
    """Each waits for its own message before it computes, and both messages leave behind the second."""
    job = torch_job("dualpipe_v", {"pipeline": 2}, micro_steps=8)
    actions = Pipeline(job).actions(0)
    assert any(action.with_next for action in actions)
    passes = [(one.kind, one.micro, one.chunk) for one in done(job, 0) if one.does == "pass"]
    assert passes == [action[:3] for action in actions]


@pytest.mark.parametrize("schedule", CHUNKS)
def test_long_pipelines_share_their_messages(schedule: str) -> None:
    """Twice the micro-batches double neither bodies of passes nor those of messages."""
    counts = []
    for times in (8, 16):
        job = torch_job(schedule, {"pipeline": 4, "data": 2}, micro_steps=4 * times)
        strategy = strategy_of(job)
        schedule_of_rank = strategy.schedule(job, strategy.roles(job)[1])
        counts.append(len({id(op.body) for op in schedule_of_rank.ops if isinstance(op, Copy)}))
        simulate(job)
    assert 0 < counts[1] <= counts[0]


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "groups of others": (
        {"schedule": "interleaved", "chunks": 2, "micro_steps": 4, "micro_group": 4},
        r"micro_group.*2 groups of 2",
    ),
    "uneven rounds": ({"schedule": "interleaved", "chunks": 2, "micro_steps": 5}, r"batch\.micro_sequences.*2 rounds"),
    "uneven rounds of ZB-H1": ({"schedule": "zb_h1", "micro_steps": 7}, r"batch\.micro_sequences.*multiple of 2"),
    "short 1F1B": ({"schedule": "1f1b", "micro_steps": 1}, r"needs a micro-batch per pipeline rank, 2"),
    "messages beside compute": ({"schedule": "1f1b", "overlap_messages": True}, r"overlap_messages.*leave it out"),
    "messages waited for": ({"schedule": "interleaved", "chunks": 2, "overlap_messages": False}, "overlap_messages"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_pytorch_refuses_is_refused(case: str) -> None:
    options, match = BAD[case]
    with pytest.raises(DescriptionError, match=match):
        described({"pipeline": 2}, flavour="torch", **options)


def test_groups_are_those_of_its_rounds() -> None:
    """Ten micro-batches over four ranks: two rounds of five, which Megatron takes only if told so."""
    options: dict[str, Any] = {"schedule": "interleaved", "chunks": 2, "micro_steps": 10, "model": {"layers": 8}}
    job = described({"pipeline": 4}, flavour="torch", **options)
    same = described({"pipeline": 4}, micro_group=5, **options)
    assert [Pipeline(job).actions(rank) for rank in range(4)] == [Pipeline(same).actions(rank) for rank in range(4)]
    with pytest.raises(DescriptionError, match="micro_group"):
        described({"pipeline": 4}, **options)
