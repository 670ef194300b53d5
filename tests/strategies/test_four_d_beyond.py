"""4D beyond the published algorithm: halves, gathers across blocks, blocks that keep everything."""

from __future__ import annotations

import itertools
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from twin.cost.memory import memory_use
from twin.engine.simulate import simulate
from twin.schedule.kernels import Attention, Gemm
from twin.schedule.ops import Compute, Op, Start, Wait
from twin.strategies import load_job
from twin.strategies.four_d.halves import interleaved
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.step import generate
from twin.trace.metrics import hardware_flops, job_flops

MODEL = {"layers": 4, "hidden": 256, "heads": 8, "sequence": 128, "vocabulary": 512}
HALVES = {"overlap": {"halves": True}}
ACROSS = {"overlap": {"across_blocks": True}}
DIVIDED = {"divide": {"attention": True, "mlp": True}}
FLAT = {"tensor": "1d"}
PRODUCTS = {"recompute_keeps": "products"}
ATTENTION = {"recompute_keeps": "attention"}
SINGLE = {"sequences": 16, "micro_sequences": 1}
GRIDS = [
    {"data": 2, "z": 2, "y": 2, "x": 2},
    {"data": 1, "z": 4, "y": 4, "x": 1},
    {"data": 1, "z": 2, "y": 1, "x": 8},
    {"data": 4, "z": 1, "y": 2, "x": 2},
]
grids = pytest.mark.parametrize("grid", GRIDS, ids=lambda grid: "x".join(map(str, grid.values())))


def job(grid: dict[str, int], **options: Any) -> FourDJob:
    replicas = grid["data"] * grid["z"]
    raw = {
        "model": MODEL,
        "machine": "dgx-h100",
        "ranks": replicas * grid["y"] * grid["x"],
        "grid": grid,
        "batch": {"sequences": 8 * replicas, "micro_sequences": 4},
        **options,
    }
    found = load_job(raw)
    assert isinstance(found, FourDJob)
    return found


def named(ops: list[Op]) -> list[str]:
    return [op.name for op in ops if isinstance(op, Compute | Start | Wait)]


def moved(found: FourDJob) -> Counter[tuple[str, str]]:
    """Bytes over each communicator, by kind; norms' sums and the loss's too."""
    total: Counter[tuple[str, str]] = Counter()
    for _, op in generate(found).named():
        if isinstance(op, Start):
            total[op.communicator, op.kind] += int(op.bytes)
    return total


def flops(found: FourDJob) -> float:
    kernels = [op.kernel for _, op in generate(found).named() if isinstance(op, Compute)]
    return sum(kernel.flops for kernel in kernels if isinstance(kernel, Gemm | Attention))


def half(draw: Any, number: int) -> list[Op]:
    """Some ops of one half: work, reductions over y and x that are waited for at once or later, and gathers."""
    ops: list[Op] = []
    for index, kind in enumerate(draw):
        name = f"{number}/{index}"
        if kind == "compute":
            ops.append(Compute(name, "fwd", Gemm(1, 1, 1, "TN")))
            continue
        ops.append(Start(name, "fwd", "all_reduce" if kind != "z_gather" else "all_gather", kind, 8.0))
        ops.append(Wait(name, "fwd"))
    return ops


KINDS = st.lists(st.sampled_from(["compute", "y", "x", "z_gather"]), max_size=12)


@given(first=KINDS, second=KINDS)
def test_each_half_keeps_its_order_and_waits_only_when_the_other_had_its_turn(first: Any, second: Any) -> None:
    halves = half(first, 0), half(second, 1)
    mixed = named(interleaved(*halves))
    for number, ops in enumerate(halves):
        assert [name for name in mixed if name.startswith(f"{number}/")] == named(list(ops))
    ops = interleaved(*halves)
    waits = [i for i, op in enumerate(ops) if isinstance(op, Wait) and not _is_gather(op, ops)]
    for i in waits:
        here = ops[i].name[0]  # type: ignore[union-attr]
        start = max(j for j in range(i) if isinstance(ops[j], Start) and ops[j].name == ops[i].name)  # type: ignore[union-attr]
        between = {name[0] for name in named(list(ops[start + 1 : i]))}
        others_left = any(name[0] != here for name in named(list(ops[start + 1 :])))
        assert between <= {"0", "1"} - {here}
        assert between or here == "0" or not others_left or start + 1 == i


