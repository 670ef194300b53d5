"""Which layers are cut, how, and what is said about the others. No processes are needed."""

from __future__ import annotations

import copy
import logging

import pytest
import torch
from torch import nn

from runtime.auto import ParallelLinear, auto_parallelize
from runtime.parallel.mesh import Mesh
from tests.runtime.auto import own, tasks
from tests.runtime.auto.test_auto_parity import check
from twin.description.problems import DescriptionError
from twin.strategies.four_d.grid import Grid


def mesh(rank: int = 0, **sizes: int) -> Mesh:
    """A place in a grid, without the processes."""
    grid = Grid(**sizes)
    return Mesh(grid, rank, grid.coordinates(rank), {}, None)


@pytest.mark.full
def test_blocks_of_all_ranks_make_the_full_weight():
    """Normal and transposed in turn, in declaration order."""
    full = [m.weight.detach() for m in tasks.plain() if isinstance(m, nn.Linear)]
    for rank in range(4):
        with auto_parallelize(mesh(rank, x=2, y=2), verify_weights=False):
            model = tasks.plain()
        x, y = rank % 2, rank // 2
        for index, (layer, weight) in enumerate(zip(model[::2], full, strict=True)):
            row, column = (y, x) if index % 2 == 0 else (x, y)
            n, k = weight.shape[0] // 2, weight.shape[1] // 2
            block = weight[row * n : (row + 1) * n, column * k : (column + 1) * k]
            torch.testing.assert_close(layer.weight.detach().view(n, k), block)
            assert isinstance(layer.weight, nn.Parameter)
            assert layer.weight.requires_grad


@pytest.mark.full
def test_shards_are_padded_over_z():
    torch.manual_seed(0)
    whole = nn.Linear(3, 3).weight.detach().flatten()
    shards = []
    for rank in range(4):
        torch.manual_seed(0)
        with auto_parallelize(mesh(rank, z=4), verify_weights=False):
            layer = nn.Linear(3, 3)
        shards.append(layer.weight.detach())
    joined = torch.cat(shards)
    torch.testing.assert_close(joined, torch.cat((whole, torch.zeros(3))))


def test_what_does_not_divide_stays_serial_with_a_note(caplog):
    with (
        caplog.at_level(logging.WARNING, "fourfold"),
        auto_parallelize(mesh(x=2, y=2), verify_weights=False) as parallel,
    ):
        model = own.make()
    assert parallel.notes == [
        "output stays serial: 24 → 7 features do not divide by x = 2 and y = 2, either way round",
        "tied stays serial: its weight is shared with embedding.weight",
        "attention.out_proj stays serial: NonDynamicallyQuantizableLinear is a class of its own, not nn.Linear",
        "odd stays serial: 9 → 15 features do not divide by x = 2 and y = 2, either way round",
        "join stays serial: 31 → 24 features do not divide by x = 2 and y = 2, either way round",
    ]
    assert [r.getMessage() for r in caplog.records] == [f"auto_parallelize: {n}" for n in parallel.notes]
    assert list(parallel.layers) == ["blocks.0.0", "blocks.0.2", "blocks.1.0", "blocks.1.2", "twice", "never", "frozen"]
    assert type(model.odd) is nn.Linear
    assert not model.frozen.weight.requires_grad


def test_the_other_way_round_is_tried():
    with auto_parallelize(mesh(x=4), verify_weights=False) as parallel:
        nets = nn.ModuleList([nn.Linear(5, 8), nn.Linear(8, 5), nn.Linear(6, 5)])
    assert [type(layer) for layer in nets] == [ParallelLinear, ParallelLinear, nn.Linear]
    assert nets[0].layout.shard.spec.axes == ("x", "y")
    assert nets[1].layout.shard.spec.axes == ("y", "x")
    assert len(parallel.notes) == 1


def test_a_rank_alone_keeps_its_model():
    with auto_parallelize({}) as parallel:
        model = own.make()
    assert not parallel.layers
    assert not parallel.notes
    check([(own.run(parallel, model), [])], cut=False)


def test_weights_that_are_computed_stay_serial():
    with auto_parallelize(mesh(x=2), verify_weights=False) as parallel:
        kept = [
            torch.nn.utils.parametrizations.weight_norm(nn.Linear(4, 4)),
            torch.nn.utils.parametrizations.orthogonal(nn.Linear(4, 4)),
            nn.LazyLinear(4),
        ]
        patched = nn.Linear(4, 4)
        patched.forward = lambda x: x
        kept.append(patched)
    assert not parallel.layers
    reasons = "\n".join(parallel.notes)
    assert "ParametrizedLinear, ParametrizedLinear2 stay serial: ParametrizedLinear is a class" in reasons
    assert "LazyLinear stays serial" in reasons
    assert "Linear stays serial: its forward method was replaced" in reasons


def test_an_error_inside_the_block_leaves_everything_as_it_was():
    with pytest.raises(KeyError), auto_parallelize(mesh(x=2), verify_weights=False):  # noqa: PT012  the block is the test
        layer = nn.Linear(4, 4)
        raise KeyError
    assert type(layer) is nn.Linear
    assert type(nn.Linear(4, 4)) is nn.Linear


@pytest.mark.parametrize(
    ("grid", "options", "message"),
    [
        ({"x": 4}, {}, "has 4 ranks, but there are 1; start so many processes"),
        ({"x": 0}, {}, r"grid\.x = 0"),
        (3, {}, "grid = 3: expected a Grid"),
        ({}, {"prefetch_depth": 0}, "prefetch_depth = 0: must be at least 1"),
        ({}, {}, "no parameters were declared inside the block"),
    ],
)
def test_bad_input(grid, options, message):
    with pytest.raises(DescriptionError, match=message), auto_parallelize(grid, **options):
        pass


def test_bad_use():
    with auto_parallelize(mesh(z=2), verify_weights=False) as parallel:
        model = nn.Linear(4, 4)
        with pytest.raises(RuntimeError, match="call this after it"):
            parallel.reduce_gradients()
    with pytest.raises(ValueError, match="the input has 8 features"):
        model(torch.ones(2, 8))
    with pytest.raises(ValueError, match="convert one of them"):
        model(torch.ones(2, 4, dtype=torch.float64))
    with pytest.raises(DescriptionError, match="3 rows do not divide by data × z = 2"):
        parallel.part(torch.ones(3))
    with pytest.raises(TypeError, match="iterable of batches"):
        parallel.local(torch.ones(4))


def test_batches_of_any_structure():
    with auto_parallelize(mesh(1, z=2), verify_weights=False) as parallel:
        nn.Linear(4, 4)  # which nobody holds
        model = nn.Linear(4, 4)
    assert list(parallel.layers) == ["Linear"]
    x = torch.arange(4)
    assert parallel.part({"a": (x, [x]), "b": "text"})["a"][1][0].tolist() == [2, 3]
    assert [p.tolist() for p in parallel.local([x, x + 4])] == [[2, 3], [6, 7]]
    assert copy.deepcopy(model).layout.context is model.layout.context
