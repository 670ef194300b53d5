"""Defects that were reproduced in AxoNN's easy mode: each a test that we do not have it."""

from __future__ import annotations

import inspect
import re

import numpy as np
import pytest
import torch
from torch import nn

from runtime.auto import auto_parallelize
from runtime.parallel.mesh import Mesh
from tests.runtime.auto import own, tasks
from tests.runtime.auto.test_auto_parity import FULL
from twin.description.problems import DescriptionError
from twin.strategies.four_d.grid import Grid

TASKS = "tests.runtime.auto.tasks"


def grid(**sizes: int) -> dict[str, int]:
    return {"data": 1, "z": 1, "y": 1, "x": 1, **sizes}


def serial_gradients(model: nn.Module | None = None) -> dict[str, np.ndarray]:
    model = model or tasks.plain()
    model(tasks.inputs()).square().mean().backward()
    return {name: p.grad.numpy() for name, p in model.named_parameters()}


def assert_equal(found: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> None:
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-9, atol=1e-13, err_msg=name)


@pytest.mark.parametrize("sizes", [{"z": 4}, {"z": 2, "data": 2}, {"z": 2, "x": 2}], ids=str)
def test_bias_gradients_with_z(pool, sizes):
    """1: the sum over the depth axis was skipped silently, through a misspelt attribute."""
    for found in pool.run(f"{TASKS}:gradients", 4, grid=grid(**sizes)):
        assert found["cut"] == ["0", "2", "4"]
        assert_equal(found, serial_gradients())


@pytest.mark.parametrize("sizes", [{"x": 4}, {"y": 4}, {"x": 2, "y": 2}], ids=str)
def test_bias_gradients_with_x_or_y(pool, sizes):
    """2: the parts of the gradient that other ranks saw were lost."""
    for found in pool.run(f"{TASKS}:gradients", 4, grid=grid(**sizes)):
        assert found["cut"] == ["0", "2", "4"]
        assert_equal(found, serial_gradients())


def test_reduce_scatters_are_waited_for_at_the_end_of_backward(pool):
    """3: they never were; whoever read a gradient read an unfinished buffer."""
    for found in pool.run(f"{TASKS}:backward_only", 4, grid=grid(z=4)):
        weights = {n: g for n, g in serial_gradients().items() if n.endswith("weight")}
        assert_equal(found, weights)  # the mean over z already
        log = found["log"]
        started = [name for kind, name in log if kind == "start"]
        assert sorted(started) == sorted(name for kind, name in log if kind == "wait")
        scatters = [i for i, (kind, n) in enumerate(log) if kind == "wait" and "reduce_scatter" in n]
        assert len(scatters) == 3
        assert max(i for i, (kind, _) in enumerate(log) if kind == "compute") < min(scatters)


def test_prefetch_without_gradients_in_the_order_of_execution(pool):
    """4, 20: it raised under gloo, followed registration, and kept its state in the module."""
    expected = tasks.Backwards()(tasks.inputs()).detach().numpy()
    for found in pool.run(f"{TASKS}:quiet_passes", 4, grid=grid(z=4)):
        for output in found["outputs"]:
            np.testing.assert_allclose(output, expected, rtol=1e-12)
        log = [(kind, name.split("/")[1]) for kind, name in found["log"]]
        assert log == [
            ("start", "square.2"),
            ("start", "square.1"),
            ("wait", "square.2"),
            ("compute", "square.2"),
            ("start", "square.0"),
            ("wait", "square.1"),
            ("compute", "square.1"),
            ("wait", "square.0"),
            ("compute", "square.0"),
        ]


