"""Totals of the schedule against closed forms: sections 2, 7 and 8 of the algorithm.

The closed forms are written out here from the algorithm's text, never from the generator.
"""

import math

import pytest

from twin.description.job import Job
from twin.schedule.kernels import Attention, Gemm
from twin.schedule.ops import Compute, Start
from twin.strategies import load_job
from twin.strategies.four_d.step import generate
from twin.trace.metrics import model_flops

MODEL = {"layers": 3, "hidden": 240, "heads": 60, "sequence": 32, "vocabulary": 960}
LINEARS = {  # name: (n / hidden, k / hidden, transposed)
    "qkv": (3, 1, False),
    "projection": (1, 1, True),
    "mlp_up": (4, 1, False),
    "mlp_down": (1, 4, True),
}
GRIDS = [
    {},
    {"x": 2},
    {"y": 3},
    {"z": 4},
    {"data": 5},
    {"x": 4, "y": 2},
    {"data": 2, "z": 2, "y": 2, "x": 2},
    {"data": 3, "z": 5, "y": 2, "x": 3},
]
grids = pytest.mark.parametrize("grid", GRIDS, ids=str)
both = pytest.mark.parametrize("recompute", [True, False], ids=["recompute", "keep"])


def starts(job: Job) -> list[tuple[str, Start]]:
    return [(name, op) for name, op in generate(job).named() if isinstance(op, Start)]


def ring_bytes(op: Start, size: int) -> float:
    """Bytes that a ring moves past each rank: (p − 1)/p of the buffer, twice for an all-reduce."""
    return (2 if op.kind == "all_reduce" else 1) * op.bytes * (size - 1) / size


def counted_flops(job: Job) -> float:
    """Matrix products and attention of all ranks together."""
    kernels = [op.kernel for op, _ in generate(job).flat() if isinstance(op, Compute)]
    return job.ranks * math.fsum(k.flops for k in kernels if isinstance(k, Gemm | Attention))


def section_8(job: Job) -> float:
    """F = 96 · B · s · l · h² · (1 + s/(6h) + V/(16·l·h)) with recomputation.

    Without it 72, and V/(12·l·h): the head is never recomputed, so its share of the sum grows.
    """
    sequences, m = job.batch.sequences, job.model
    s, layers, h, v = m.sequence, m.layers, m.hidden, m.vocabulary
    bracket = 1 + s / (6 * h) + v / ((16 if job.recompute else 12) * layers * h)
    return (96 if job.recompute else 72) * sequences * s * layers * h**2 * bracket


@grids
@both
@pytest.mark.parametrize("vocabulary", [960, 1001])
def test_flops_are_the_exact_count_and_section_8(make_job, grid, recompute, vocabulary) -> None:
    """Section 8 is exact with recomputation, but for attention on every x rank and padding.

    A block's products are 24·B·s·h² flops forward and twice that backward, attention 4·B·s²·h
    and twice that; both run forward again if recomputed. The head is never recomputed:
    6·B·s·h·V.
    """
    model = {**MODEL, "vocabulary": vocabulary}
    job = make_job(grid, model=model, per_rank=4, micro_sequences=2, recompute=recompute)
    x, y = job.concrete_grid.x, job.concrete_grid.y
    sequences, s, h, layers = job.batch.sequences, 32, 240, 3
    padded = math.ceil(vocabulary / y) * y
    passes = 4 if recompute else 3
    attention = 4 * sequences * s**2 * h * layers  # once over all heads
    exact = passes * (24 * sequences * s * layers * h**2 + attention * x) + 6 * sequences * s * h * padded
    assert counted_flops(job) == exact
    left_out = passes * attention * (x - 1) + 6 * sequences * s * h * (padded - vocabulary)
    assert counted_flops(job) - left_out == pytest.approx(section_8(job), rel=1e-12)


@pytest.mark.parametrize("name", ["gpt-5b", "gpt-40b", "gpt-320b"])
@both
def test_published_models_need_the_flops_of_section_8(name, recompute) -> None:
    described = {
        "model": name,
        "machine": "frontier",
        "ranks": 64,
        "grid": {"z": 64},
        "recompute": recompute,
        "batch": {"sequences": 64, "micro_sequences": 1},
    }
    job = load_job(described)
    assert counted_flops(job) == pytest.approx(section_8(job), rel=1e-12)
    formula = flops_of(job)
    assert formula == pytest.approx(section_8(job), rel=1e-12)


