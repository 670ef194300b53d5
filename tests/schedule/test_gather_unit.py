"""Gathering whole blocks over z: fewer messages, the same bytes, and nothing else moves."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.description.job import Job
from twin.engine.simulate import simulate
from twin.schedule.ops import Start, Wait
from twin.strategies.four_d.step import generate

LAYERS = 3
MODEL = {"layers": LAYERS, "hidden": 240, "heads": 60, "sequence": 32, "vocabulary": 960}
sizes = st.sampled_from([1, 2, 3])
options = st.fixed_dictionaries(
    {
        "grid": st.fixed_dictionaries(dict.fromkeys(("data", "z", "y", "x"), sizes)),
        "per_rank": st.integers(1, 2),
        "recompute": st.booleans(),
        "cache_gathered_layers": st.integers(0, LAYERS),
        "overlap": st.fixed_dictionaries(
            {
                "all_reduce": st.booleans(),
                "reduce_scatter": st.booleans(),
                "all_gather": st.booleans(),
                "prefetch_depth": st.integers(1, 5),
            }
        ),
        "data_reduction": st.fixed_dictionaries({"mode": st.sampled_from(["one_bucket", "overlapped", "sharded"])}),
    }
)
repeatable = examples(0.3, derandomize=True)


def both_units(make_job, chosen) -> tuple[Job, Job]:
    return (make_job(model=MODEL, **chosen, gather_unit="linear"), make_job(model=MODEL, **chosen, gather_unit="block"))


COPIES = ("/sort", "/mix")
"""Of the pieces of several weights, which lie interleaved."""


def travelling(name: str) -> bool:
    return name.endswith(("/all_gather_z", "/reduce_scatter_z", "/accumulate", *COPIES))


def issued(job: Job) -> list[str]:
    """Names in order, but for copies; starts are marked with > and waits with <."""
    mark = {Start: ">", Wait: "<"}
    return [mark.get(type(op), "") + name for name, op in generate(job).named() if not name.endswith(COPIES)]


def test_pieces_are_sorted_when_they_arrive_and_mixed_before_they_leave(make_job) -> None:
    """Each copy reads and writes the gathered weights of a block; one weight alone is not copied."""
    ops = list(generate(make_job({"z": 2}, model=MODEL, gather_unit="block", precision="bf16")).named())
    copies = [i for i, (name, _) in enumerate(ops) if name.endswith(COPIES)]
    assert len(copies) == 3 * LAYERS  # forward, recomputation, gradients
    for i in copies:
        (before, wait), (name, op), (after, start) = ops[i - 1 : i + 2]
        assert op.kernel.bytes == 2 * 12 * 240**2 * 2
        if name.endswith("/sort"):
            assert isinstance(wait, Wait)
            assert before == name.replace("/sort", "/all_gather_z")
        else:
            assert isinstance(start, Start)
            assert after == name.replace("/mix", "/reduce_scatter_z")


@given(chosen=options)
@repeatable
def test_each_pass_moves_the_same_bytes_over_z(make_job, chosen) -> None:
    """Of every kind, phase and micro-step: a block's messages become one of their sum."""

    def moved(job: Job) -> Counter[tuple[str, str, str, int | None]]:
        total: Counter[tuple[str, str, str, int | None]] = Counter()
        for name, op in generate(job).named():
            if isinstance(op, Start) and travelling(name):
                total[op.kind, name.split("/")[0], op.phase, op.layer] += op.bytes
        return total

    linear, block = both_units(make_job, chosen)
    assert moved(block) == moved(linear)
    assert bool(moved(block)) == (block.concrete_grid.z > 1)


@given(chosen=options)
@repeatable
def test_everything_else_stays_where_it_is(make_job, chosen) -> None:
    """Take the weights' z collectives and what adds up their results out: two schedules are one."""
    one, other = (
        [op for name, op in generate(job).named() if not travelling(name)] for job in both_units(make_job, chosen)
    )
    assert one == other


@given(chosen=options)
@repeatable
def test_gathers_run_the_prefetch_depth_ahead_in_blocks(make_job, chosen) -> None:
    """Forward: the wait is just before the block's first product, and depth units are started."""
    chosen["grid"]["z"] = 3
    _, job = both_units(make_job, chosen)
    text = issued(job)
    places = [*(f"block{layer}/weights" for layer in range(LAYERS)), "head"]
    users = [*(f"block{layer}/qkv" for layer in range(LAYERS)), "head"]
    starts = [text.index(f">micro0/fwd/{place}/all_gather_z") for place in places]
    waits = [text.index(f"<micro0/fwd/{place}/all_gather_z") for place in places]
    assert starts == sorted(starts)
    ahead = job.overlap.prefetch_depth if job.overlap.all_gather else 0
    for i, (wait, user) in enumerate(zip(waits, users, strict=True)):
        assert sum(start < wait for start in starts) == min(i + 1 + ahead, len(places))
        assert text[wait + 1] == f"micro0/fwd/{user}/gemm"


