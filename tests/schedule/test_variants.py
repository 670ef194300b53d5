"""Schedules of SwiGLU, rotary positions and odd MLP widths against counts made by hand."""

import math

import pytest

from twin.description.job import Job
from twin.schedule.kernels import Attention, Gemm, Memory
from twin.schedule.ops import Compute, Start, Wait
from twin.strategies.four_d.step import generate
from twin.trace.metrics import model_flops

OLD = {"layers": 3, "hidden": 240, "heads": 60, "sequence": 32, "vocabulary": 960}
MODEL = {**OLD, "activation": "swiglu", "positions": "rotary", "mlp_width": 660}
GRID = {"data": 2, "z": 2, "y": 3, "x": 2}
M, E = 32, 2  # tokens of a micro-step of one sequence, bytes of a number


def computes(job: Job) -> dict[str, Gemm | Attention | Memory]:
    return {name: op.kernel for name, op in generate(job).named() if isinstance(op, Compute)}


def names(job: Job, prefix: str) -> list[str]:
    return [n.removeprefix(prefix) for n in computes(job) if n.startswith(prefix)]


@pytest.mark.parametrize("fused", [False, True])
@pytest.mark.parametrize("y", [1, 2, 3])
def test_swiglu_is_one_linear_of_twice_the_width(make_job, y, fused) -> None:
    """MLP up: h → 2·660, a gate and an up part on each rank; MLP down: 660 → h."""
    found = computes(make_job({"y": y, "x": 2}, model=MODEL, fused_elementwise=fused))
    up, down = (found[f"micro0/fwd/block1/{name}/gemm"] for name in ("mlp_up", "mlp_down"))
    assert (up.m, up.n, up.k) == (M, 1320 // y, 120)
    assert (down.m, down.n, down.k) == (M, 120, 660 // y)
    wide = M * 660 // y * E
    forward, backward = (found[f"micro0/{phase}/block1/swiglu"] for phase in ("fwd", "bwd"))
    if fused:
        assert forward.bytes == (2 + 1) * wide  # reads gate and up, writes their product
        assert backward.bytes == (3 + 2) * wide  # reads these and the gradient, writes two gradients
    else:
        # silu, then the product in its place
        assert forward.bytes == (2 + 3) * wide
        # gradient · up, times silu's slope in its place; silu, times the gradient in its place
        assert backward.bytes == (3 + 3 + 2 + 3) * wide
    assert not [name for name in found if "gelu" in name]


def test_all_reduce_of_mlp_up_carries_both_parts(make_job) -> None:
    sent = {n: op.bytes for n, op in generate(make_job({"y": 3, "x": 2}, model=MODEL)).named() if isinstance(op, Start)}
    assert sent["micro0/fwd/block0/mlp_up/all_reduce_x"] == M * 1320 // 3 * E
    assert sent["micro0/bwd/block0/mlp_up/all_reduce_y"] == M * 120 * E
    assert sent["micro0/bwd/block0/mlp_down/all_reduce_x"] == M * 660 // 3 * E


def test_gelu_reads_and_writes_one_width(make_job) -> None:
    found = computes(make_job({"y": 3}, model=OLD))
    assert found["micro0/fwd/block0/gelu"].bytes == 2 * M * 320 * E
    assert found["micro0/bwd/block0/gelu"].bytes == 3 * M * 320 * E


@pytest.mark.parametrize("recompute", [True, False])
def test_rotary_stands_beside_attention(make_job, recompute) -> None:
    """After qkv (its sum and bias) and before attention; in backward between the same two."""
    model = {**OLD, "positions": "rotary"}
    job = make_job({"x": 2, "y": 2}, model=model, recompute=recompute)
    for phase in ("fwd", "recompute") if recompute else ("fwd",):
        order = names(job, f"micro0/{phase}/block2/")
        at = order.index("rotary")
        assert order[at - 1 : at + 2] == ["qkv/bias", "rotary", "attention"]
    order = names(job, "micro0/bwd/block2/")
    at = order.index("rotary")
    assert order[at - 1 : at + 3] == ["attention", "rotary", "pack", "qkv/input_gradient"]
    turned = [k for n, k in computes(job).items() if n.endswith("rotary")]
    assert len(turned) == 3 * (3 if recompute else 2)
    # q and k, each read and written, then in halves read beside the other half, added to, and written;
    # for each a table of cosines, 4 wide, and twice one of sines, 2 wide
    assert {k.bytes for k in turned} == {2 * (5 * M * 240 // 2 * E + 32 * (4 + 2 * 2) * E)}
    fused = computes(make_job({"x": 2, "y": 2}, model=model, recompute=recompute, fused_elementwise=True))
    assert fused["micro0/fwd/block0/rotary"].bytes == 2 * (2 * M * 240 // 2 * E + 32 * (4 + 2) * E)


def test_rotary_changes_nothing_else_of_a_block(make_job) -> None:
    learned = generate(make_job(GRID, model=OLD)).ops
    turned = generate(make_job(GRID, model={**OLD, "positions": "rotary"})).ops
    left = [op for op in turned if not op.name.endswith("rotary")]
    tables = ("embedding", "replicated", "accumulate", "reduce/", "optimizer/")
    assert [op.name for op in left] == [op.name for op in learned]
    different = [a.name for a, b in zip(left, learned, strict=True) if a != b]
    assert different
    assert all(any(part in name for part in tables) for name in different)


def test_without_a_table_there_is_less_to_look_up_to_reduce_and_to_update(make_job) -> None:
    """Positions: 32 rows of 240 / 2 on each rank, replicated over z, y and data."""
    rows = 32 * 120
    jobs = [make_job(GRID, model={**OLD, "positions": kind}) for kind in ("learned", "rotary")]
    learned, rotary = ({name: op for name, op in generate(job).named() if not isinstance(op, Wait)} for job in jobs)

    def less(name: str) -> float:
        was, now = (op.bytes if isinstance(op, Start) else op.kernel.bytes for op in (learned[name], rotary[name]))
        return was - now

    assert less("reduce/replicated/all_reduce_z") == 4 * rows
    assert less("reduce/all_reduce_data") == 4 * rows
    assert less("optimizer/clip/scale") == 2 * 4 * rows
    # gradient, weight and two moments read, the last three written; fp32 weight to bf16
    assert less("optimizer/adamw") == (28 + 4 + 2) * rows
    # add positions: read the sum and the row, write it; summing their gradient: read and write
    assert less("micro0/fwd/embedding/lookup") == 3 * M * 120 * E
    # read by the sum over sequences, in fp32, which is written, read, and written into its place
    assert less("micro0/bwd/embedding/gradient") == M * 120 * E + 3 * 4 * rows


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize("activation", ["gelu", "swiglu"])
@pytest.mark.parametrize("width", [None, 660])
def test_flops_are_those_of_all_products(make_job, recompute, activation, width) -> None:
    """Per token: 2h(4h + p·w) for a block with p = 2 or 3 products of h × w, and attention 4sh."""
    model = {**OLD, "activation": activation, "mlp_width": width}
    job = make_job({"data": 2, "z": 3, "y": 2}, model=model, recompute=recompute)
    kernels = [op.kernel for op, _ in generate(job).flat() if isinstance(op, Compute)]
    counted = job.ranks * math.fsum(k.flops for k in kernels if isinstance(k, Gemm | Attention))
    w, products = width or 960, 3 if activation == "swiglu" else 2
    block = 2 * 240 * (4 * 240 + products * w) + 4 * 32 * 240
    expected = 6 * 32 * ((4 if recompute else 3) * 3 * block + 6 * 240 * 960)
    assert counted == expected
    formula = model_flops(
        sequences=6,
        sequence=32,
        layers=3,
        hidden=240,
        mlp_ratio=4,
        vocabulary=960,
        recompute=recompute,
        mlp_width=width,
        activation=activation,
    )
    assert formula == expected


def test_swiglu_of_two_thirds_the_width_costs_what_gelu_does() -> None:
    """The reason for LLaMA's odd widths: 3 · 2/3 · 4h = 2 · 4h."""
    shape = {
        "sequences": 8,
        "sequence": 64,
        "layers": 2,
        "hidden": 96,
        "mlp_ratio": 4,
        "vocabulary": 100,
        "recompute": True,
    }
    assert model_flops(**shape, mlp_width=256, activation="swiglu") == model_flops(**shape)
