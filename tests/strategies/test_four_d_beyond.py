"""4D beyond the published algorithm: halves, gathers across blocks, blocks that keep everything."""

from __future__ import annotations

import itertools
import re
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from twin.cost.memory import memory_use
from twin.engine.simulate import simulate
from twin.schedule.kernels import Attention, Gemm
from twin.schedule.ops import Compute, Op, Start, Wait
from twin.strategies import load_job, strategy_of
from twin.strategies.four_d.halves import interleaved
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.options import BEYOND, Options
from twin.strategies.four_d.step import generate
from twin.trace.metrics import hardware_flops, job_flops

MODEL = {"layers": 4, "hidden": 256, "heads": 8, "sequence": 128, "vocabulary": 512}
HALVES = {"overlap": {"halves": True}}
ACROSS = {"overlap": {"across_blocks": True}}
DIVIDED = {"divide": {"attention": True, "mlp": True}}
FLAT = {"tensor": "1d"}
PRODUCTS = {"recompute_keeps": "products"}
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


@grids
@pytest.mark.parametrize("more", [{}, {**HALVES, **ACROSS}, DIVIDED, FLAT], ids=["", "halves", "divided", "flat"])
def test_where_products_are_kept_norms_and_activations_alone_are_computed_again(
    grid: dict[str, int], more: dict[str, Any]
) -> None:
    lean, whole = (job(grid, recompute=recompute, **more, **options) for recompute, options in KEPT)
    again = [op for _, op in generate(lean).named() if isinstance(op, Compute) and op.phase == "recompute"]
    names = Counter(op.name.rsplit("/", 1)[-1] for op in again)
    per_kind = lean.micro_steps * MODEL["layers"] * (2 if lean.overlap.halves else 1)
    assert (names["normalize"], names["gelu"]) == (2 * per_kind, per_kind)
    assert set(names) <= {"normalize", "gelu", "sort"}  # the last of columns that travel
    assert flops(lean) == flops(whole)
    assert hardware_flops(lean) == hardware_flops(whole)
    # no sum over ranks is made twice; what was divided over x is gathered twice
    twice = {key: size for key, size in (moved(lean) - moved(whole)).items() if size}
    assert set(twice) <= {("x", "all_gather")}
    assert not moved(whole) - moved(lean)


def test_products_kept_take_what_linears_and_attention_give() -> None:
    grid = {"data": 1, "z": 2, "y": 2, "x": 2}
    lean, whole = (job(grid, recompute=recompute, **options) for recompute, options in KEPT)
    tokens, hidden, bf16 = 4 * MODEL["sequence"], MODEL["hidden"], 2
    # of a block: two outputs of norms over x, one of the activation over y
    less = MODEL["layers"] * bf16 * tokens * (2 * hidden // 2 + 4 * hidden // 2)
    held = [memory_use(each).by_category["activations"] for each in (whole, lean)]
    assert held[0] - held[1] == less
    others = [memory_use(each).per_rank_bytes for each in (whole, lean)]
    assert others[0] - others[1] == less


KEPT: list[tuple[bool, dict[str, Any]]] = [(True, PRODUCTS), (False, {})]


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"published": True, **HALVES}, "overlap.halves"),
        ({"published": True, **ACROSS}, "overlap.across_blocks"),
        ({"published": True, "recompute_layers": 1}, "recompute_layers"),
        ({"recompute": False, "recompute_layers": 1}, "recompute_layers"),
        ({"published": True, **PRODUCTS}, "recompute_keeps"),
        ({"recompute": False, **PRODUCTS}, "recompute_keeps = 'products': needs recompute: true"),
        ({**PRODUCTS, "lora": {"rank": 4}}, "recompute_keeps"),
        ({**PRODUCTS, "recompute_inputs": "host"}, "recompute_inputs"),
        ({**PRODUCTS, "offload": {"activations": "host"}}, "recompute_keeps"),
        ({"recompute_keeps": "attention"}, "recompute_keeps"),
        ({"recompute_layers": 5}, "recompute_layers"),
        ({**HALVES, "batch": {"sequences": 32, "micro_sequences": 1}}, "batch.micro_sequences"),
        ({**HALVES, "ranks": 4, "grid": {"data": 1, "z": 4, "y": 1, "x": 1}}, "overlap.halves"),
        ({**HALVES, "lora": {"rank": 4}}, "overlap.halves"),
        ({"published": True, **DIVIDED}, "divide.attention"),
        ({"published": True, **FLAT}, "tensor"),
        ({**FLAT, "lora": {"rank": 4}}, "tensor"),
        ({**FLAT, **DIVIDED}, "divide.attention"),
        ({**FLAT, "model": {**MODEL, "qk_norm": True}}, "tensor"),
        ({**FLAT, "ranks": 16, "grid": GRIDS[2], "model": {**MODEL, "heads": 4}}, "tensor = '1d': cuts 4 heads"),
        ({"published": True, "divide": {"mlp": True}}, "divide.mlp"),
        ({**DIVIDED, "lora": {"rank": 4}}, "divide.mlp"),
        ({**DIVIDED, "model": {**MODEL, "qk_norm": True}}, "divide.attention"),
        (
            {**DIVIDED, "ranks": 16, "grid": GRIDS[2], "batch": SINGLE, "model": {**MODEL, "heads": 4}},
            "divide.attention = True: neither 1 sequences at a time nor 4 heads",
        ),
        (
            {
                "divide": {"mlp": True},
                "ranks": 16,
                "grid": GRIDS[2],
                "batch": SINGLE,
                "model": {**MODEL, "sequence": 100},
            },
            "divide.mlp = True: 100 tokens of a rank do not divide by x = 8",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=re.escape(key)):
        job(options.get("grid", GRIDS[0]), **{key: value for key, value in options.items() if key != "grid"})


