"""Operand modes of matrix products: stored as they say, equal in value, the fastest is chosen."""

from __future__ import annotations

import itertools

import pytest
import torch

from runtime.parallel.mesh import Mesh
from runtime.step.products import MatrixProducts
from runtime.strategies.four_d import tuning
from runtime.strategies.four_d.gemm import MODES, NATURAL, Gemms, Signature, arrange, natural_operands, time_modes
from tests.runtime import parity
from twin.strategies.four_d.grid import AXES, Grid


@pytest.mark.parametrize(("mode", "stored"), list(itertools.product(MODES, MODES)))
def test_operands_are_stored_as_the_mode_says(mode, stored):
    generator = torch.Generator().manual_seed(0)
    a, b = torch.randn(5, 7, generator=generator), torch.randn(7, 3, generator=generator)
    product = a @ b
    a, b = arrange(*arrange(a, b, stored), mode)
    # first letter: B as (n, k); second: A as (k, m), as a column-major library sees them
    assert b.t().is_contiguous() == (mode[0] == "T")
    assert a.t().is_contiguous() == (mode[1] == "T")
    torch.testing.assert_close(a @ b, product)


def test_natural_modes_are_those_of_a_linear_layer():
    inputs, weight, gradient = torch.randn(6, 4), torch.randn(5, 4), torch.randn(6, 5)
    for pass_, (a, b) in {
        "forward": (inputs, weight.t()),
        "input_gradient": (gradient, weight),
        "weight_gradient": (gradient.t(), inputs),
    }.items():
        same = arrange(a, b, NATURAL[pass_])
        assert same[0].data_ptr() == a.data_ptr()
        assert same[1].data_ptr() == b.data_ptr()
        m, k, n = a.shape[0], a.shape[1], b.shape[1]
        made = natural_operands(Signature(pass_, m, n, k), torch.float32, torch.device("cpu"))
        assert [x.stride() for x in made] == [a.stride(), b.stride()]


def test_chosen_modes_are_used_and_change_no_result():
    gemms = Gemms()
    a, b = torch.randn(6, 4, dtype=torch.float64), torch.randn(5, 4, dtype=torch.float64).t()
    plain = gemms.product("forward", a, b)
    gemms.modes[Signature("forward", 6, 5, 4)] = "NT"
    torch.testing.assert_close(gemms.product("forward", a, b), plain)
    out = torch.empty(6, 5, dtype=torch.float64)
    assert gemms.product("forward", a, b, out=out) is out
    torch.testing.assert_close(out, plain)


def test_every_mode_is_timed():
    seconds = time_modes(Signature("forward", 64, 32, 16), torch.float32, torch.device("cpu"), MatrixProducts())
    assert len(seconds) == len(MODES)
    assert all(0 < s < 10 for s in seconds)


def test_the_fastest_is_chosen_for_every_product_of_a_step(monkeypatch):
    trainee = parity.build(parity.describe(dict.fromkeys(AXES, 1)), Mesh.alone(Grid()), torch.float32)
    context, model = trainee.context, trainee.model
    wanted = tuning.signatures(context, model)
    # forward and both gradients of qkv, projection, mlp_up, mlp_down and the head
    assert len(wanted) == 15
    monkeypatch.setattr(tuning, "time_modes", lambda *_: [3.0, 1.0, 2.0])
    choices = tuning.tune(context, model)
    assert {choice.mode for choice in choices} == {"NT"}
    forward = next(c for c in choices if c.signature.pass_ == "forward")
    assert forward.gain == pytest.approx(2.0)
    # what is natural anyway needs no arranging
    assert {s.pass_ for s in context.gemms.modes} == {"forward", "input_gradient"}


def test_tuned_products_train_as_natural_ones():
    def losses(modes: bool) -> list[float]:
        trainee = parity.build(parity.describe(dict.fromkeys(AXES, 1)), Mesh.alone(Grid()), torch.float64)
        if modes:
            known = tuning.signatures(trainee.context, trainee.model)
            tuning.use(trainee.context, {str(s): MODES[i % 3] for i, s in enumerate(known)}, known)
        window = parity.windows()[0]
        weights = torch.full((16, 8), 1 / 128, dtype=torch.float64)
        batch = [parity.MicroBatch(0, window[:, :-1], window[:, 1:], weights)]
        return [trainee.step(batch, 1e-3).loss.item() for _ in range(3)]

    assert losses(modes=True) == pytest.approx(losses(modes=False), rel=1e-12)