@both
@pytest.mark.parametrize("mlp_ratio", [2, 3, 8])
def test_flops_of_other_mlp_widths_are_those_of_the_schedule(make_job, mlp_ratio, recompute) -> None:
    model = {**MODEL, "vocabulary": 960, "mlp_ratio": mlp_ratio}
    job = make_job({"data": 2, "z": 2}, model=model, per_rank=2, recompute=recompute)
    assert flops_of(job) == pytest.approx(counted_flops(job), rel=1e-12)


def flops_of(job: Job) -> float:
    """What the reports divide by the step time."""
    m = job.model
    return model_flops(
        sequences=job.batch.sequences,
        sequence=m.sequence,
        layers=m.layers,
        hidden=m.hidden,
        mlp_ratio=m.mlp_ratio,
        vocabulary=m.vocabulary,
        recompute=job.recompute,
    )


@grids
@both
def test_each_linear_moves_the_bytes_of_section_7(make_job, grid, recompute) -> None:
    job = make_job(grid, model=MODEL, per_rank=6, micro_sequences=2, recompute=recompute)
    g = job.concrete_grid
    m, h, e = 2 * 32, 240, 2
    moved: dict[tuple[str, str, str], float] = {}
    for name, op in starts(job):
        micro, phase, *_, linear, what = name.split("/") if name.count("/") == 4 else [""] * 5
        if micro and linear in LINEARS:
            key = (linear, phase, what)
            moved[key] = moved.get(key, 0.0) + ring_bytes(op, g.size(op.axis))
    expected: dict[tuple[str, str, str], float] = {}
    for linear, (wide, deep, transposed) in LINEARS.items():
        n, k = wide * h, deep * h
        (c, gc), (o, go) = (("y", g.y), ("x", g.x)) if transposed else (("x", g.x), ("y", g.y))
        for phase in ("fwd", "recompute" if recompute else "bwd"):
            gather = (g.z - 1) * k * n / (g.x * g.y * g.z)
            expected[linear, phase, "all_gather_z"] = gather
        for phase in ("fwd", "recompute") if recompute else ("fwd",):
            expected[linear, phase, f"all_reduce_{c}"] = 2 * (gc - 1) / gc * m * n / go
        expected[linear, "bwd", f"all_reduce_{o}"] = 2 * (go - 1) / go * m * k / gc
        expected[linear, "bwd", "reduce_scatter_z"] = (g.z - 1) / g.z * k * n / (g.x * g.y)
    in_step = {key: 3 * 3 * e * size for key, size in expected.items() if size}  # layers, micros
    assert moved == pytest.approx(in_step, rel=1e-12)


@grids
@both
@pytest.mark.parametrize("biases", [True, False], ids=["biases", "plain"])
def test_nothing_else_is_moved(make_job, grid, recompute, biases) -> None:
    """All bytes of every axis: linears, norms' and loss's small sums, replicated, clipping."""
    model = {**MODEL, "biases": biases}
    job = make_job(grid, model=model, per_rank=6, micro_sequences=3, recompute=recompute)
    g, micros, layers = job.concrete_grid, 2, 3
    m, h, e, v = 3 * 32, 240, 2, 960
    again = 2 if recompute else 1
    norms = 2 * layers * (again + 1) + 2
    buffers = {  # what the all-reduces of one micro-step carry, in bytes
        "x": e * layers * m * (again * (3 + 4) * h / g.y + (1 + 4) * h / g.y) + e * m * v / g.y + norms * 2 * m * 4,
        "y": e * layers * m * (again * (1 + 1) * h / g.x + (1 + 1) * h / g.x) + e * m * h / g.x + 3 * m * 4,
    }
    matrices = (layers * 12 * h**2 + v * h) / (g.x * g.y * g.z)
    vectors = layers * (2 * h / g.x * (2 if biases else 1)) + h / g.x * (2 if biases else 1)
    if biases:
        vectors += layers * (3 * h / g.y + h / g.x + 4 * h / g.y + h / g.x)
    vectors += (v + 32) * h / g.x
    expected = {axis: 2 * (size - 1) / size * (micros * buffers[axis] + 4) for axis, size in (("x", g.x), ("y", g.y))}
    # the loss is one more element behind what is replicated, and behind all gradients
    gathers = layers * 12 * h**2 * 2 + v * h  # the head's weight is kept for its backward
    scatters = layers * 12 * h**2 + v * h
    share = (g.z - 1) / g.z
    expected["z"] = share * (micros * e * (gathers + scatters) / (g.x * g.y) + 2 * (4 * (vectors + 1) + 4))
    expected["data"] = 2 * (g.data - 1) / g.data * 4 * (matrices + vectors + 1)
    found = dict.fromkeys(expected, 0.0)
    for _, op in starts(job):
        assert g.size(op.axis) > 1, "a group of one has nothing to say"
        found[op.axis] += ring_bytes(op, g.size(op.axis))
    assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("mode", ["one_bucket", "overlapped", "sharded", "sharded_overlapped"])