def test_a_search_varies_them_unless_the_job_is_as_published() -> None:
    opened = job(GRIDS[0])
    over = frozenset((*BEYOND, "recompute_layers"))
    found = list(strategy_of(opened).variants(opened, over))
    assert {(o.halves, o.across_blocks) for o in found} == {(False, True), (True, True)}
    assert {o.recompute_layers for o in found} == {None, 1, 2, 3}
    found = list(strategy_of(opened).variants(opened, frozenset({"divide"})))
    assert [(o.attention, o.mlp) for o in found] == [(False, False), (False, True), (True, False), (True, True)]
    flat = job(GRIDS[1])
    assert [(o.attention, o.mlp) for o in strategy_of(flat).variants(flat, frozenset({"divide"}))] == [(False, False)]
    found = list(strategy_of(opened).variants(opened, frozenset({"tensor", "divide"})))
    assert [(o.tensor, o.attention, o.mlp) for o in found if o.tensor == "1d"] == [("1d", False, False)]
    found = list(strategy_of(opened).variants(opened, frozenset({"recompute_keeps", "recompute"})))
    kept = [(o.recompute, o.recompute_keeps) for o in found]
    assert kept == [(True, "nothing"), (True, "products"), (False, "nothing")]
    over |= {"divide", "tensor", "recompute_keeps"}
    published = job(GRIDS[0], published=True)
    assert list(strategy_of(published).variants(published, over)) == [Options.of(published)]


@settings(max_examples=40)
@given(
    halves=st.booleans(),
    across=st.booleans(),
    layers=st.none() | st.integers(1, 4),
    recompute=st.booleans(),
    divided=st.tuples(st.booleans(), st.booleans()),
    tensor=st.sampled_from(["2d", "1d"]),
    keeps=st.sampled_from(["nothing", "products"]),
)
def test_options_are_read_as_they_are_written(
    halves: bool, across: bool, layers: int | None, recompute: bool, divided: tuple[bool, bool], tensor: str, keeps: str
) -> None:
    divided = divided if tensor == "2d" else (False, False)
    described = job(
        GRIDS[0],
        recompute=recompute,
        recompute_layers=layers if recompute else None,
        recompute_keeps=keeps if recompute else "nothing",
        overlap={"halves": halves, "across_blocks": across},
        divide=dict(zip(("attention", "mlp"), divided, strict=True)),
        tensor=tensor,
    )
    options = Options.of(described)
    assert Options.read(options.as_json()) == options
    assert options.on(job(GRIDS[0])) == described.model_copy()
    raw: dict[str, Any] = {}
    options.settle(raw)
    assert Options.of(job(GRIDS[0], **raw)) == options
