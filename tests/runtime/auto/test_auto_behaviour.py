"""What users do with their models besides plain training."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from tests.runtime.auto import tasks
from tests.runtime.auto.test_auto_defects import TASKS, assert_equal, grid, serial_gradients
from tests.runtime.auto.test_auto_parity import FULL


def of(model: nn.Module) -> dict[str, np.ndarray]:
    return {n: p.grad.numpy() for n, p in model.named_parameters()}


@pytest.mark.parametrize("sizes", [FULL, grid(y=2, x=2), grid(z=4)], ids=str)
def test_two_models_in_one_process(pool, sizes):
    """Interleaved, used twice, differentiated twice, and once for the input alone."""
    one, other, third = tasks.plain(1), tasks.plain(2), tasks.plain(4)
    x = tasks.inputs()
    (one(x).square().mean() + third(torch.cat((other(x), other(x)), -1)).square().mean()).backward()
    for found in pool.run(f"{TASKS}:two_models", 4, grid=sizes):
        assert found["untouched"]
        for name, model in (("one", one), ("other", other), ("third", third)):
            assert_equal(found[name], of(model))


@pytest.mark.parametrize("sizes", [grid(data=2, z=2), grid(z=4), grid(z=2, x=2)], ids=str)
def test_a_penalty_on_weights_and_gradients_that_grow_after_they_were_reduced(pool, sizes):
    """What does not come through the reduce-scatter is not divided by z; what was averaged is not divided again."""
    serial = tasks.plain()
    for _ in range(2):
        (serial(tasks.inputs()).square().mean() + tasks.penalty(serial)).backward()
    for found in pool.run(f"{TASKS}:penalized", 4, grid=sizes):
        assert_equal(found, of(serial))


@pytest.mark.parametrize("sizes", [grid(data=2, x=2), grid(data=2, y=2)], ids=str)
def test_replicas_with_unequal_rows(pool, sizes):
    """Weighed by their rows; a gradient that one replica lacks counts as zero there."""
    serial = tasks.plain()
    loss = serial(tasks.inputs()).square().mean()
    for found in pool.run(f"{TASKS}:uneven", 4, grid=sizes):
        assert_equal(found, serial_gradients())
        np.testing.assert_allclose(found["mean"], loss.item(), rtol=1e-12)
        np.testing.assert_allclose(found["extra"], [0.25, 0.25])


@pytest.mark.parametrize("sizes", [FULL, grid(y=2, x=2)], ids=str)
def test_autocast(pool, sizes):
    """Outputs in its precision, gradients in the parameters'; serial autocast rounds as much."""
    serial = tasks.plain(dtype=torch.float32)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        loss = serial(tasks.inputs(dtype=torch.float32)).float().square().mean()
    loss.backward()
    exact = serial_gradients()
    for found in pool.run(f"{TASKS}:mixed", 4, grid=sizes, dtype="bfloat16"):
        assert found["kinds"] == {"torch.bfloat16", "gradient torch.float32"}
        for name, theirs in of(serial).items():
            scale = np.abs(exact[name]).max()
            assert np.abs(found[name] - exact[name]).max() < 0.03 * scale, name
            assert np.abs(theirs - exact[name]).max() < 0.03 * scale, name


@pytest.mark.parametrize("sizes", [FULL, grid(y=2, x=2)], ids=str)
def test_a_compiled_model(pool, sizes):
    """torch.compile steps around the cut layers."""
    for found in pool.run(f"{TASKS}:compiled", 4, grid=sizes):
        assert_equal(found, serial_gradients())


def test_a_transformer_is_not_taken_for_a_serial_one(pool):
    """In evaluation PyTorch's encoder reads its linears' weights itself, if it may."""
    expected = tasks.encoded(tasks.encoder())
    for cut, found in pool.run(f"{TASKS}:encode", 4, grid=FULL):
        assert cut >= 4
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-9)


def test_no_weight_is_used_that_has_changed_since_it_was_gathered(pool):
    expected = tasks.detoured(tasks.Backwards())
    for found in pool.run(f"{TASKS}:detour", 4, grid=grid(z=4)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-12)


def test_an_optimizer_made_inside_the_block_trains(pool):
    serial = tasks.plain(seed=1)
    optimizer = torch.optim.SGD(serial.parameters(), lr=0.1)
    serial(tasks.inputs()).square().mean().backward()
    optimizer.step()
    for found in pool.run(f"{TASKS}:state", 4, grid=FULL):
        assert_equal(found, {n: t.numpy() for n, t in serial.state_dict().items()})