def test_a_full_state_loads_on_another_grid(pool):
    """5: what was saved could not be loaded."""
    start = {n: t.detach().numpy() for n, t in tasks.plain(seed=7).state_dict().items()}
    serial = tasks.plain(seed=7)
    optimizer = torch.optim.SGD(serial.parameters(), lr=0.1)
    serial(tasks.inputs()).square().mean().backward()
    optimizer.step()
    expected = {n: t.numpy() for n, t in serial.state_dict().items()}
    for sizes in (grid(z=4), grid(y=2, x=2), grid(data=2, z=2)):
        for found in pool.run(f"{TASKS}:state", 4, grid=sizes, given=start):
            assert_equal(found, expected)
    wrong = {**start, "2.weight": np.zeros((3, 5))}
    with pytest.raises(AssertionError, match=r"2\.weight = \(3, 5\): expected the full weight of shape"):
        pool.run(f"{TASKS}:state", 4, grid=grid(z=4), given=wrong)


def test_unknown_keywords_are_refused():
    """6: a renamed option was swallowed, and models ran in the wrong mode."""
    with pytest.raises(TypeError, match="expert_mode"), auto_parallelize(Grid(), expert_mode=True):
        pass
    with pytest.raises(DescriptionError, match=r"grid\.depth.*unknown key"), auto_parallelize({"depth": 1}):
        pass


def test_the_padding_row_of_an_embedding_stays(pool):
    """7: one number of the padding row was zeroed in place of the row."""
    padding = own.make().embedding.weight[0].detach().numpy()
    tied = own.train_serial()[2]["embedding.weight"][0]
    for (_, _, full), _ in pool.run("tests.runtime.auto.own:train", 4, grid=FULL):
        np.testing.assert_allclose(full["embedding.weight"][0], tied, rtol=1e-9, atol=1e-12)
    assert not np.array_equal(padding, tied)  # the tied head does move it; alone it would stay
    for found in pool.run(f"{TASKS}:padding", 4, grid=FULL):
        np.testing.assert_array_equal(found["row"], 0.0)
        assert found["others"]


@pytest.mark.parametrize("sizes", [{"x": 2, "y": 2}, {"x": 4}, {"z": 2, "y": 2}], ids=str)
def test_products_are_divided(pool, sizes):
    """9: every rank did all of the sequential work."""
    serial = tasks.count_flops(tasks.plain(), tasks.inputs())
    assert serial == 3 * 2 * 8 * (16 * 32 + 32 * 16 + 16 * 8)
    assert pool.run(f"{TASKS}:flops", 4, grid=grid(**sizes)) == [serial // 4] * 4


def test_messages_are_complete(pool):
    """11: the second line of a message was lost behind a comma."""
    for said in pool.run(f"{TASKS}:refusals", 4, grid=grid(x=2, y=2)):
        assert "0.weight and " in said["seeds"]
        assert "torch.manual_seed with the same seed on every rank" in said["seeds"]
        assert "declare the same one on every rank" in said["models"]
        assert re.search(r"has 16 ranks, but there are ([48]); choose sizes whose product is \1", said["world"])

    for said in pool.run(f"{TASKS}:sparse", 4, grid=grid(data=2, x=2)):
        assert "make the embedding with sparse=False" in said


def test_there_is_one_grid():
    """12: layers took a grid of their own, and ignored its depth."""
    assert "grid" in inspect.signature(auto_parallelize).parameters
    assert not {"layers", "grids", "tensor_parallel_dims"} & set(inspect.signature(auto_parallelize).parameters)
    mesh = Mesh(Grid(x=2), 0, Grid(x=2).coordinates(0), {}, None)
    with auto_parallelize(mesh, verify_weights=False):
        inner = nn.Linear(4, 4)
    with pytest.raises(DescriptionError, match="0: is parallel already"), auto_parallelize(mesh, verify_weights=False):
        outer = nn.Sequential(inner, nn.Linear(4, 4))
    assert type(outer[1]) is nn.Linear


def test_weight_decay_finds_the_matrices():
    """15: flat weights were never decayed by a rule on the number of dims."""
    mesh = Mesh(Grid(x=2), 0, Grid(x=2).coordinates(0), {}, None)
    with auto_parallelize(mesh, verify_weights=False) as parallel:
        model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 4), nn.LayerNorm(4), nn.Linear(3, 3))
    assert model[1].weight.ndim == 1
    decayed = [name for name, p in model.named_parameters() if parallel.decays(p)]
    assert decayed == ["0.weight", "1.weight", "3.weight"]