def _is_gather(wait: Wait, ops: list[Op]) -> bool:
    return any(isinstance(op, Start) and op.name == wait.name and op.communicator == "z_gather" for op in ops)


def test_two_halves_take_turns_at_every_all_reduce() -> None:
    """By hand: what is started by one is waited for behind what the other does."""
    ops = {number: half(["compute", "y", "compute", "x", "compute"], number) for number in (0, 1)}
    assert named(interleaved(ops[0], ops[1])) == [
        *("0/0", "0/1", "1/0", "1/1"),  # up to where the first is waited for
        *("0/1", "0/2", "0/3", "1/1", "1/2", "1/3"),
        *("0/3", "0/4", "1/3", "1/4"),
    ]


@grids
@pytest.mark.parametrize("recompute", [True, False])
def test_halves_move_and_compute_what_the_whole_does(grid: dict[str, int], recompute: bool) -> None:
    whole, halves = (job(grid, recompute=recompute, **more) for more in ({}, HALVES))
    assert moved(halves) == moved(whole)
    assert flops(halves) == flops(whole)


@grids
@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("cached", [0, 1])
def test_gathers_across_blocks_are_the_same_in_another_order(grid: dict[str, int], recompute: bool, cached: int):
    options = {"recompute": recompute, "cache_gathered_layers": cached}
    limited, across = (job(grid, **options, **more) for more in ({}, ACROSS))
    assert sorted(map(str, generate(limited).named())) == sorted(map(str, generate(across).named()))
    without_gathers = [
        [name for name, op in generate(each).named() if not name.endswith("all_gather_z")] for each in (limited, across)
    ]
    assert without_gathers[0] == without_gathers[1]


@grids
@pytest.mark.parametrize("more", [{}, HALVES])
def test_gathers_across_blocks_are_never_slower(grid: dict[str, int], more: dict[str, Any]) -> None:
    overlap = more.get("overlap", {})
    limited, across = (
        simulate(job(grid, cuda_graphs=True, overlap={**overlap, "across_blocks": on})).step_seconds
        for on in (False, True)
    )
    assert across <= limited * (1 + 1e-9)
    if grid["z"] > 1 and grid["x"] == 1:  # else so small a gather hides behind the norm's all-reduce
        assert across < limited


@grids
@pytest.mark.parametrize("recompute", [True, False])
def test_what_is_divided_sends_a_third_less_and_attends_once(grid: dict[str, int], recompute: bool) -> None:
    """By hand: of queries, keys and values what an all-reduce carried is scattered, of attention's output gathered.

    An all-reduce moves its bytes twice: of a block and pass it was 2 · 3 · m · h/y · e, and is (3 + 1) · m · h/y · e.
    Backward it is the same, the other way round. As much as before is scattered and gathered for the activation.
    """
    whole, divided = (job(grid, recompute=recompute, **more) for more in ({}, DIVIDED))
    before, after = moved(whole), moved(divided)
    tokens, e, y = 4 * MODEL["sequence"], 2, grid["y"]
    passes = MODEL["layers"] * (2 if recompute else 1) * whole.micro_steps  # forward
    backward = MODEL["layers"] * whole.micro_steps
    width = tokens * MODEL["hidden"] // y * e
    if grid["x"] == 1:
        assert after == before
        return
    # forward: qkv 3h and MLP up 4h; backward: the projection's h and MLP down's 4h
    assert before["x", "all_reduce"] - after["x", "all_reduce"] == width * (7 * passes + 5 * backward)
    assert after["x", "reduce_scatter"] == width * (7 * passes + 5 * backward)
    assert after["x", "all_gather"] == width * (5 * passes + 7 * backward)
    assert after["y", "all_reduce"] == before["y", "all_reduce"]
    assert flops_of(divided, Attention) == pytest.approx(flops_of(whole, Attention) / grid["x"])
    assert flops_of(divided, Gemm) == flops_of(whole, Gemm)