@given(chosen=options)
@repeatable
def test_a_block_is_gathered_again_where_it_is_needed_and_scattered_once(make_job, chosen) -> None:
    chosen["grid"]["z"] = 2
    _, job = both_units(make_job, chosen)
    text = issued(job)
    phase, first = ("recompute", "qkv/gemm") if job.recompute else ("bwd", "mlp_down/")
    for layer in range(LAYERS):
        own = [
            i
            for i, t in enumerate(text)
            if t.lstrip("<>").startswith("micro0/")
            and t.split("/")[1] in {"recompute", "bwd"}
            and f"/block{layer}/" in t
        ]
        at_work = [text[i] for i in own if not text[i].endswith("/accumulate")]
        gather = f"micro0/{phase}/block{layer}/weights/all_gather_z"
        cached = layer < job.cache_gathered_layers
        gathers = [t for t in at_work if "all_gather_z" in t]
        assert gathers == ([] if cached else [">" + gather, "<" + gather])
        if not cached:
            begun, awaited = at_work.index(">" + gather), at_work.index("<" + gather)
            early = job.overlap.all_gather or not job.recompute
            assert begun == (0 if early else awaited - 1), "at the entry, or where it is needed"
            assert at_work[awaited + 1].startswith(f"micro0/{phase}/block{layer}/{first}")
        scatter = f"micro0/bwd/block{layer}/weights/reduce_scatter_z"
        assert [t for t in at_work if t.startswith(">") and "scatter" in t] == [">" + scatter]
        begun = at_work.index(">" + scatter)
        assert at_work[begun - 1] == f"micro0/bwd/block{layer}/qkv/weight_gradient"
        assert text.count("<" + scatter) == 1
        if not job.overlap.reduce_scatter:
            assert at_work[begun + 1] == "<" + scatter
    if job.recompute:
        assert not [t for t in text if "/bwd/" in t and "all_gather_z" in t]


def test_the_weights_arrive_once_and_nothing_waits_inside_the_block(make_job) -> None:
    job = make_job({"z": 2}, model={**MODEL, "biases": False}, gather_unit="block")
    text = [t.replace("micro0/", "") for t in issued(job) if "/block1/" in t]
    assert [t.replace("block1/", "") for t in text] == [
        ">fwd/weights/all_gather_z",
        "fwd/norm1/normalize",
        "<fwd/weights/all_gather_z",
        "fwd/qkv/gemm",
        "fwd/attention",
        "fwd/projection/gemm",
        "fwd/residual1",
        "fwd/norm2/normalize",
        "fwd/mlp_up/gemm",
        "fwd/gelu",
        "fwd/mlp_down/gemm",
        "fwd/residual2",
        ">recompute/weights/all_gather_z",
        "recompute/norm1/normalize",
        "<recompute/weights/all_gather_z",
        "recompute/qkv/gemm",
        "recompute/attention",
        "recompute/projection/gemm",
        "recompute/residual1",
        "recompute/norm2/normalize",
        "recompute/mlp_up/gemm",
        "recompute/gelu",
        "recompute/mlp_down/gemm",
        "recompute/residual2",
        "bwd/mlp_down/weight_gradient",
        "bwd/mlp_down/input_gradient",
        "bwd/gelu",
        "bwd/mlp_up/weight_gradient",
        "bwd/mlp_up/input_gradient",
        "bwd/norm2/gradient",
        "bwd/residual2",
        "bwd/projection/weight_gradient",
        "bwd/projection/input_gradient",
        "bwd/attention",
        "bwd/pack",
        "bwd/qkv/weight_gradient",
        ">bwd/weights/reduce_scatter_z",
        "bwd/qkv/input_gradient",
        "bwd/norm1/gradient",
        "bwd/residual1",
        "<bwd/weights/reduce_scatter_z",
        "bwd/weights/accumulate",
    ]


def test_weights_that_z_does_not_divide_are_padded_one_by_one(make_job) -> None:
    """As when each travels alone, so that a rank stores the same shards: 3, 1, 4 and 4 h²."""
    job = make_job({"z": 7}, model=MODEL, gather_unit="block")
    padded = sum(-(-part * 240**2 // 7) * 7 for part in (3, 1, 4, 4))
    assert padded > 12 * 240**2
    sent = {op.bytes for name, op in generate(job).named() if isinstance(op, Start) and "/weights/" in name}
    assert sent == {2.0 * padded}


@pytest.mark.parametrize("recompute", [True, False])
def test_fewer_messages_wait_less_where_starts_are_slow(make_job, recompute) -> None:
    """These weights are so small that a collective is all start-up; a quarter as many start."""
    times = [
        simulate(job).step_seconds
        for job in (
            make_job(
                {"z": 8},
                model=MODEL,
                recompute=recompute,
                gather_unit=unit,
                overlap={"all_gather": False, "reduce_scatter": False},
            )
            for unit in ("linear", "block")
        )
    ]
    assert times[1] < times[0]
