"""The published communication model against section 7 of the algorithm, worked out by hand."""

from typing import Any

import pytest

from twin.description.job import Job
from twin.strategies import load_job
from twin.strategies.four_d.communication_model import axis_bandwidth, communication_seconds
from twin.strategies.four_d.grid import Grid

GIB = 2.0**30
MODEL = {"layers": 3, "hidden": 1024, "heads": 16, "sequence": 512, "vocabulary": 8192}
LINEARS = ((3072, 1024, False), (1024, 1024, True), (4096, 1024, False), (1024, 4096, True))
"""Out-features n, in-features k, transposed: qkv, projection, MLP up, MLP down."""


def placed(machine: str | dict[str, Any], grid: Grid, sequences: int = 32, **options: Any) -> Job:
    return load_job(
        {
            "model": MODEL,
            "machine": machine,
            "ranks": grid.ranks,
            "grid": grid.model_dump(),
            "batch": {"sequences": sequences, "micro_sequences": sequences // (grid.data * grid.z)},
            **options,
        }
    )


def section_7(
    grid: Grid,
    beta: dict[str, float],
    sequences: int,
    *,
    forward: int = 2,
    passes: int = 3,
    e: int = 2,
    layers: int = 3,
    linears=LINEARS,
) -> float:
    """Seconds of one micro-step: every term of section 7, term by term."""
    d, z, y, x = grid.sizes
    m = sequences * 512 / (d * z)
    seconds = 0.0
    for n, k, transposed in linears:
        (c, bc), (o, bo) = ((y, beta["y"]), (x, beta["x"])) if transposed else ((x, beta["x"]), (y, beta["y"]))
        gather = (z - 1) * k * n / (x * y * z)
        scatter = (z - 1) / z * k * n / (x * y)
        assert gather == pytest.approx(scatter)
        ar_forward = 2 * (c - 1) / c * m * n / o
        ar_backward = 2 * (o - 1) / o * m * k / c
        ar_data = 2 * (d - 1) / d * k * n / (x * y * z)
        seconds += ((passes - 1) * gather + scatter) * e / beta["z"]
        seconds += forward * ar_forward * e / bc + ar_backward * e / bo
        seconds += ar_data * 4 / beta["data"]
    return layers * seconds


FRONTIER = [
    # inside the node from the authors' table; across nodes 40 GiB/s over min(8, inner sizes)
    (Grid(data=2, z=2, y=2, x=2), {"x": 129, "y": 50, "z": 36, "data": 40 / 8}),
    (Grid(data=2, z=4, y=1, x=4), {"x": 52, "y": None, "z": 40 / 4, "data": 40 / 8}),
    (Grid(data=1, z=8, y=4, x=2), {"x": 129, "y": 72, "z": 40 / 8, "data": None}),
    (Grid(data=4, z=1, y=1, x=8), {"x": 135, "y": None, "z": None, "data": 40 / 8}),
    (Grid(data=16, z=1, y=1, x=2), {"x": 129, "y": None, "z": None, "data": 40 / 2}),
]


@pytest.mark.parametrize(("grid", "table"), FRONTIER, ids=lambda v: str(v) if isinstance(v, Grid) else "")
def test_against_section_7_on_frontier(grid, table) -> None:
    job = placed("frontier", grid)
    for axis, rate in table.items():
        if rate is not None:
            assert axis_bandwidth(job.machine, grid, axis) == pytest.approx(rate * GIB)
    beta = {axis: (rate or 1.0) * GIB for axis, rate in table.items()}
    assert communication_seconds(job, grid) == pytest.approx(section_7(grid, beta, 32))


def test_without_recomputation_one_gather_and_one_all_reduce_less() -> None:
    grid, table = FRONTIER[0]
    job = placed("frontier", grid, recompute=False)
    beta = {axis: rate * GIB for axis, rate in table.items()}
    expected = section_7(grid, beta, 32, forward=1, passes=2)
    assert communication_seconds(job, grid) == pytest.approx(expected)


def test_swiglu_of_another_width() -> None:
    """MLP up makes gate and up, 2 · 2752; MLP down takes their product, 2752."""
    grid, table = FRONTIER[0]
    job = placed("frontier", grid)
    model = job.model.model_copy(update={"activation": "swiglu", "mlp_width": 2752})
    linears = (*LINEARS[:2], (5504, 1024, False), (1024, 2752, True))
    beta = {axis: rate * GIB for axis, rate in table.items()}
    found = communication_seconds(job.model_copy(update={"model": model}), grid)
    assert found == pytest.approx(section_7(grid, beta, 32, linears=linears))


def test_one_rank_says_nothing() -> None:
    job = placed("frontier", Grid())
    assert communication_seconds(job, job.concrete_grid) == 0.0


def test_a_perlmutter_grid_by_arithmetic() -> None:
    """x 2 · z 2 in one node, no other axis; numbers only.

    z: inner 2, size 2: 76 GiB/s; x: inner 1, size 2: 76 GiB/s. Per block the gathered weights
    have 12 · 1024² / 2 elements, half of which moves in each of three passes of bf16; forward
    all-reduces over x of qkv and MLP up (7 · 1024 wide), twice, and backward ones of
    projection and MLP down (inputs 5 · 1024 wide), once: (p − 1)/p · 2 = 1 of the buffer.
    """
    grid = Grid(z=2, x=2)
    job = placed("perlmutter", grid, sequences=4)
    weights = 3 * 0.5 * 12 * 1024**2 / 2 * 2
    tokens = 4 * 512 / 2
    reduced = tokens * 1024 * (2 * 7 + 5) * 2
    assert communication_seconds(job, grid) == pytest.approx(3 * (weights + reduced) / (76 * GIB))


def test_twice_the_tokens_are_twice_the_all_reduces() -> None:
    grid = Grid(y=2, x=2)
    one, two = (communication_seconds(placed("frontier", grid, n), grid) for n in (8, 16))
    assert two == pytest.approx(2 * one)


def test_micro_steps_gather_the_weights_again() -> None:
    """Only the z terms are paid in every micro-step."""
    grid = Grid(z=4, x=2)
    whole = placed("frontier", grid)
    halves = whole.model_copy(update={"batch": whole.batch.model_copy(update={"micro_sequences": 4})})
    only_z = section_7(grid, {"x": float("inf"), "y": 1.0, "z": 36 * 0 + 40 * GIB, "data": 1.0}, 32)
    beta = axis_bandwidth(whole.machine, grid, "z")
    more = communication_seconds(halves, grid) - communication_seconds(whole, grid)
    assert more == pytest.approx(only_z * 40 * GIB / beta)


def test_a_machine_without_the_authors_table_uses_its_links() -> None:
    """A switch gives its port's rate; across nodes the NICs are shared by the inner ranks."""
    job = placed("dgx-a100", Grid(data=2, z=2, y=2, x=4))
    grid, machine = job.concrete_grid, job.machine
    port = machine.fabric.port_bandwidth_bytes_per_second * machine.fabric.efficiency
    node = len(machine.nic.devices) * machine.nic.bandwidth_bytes_per_second * machine.nic.efficiency
    assert axis_bandwidth(machine, grid, "x") == pytest.approx(port)
    assert axis_bandwidth(machine, grid, "y") == pytest.approx(port)
    assert axis_bandwidth(machine, grid, "z") == pytest.approx(node / 8)
    assert axis_bandwidth(machine, grid, "data") == pytest.approx(node / 8)