@grids
@pytest.mark.parametrize("recompute", [True, False])
def test_flat_linears_move_the_residual_stream_alone(grid: dict[str, int], recompute: bool) -> None:
    """By hand: of a block and pass two gathers and two scatters over x of m · h, over y what was summed before."""
    whole, flat = (job(grid, recompute=recompute, **more) for more in ({}, FLAT))
    before, after = moved(whole), moved(flat)
    if grid["x"] == 1:
        assert after == before
        return
    stream = 4 * MODEL["sequence"] * MODEL["hidden"] * 2
    passes = MODEL["layers"] * (3 if recompute else 2) * whole.micro_steps
    assert after["x", "all_gather"] == after["x", "reduce_scatter"] == 2 * stream * passes
    assert after["y", "all_reduce"] == before["y", "all_reduce"]
    assert flops_of(flat, Gemm) == flops_of(whole, Gemm)
    assert flops_of(flat, Attention) == pytest.approx(flops_of(whole, Attention) / grid["x"])
    weights = [memory_use(each).by_category["weights"] for each in (whole, flat)]
    biases = 7 * MODEL["hidden"] // grid["y"]  # of qkv and MLP up, which every rank of x had whole
    assert weights[0] - weights[1] == 2 * MODEL["layers"] * (biases - biases // grid["x"])


@grids
def test_what_is_divided_keeps_less(grid: dict[str, int]) -> None:
    whole, divided = (job(grid, recompute=False, **more) for more in ({}, DIVIDED))
    held = [memory_use(each).by_category["activations"] for each in (whole, divided)]
    assert held[1] < held[0] if grid["x"] > 1 else held[1] == held[0]


def flops_of(found: FourDJob, kind: type[Gemm | Attention]) -> float:
    kernels = [op.kernel for _, op in generate(found).named() if isinstance(op, Compute)]
    return sum(kernel.flops for kernel in kernels if isinstance(kernel, kind))


@pytest.mark.parametrize(
    "more",
    [
        HALVES,
        ACROSS,
        {**HALVES, "recompute_layers": 2},
        {"recompute_layers": 1},
        DIVIDED,
        {**DIVIDED, **HALVES},
        FLAT,
        PRODUCTS,
    ],
)
def test_folded_and_every_rank_agree(more: dict[str, Any]) -> None:
    described = job(GRIDS[0], machine="frontier", **more)
    folded, unfolded = (simulate(described, engine=engine).step_seconds for engine in ("folded", "des"))
    assert folded == pytest.approx(unfolded, rel=1e-9)


def test_all_blocks_recomputed_one_by_one_is_recomputation() -> None:
    every, counted = (job(GRIDS[0], recompute=True, recompute_layers=n) for n in (None, MODEL["layers"]))
    assert list(generate(every).named()) == list(generate(counted).named())
    assert memory_use(every).by_category == memory_use(counted).by_category
    assert hardware_flops(every) == hardware_flops(counted)


def test_fewer_blocks_recomputed_take_less_time_and_more_memory() -> None:
    found = [job(GRIDS[0], recompute=n != 0, recompute_layers=n or None) for n in range(MODEL["layers"] + 1)]
    steps = [simulate(each).step_seconds for each in found]
    assert steps == sorted(steps)
    held = [memory_use(each).by_category["activations"] for each in found]
    assert held == sorted(held, reverse=True)
    counted = [hardware_flops(each) for each in found]
    assert counted[0] == pytest.approx(job_flops(found[0], recompute=False))
    for fewer, more in itertools.pairwise(counted):
        assert more > fewer
    # every block as much as another; the flops of a step's products are those of its ops
    again = [flops(each) for each in found]
    assert [b - a for a, b in itertools.pairwise(again)] == pytest.approx([again[1] - again[0]] * MODEL["layers"])
    shares = [(b - a) * job_ranks(found[0]) for a, b in itertools.pairwise(again)]
    assert [b - a for a, b in itertools.pairwise(counted)] == pytest.approx(shares, rel=0.35)  # causal or full


def job_ranks(found: FourDJob) -> int:
    return found.ranks
