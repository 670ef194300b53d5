"""The model: one set of initial weights for all grids, dropout that agrees, as many parameters as the twin says."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from runtime.parallel import random
from runtime.parallel.mesh import Mesh
from runtime.strategies.four_d.reduction import Reduction
from tests.runtime import parity
from tests.runtime.checkpoint import tasks
from tests.runtime.equal import assemble
from twin.strategies.four_d.grid import AXES, Grid, factorizations

ONE = dict.fromkeys(AXES, 1)
FOURS = [dict(zip(AXES, grid.sizes, strict=True)) for grid in factorizations(4)]
VARIANTS = [{}, {"biases": False}, {"activation": "swiglu", "mlp_width": 96}, {"positions": "rotary"}]


def alone(**options):
    return parity.build(parity.describe(ONE, **options), Mesh.alone(Grid()), torch.float64)


def on_rank(grid: Grid, rank: int, **options):
    """A rank's part, without any process group."""
    mesh = Mesh(grid, rank, grid.coordinates(rank), {}, None)
    sizes = dict(zip(AXES, grid.sizes, strict=True))
    return parity.build(parity.describe(sizes, **options), mesh, torch.float64)


@pytest.mark.parametrize("change", VARIANTS)
def test_as_many_parameters_as_the_twin_counts(change):
    trainee = alone(model={**parity.MODEL, **change})
    full = assemble([parity.pieces(trainee)])
    assert sum(p.size for p in full.values()) == trainee.context.job.model.parameters