@pytest.mark.parametrize("data", [2, 7])
def test_data_axis_moves_every_gradient_once(make_job, mode, data) -> None:
    """AR_data: 2 (G − 1)/G of all gradients in fp32; sharded: half of it, and bf16 weights back.

    The loss is one more element; where states are sharded it and the norm also travel alone. In buckets, here of one
    block each and of what is replicated, each is padded.
    """
    job = make_job(
        {"data": data, "z": 2, "x": 2},
        model=MODEL,
        clip_gradients=False,
        data_reduction={"mode": mode, "bucket_bytes": "64 KiB"},
    )
    h, layers, v = 240, 3, 960
    elements = (layers * 12 * h**2 + v * h) // 4  # over z and x
    elements += layers * (4 * h // 2 + 3 * h + h // 2 + 4 * h + h // 2) + 2 * h // 2
    elements += (v + 32) * h // 2 + 1
    found = sum(ring_bytes(op, data) for _, op in starts(job) if op.axis == "data")
    share = (data - 1) / data
    if mode == "sharded":
        padded = math.ceil(elements / data) * data
        assert found == pytest.approx(share * (padded * (4 + 2) + 2 * (4 + 4)), rel=1e-12)
    elif mode == "sharded_overlapped":
        head, block = v * h // 4, 12 * h**2 // 4
        buckets = [head, *[block] * layers, elements - head - layers * block]
        padded = sum(math.ceil(size / data) * data for size in buckets)
        assert found == pytest.approx(share * (padded * (4 + 2) + 2 * (4 + 4)), rel=1e-12)
    else:
        assert found == pytest.approx(2 * share * elements * 4, rel=1e-12)


@pytest.mark.parametrize("z", [1, 2, 3])
@both
@pytest.mark.parametrize("cached", [0, 1, 3])
@pytest.mark.parametrize("depth", [None, 1, 3])
def test_gathers_and_scatters_of_each_linear(make_job, z, recompute, cached, depth) -> None:
    """Section 2: 1 forward + 1 for recomputation or backward unless cached; 1 reduce-scatter."""
    overlap = {"all_gather": depth is not None, "prefetch_depth": depth or 1}
    job = make_job(
        {"z": z, "x": 2}, model=MODEL, per_rank=2, recompute=recompute, cache_gathered_layers=cached, overlap=overlap
    )
    issued = starts(job)
    for micro in (0, 1):
        for layer in range(3):
            for linear in LINEARS:
                own = [(n, o) for n, o in issued if n.startswith(f"micro{micro}/") and f"/block{layer}/{linear}/" in n]
                gathers = [n.split("/")[1] for n, o in own if o.kind == "all_gather"]
                again = [] if layer < cached else ["recompute" if recompute else "bwd"]
                assert gathers == (["fwd", *again] if z > 1 else [])
                scatters = [n.split("/")[1] for n, o in own if o.kind == "reduce_scatter"]
                assert scatters == (["bwd"] if z > 1 else [])
        head = [o.kind for n, o in issued if n.startswith(f"micro{micro}/") and "/head/" in n and o.axis == "z"]
        assert head == (["all_gather", "reduce_scatter"] if z > 1 else [])


def test_weights_that_z_does_not_divide_are_padded_a_little(make_job) -> None:
    """Each gathered buffer is a multiple of z elements, less than z above the weight's own."""
    z = 7
    job = make_job({"z": z}, model=MODEL)
    for name, op in starts(job):
        linear = name.split("/")[-2]
        if op.kind == "all_gather" and linear in LINEARS:
            wide, deep, _ = LINEARS[linear]
            elements = op.bytes / 2
            assert elements % z == 0
            assert 0 <= elements - wide * deep * 240**2 < z