@pytest.mark.parametrize("grid", [Grid(data=2, z=2, y=2, x=2), Grid(z=4, y=2), Grid(x=8), Grid(z=8, x=2)], ids=str)
def test_every_grid_starts_from_the_same_weights(grid):
    model = {**parity.MODEL, "vocabulary": 37}
    ranks = [parity.pieces(on_rank(grid, rank, model=model)) for rank in range(grid.ranks)]
    full, serial = assemble(ranks), assemble([parity.pieces(alone(model=model))])
    assert full.keys() == serial.keys()
    for name, weight in serial.items():
        np.testing.assert_array_equal(full[name], weight, err_msg=name)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"recompute": True},
        {"recompute": True, "recompute_layers": 1},
        {"lora": {"rank": 2, "targets": ["q"]}},
        {"dropout": 0.1},
    ],
    ids=str,
)
def test_a_block_is_told_done_before_the_one_below_gathers(options, monkeypatch):
    trainee = alone(**options)
    model, told = trainee.model, []
    monkeypatch.setattr(Reduction, "block_done", lambda _self, layer: told.append(("done", layer)))
    monkeypatch.setattr(model, "gather_again", lambda layer: told.append(("gather", layer)))
    tasks.train(trainee, 0, 1)
    once = [("done", None), ("gather", 1), ("done", 1), ("gather", 0), ("done", 0)]
    assert told == once * (len(told) // len(once))
    assert told


def test_initial_weights_are_normal_and_independent():
    full = assemble([parity.pieces(alone())])
    table, up = full["embedding.tokens"], full["blocks.0.mlp_up.weight"]
    assert np.std(table) == pytest.approx(0.02, rel=0.05)
    assert abs(np.mean(up)) < 0.001
    assert np.std(full["blocks.0.mlp_down.weight"]) == pytest.approx(0.02 / 2, rel=0.05)  # 2 layers
    # neighbouring rows, columns and equal places of different parameters have nothing in common
    for a, b in ((up[1:], up[:-1]), (up[:, 1:], up[:, :-1]), (up, full["blocks.1.mlp_up.weight"])):
        assert abs(np.corrcoef(a.ravel(), b.ravel())[0, 1]) < 0.03
    values = np.sort(up.ravel() / 0.02)
    for quantile, expected in ((0.1587, -1.0), (0.5, 0.0), (0.8413, 1.0), (0.9772, 2.0)):
        assert values[int(quantile * values.size)] == pytest.approx(expected, abs=0.06)


def test_dropout_drops_its_share_and_differs_by_everything_that_should_matter():
    rows, columns = torch.arange(400), torch.arange(300)
    keep = random.keep_mask(rows, columns, random.key(0, 1, "a"), 0.3)
    assert keep.double().mean().item() == pytest.approx(0.7, abs=0.005)
    for other in (
        random.keep_mask(rows, columns, random.key(0, 2, "a"), 0.3),
        random.keep_mask(rows + 400, columns, random.key(0, 1, "a"), 0.3),
        random.keep_mask(rows, columns + 300, random.key(0, 1, "a"), 0.3),
    ):
        assert (keep == other).double().mean().item() == pytest.approx(0.7**2 + 0.3**2, abs=0.01)
    # an element's fate depends on its address alone
    part = random.keep_mask(rows[100:150], columns[30:90], random.key(0, 1, "a"), 0.3)
    assert torch.equal(part, keep[100:150, 30:90])


@pytest.fixture(scope="module")
def dropped() -> list[float]:
    """Losses of one rank with dropout, scores included."""

    class Worker:
        def mesh(self, _grid):
            return Mesh.alone(Grid())

    losses, _, _ = parity.run(Worker(), ONE, "float64", steps=3, dropout=0.2, attention="plain")
    without, _, _ = parity.run(Worker(), ONE, "float64", steps=3, attention="plain")
    assert losses != without
    return losses


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize("grid", FOURS[::3], ids=str)
def test_dropout_is_the_same_on_every_grid_and_when_recomputed(pool, dropped, grid, recompute):
    answers = pool.run(
        "tests.runtime.parity:run",
        4,
        grid=grid,
        dtype="float64",
        steps=3,
        dropout=0.2,
        attention="plain",
        recompute=recompute,
    )
    for losses, _, _ in answers:
        np.testing.assert_allclose(losses, dropped, rtol=1e-9)


@pytest.mark.parametrize(
    "grid",
    [{"data": 1, "z": 2, "y": 2, "x": 1}, {"data": 2, "z": 1, "y": 1, "x": 2}],
    ids=lambda grid: str(Grid(**grid)),
)
def test_bf16_follows_fp32(pool, grid):
    def trained(dtype, **options):
        answers = pool.run("tests.runtime.parity:run", 4, grid=grid, dtype=dtype, **options)
        full = assemble([pieces for _, _, pieces in answers])
        return answers[0][0], np.concatenate([full[n].ravel() for n in sorted(full)], dtype=float)

    before = trained("float32", steps=0)[1]
    np.testing.assert_array_equal(trained("bfloat16", steps=0)[1], before)
    (exact, to), (rounded, nearly) = trained("float32"), trained("bfloat16")
    assert rounded != exact
    np.testing.assert_allclose(rounded, exact, rtol=2e-4)
    # in so few steps weights hardly change the loss: where they went must agree as well
    update, other = to - before, nearly - before
    lengths = np.linalg.norm(update), np.linalg.norm(other)
    assert lengths[1] == pytest.approx(lengths[0], rel=5e-3)
    assert update @ other / np.prod(lengths) > 0.999


def test_gathered_weights_do_not_outlive_their_use(pool):
    for options, most in (({}, 2), ({"gather_unit": "block"}, 10), ({"recompute": True}, 5)):
        held = pool.run("tests.runtime.test_model:most_held", 2, grid={"data": 1, "z": 2, "y": 1, "x": 1}, **options)
        # the head's weight is kept as well
        assert max(held) <= most + 1, options


def most_held(worker, grid, **options) -> int:
    """The most gathered weights that a rank held at once in a step."""
    job = parity.describe(grid, **options)
    trainee = parity.build(job, worker.mesh(Grid(**grid)), torch.float32)
    gathers, seen = trainee.context.gathers, [0]
    arrive = gathers._arrive

    def counted(unit, phase):
        arrive(unit, phase)
        seen.append(len(gathers._full))

    gathers._arrive = counted
    window = parity.windows()[0][:2]
    weights = torch.full((2, 8), 1.0 / 16)
    trainee.step([parity.MicroBatch(0, window[:, :-1], window[:, 1:], weights)], 1e-3)
    assert not gathers._full
    return max(seen)
