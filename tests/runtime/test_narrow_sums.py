"""Training in 16 bits on CPUs: what is summed over tokens and micro-steps is as near to fp32 as one rounding.

PyTorch's own kernels there add rows up in 16 bits: 8,192 tokens of text cost the gradients of norms a tenth to three
quarters, that of the table of tokens a third.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.model.narrow_sums import layer_norm, lookup, norm_gradient
from runtime.recorder.world import fake_world
from runtime.step.trainee import MicroBatch
from runtime.strategies import trains
from tests.profiles import examples
from tests.tiers import few
from twin.description.train import Adam
from twin.strategies import load_job

ROUNDING = 2.0**-8
"""Of bf16, relative."""


def off(found: torch.Tensor, expected: torch.Tensor) -> float:
    return float((found.double() - expected.double()).norm() / expected.double().norm())


@pytest.mark.parametrize("rows", [1, 255, 256, 8192])
@pytest.mark.parametrize("given_bias", [True, False])
def test_gradients_of_a_norm_are_those_of_float64(rows: int, given_bias: bool) -> None:
    torch.manual_seed(1)
    x, dy = torch.randn(rows, 64).bfloat16(), (torch.randn(rows, 64) + 0.5).bfloat16()
    weight, bias = torch.rand(64).bfloat16() + 0.5, torch.rand(64).bfloat16() if given_bias else None
    vectors = [each for each in (weight, bias) if each is not None]
    narrow = [each.clone().requires_grad_() for each in (x, *vectors)]
    wide = [each.double().requires_grad_() for each in (x, *vectors)]
    layer_norm(narrow[0], narrow[1], narrow[2] if given_bias else None, 1e-5).backward(dy)
    layer_norm(wide[0], wide[1], wide[2] if given_bias else None, 1e-5).backward(dy.double())
    for mine, theirs in zip(narrow, wide, strict=True):
        assert mine.grad is not None
        assert theirs.grad is not None
        assert off(mine.grad, theirs.grad) < 2 * ROUNDING


def test_what_does_not_train_is_not_summed() -> None:
    x = torch.randn(300, 8).bfloat16()
    mean, rstd = torch.zeros(300, 1), torch.ones(300, 1)
    found = norm_gradient(x, x, mean, rstd, (torch.ones(8), None), (True, False, False))
    assert found[1:] == (None, None)
    kernel = torch.ops.aten.native_layer_norm_backward
    assert torch.equal(found[0], kernel(x, x, [8], mean, rstd, torch.ones(8), None, [True, False, False])[0])


@examples(20)
@given(st.integers(1, 40), st.integers(1, 130), st.integers(0, 2**31))
def test_rows_of_a_table_get_the_sum_of_their_tokens(rows: int, width: int, seed: int) -> None:
    torch.manual_seed(seed)
    tokens = torch.randint(0, rows, (3, 50)).clamp(max=rows // 2)  # some rows are never read
    table, gradient = torch.randn(rows, width).bfloat16(), (torch.randn(3, 50, width) + 1).bfloat16()
    narrow, wide = table.clone().requires_grad_(), table.double().requires_grad_()
    assert torch.equal(lookup(tokens, narrow), torch.nn.functional.embedding(tokens, table))
    lookup(tokens, narrow).backward(gradient)
    lookup(tokens, wide).backward(gradient.double())
    assert narrow.grad is not None
    assert wide.grad is not None
    torch.testing.assert_close(narrow.grad.double(), wide.grad, rtol=ROUNDING, atol=1e-5)


MODEL = {"layers": 1, "hidden": 32, "heads": 2, "sequence": 64, "vocabulary": 64}
LLAMA = {"activation": "swiglu", "positions": "rotary", "biases": False, "norm": "rms"}
STRATEGIES = ("four_d", "fsdp", "ddp")
TOGETHER, MANY = (256, 256), (512, 1)
"""Sequences of a step and of a micro-step: many tokens at once, many micro-steps."""
CASES = [
    *((name, 1, model, batch) for name in STRATEGIES for model in ({}, LLAMA) for batch in (TOGETHER, MANY)),
    *(("ddp", 2, model, batch) for model in ({}, LLAMA) for batch in (TOGETHER, MANY)),  # sums of buckets are sent
]


def gradients(
    strategy: str, ranks: int, model: dict[str, Any], batch: tuple[int, int], precision: str
) -> dict[str, np.ndarray]:
    """Run a rank's step on text in which few tokens are frequent; return the gradient of each parameter.

    Other ranks have nothing to add: what a collective gives is what the rank sent.
    """
    grid = {"data": ranks} if strategy != "fsdp" else {"weights": ranks}
    raw = {
        "strategy": strategy,
        "model": MODEL | model,
        "machine": "laptop",
        "ranks": ranks,
        "grid": grid,
        "batch": {"sequences": batch[0] * ranks, "micro_sequences": batch[1]},
        "precision": precision,
    }
    job = load_job(raw)
    random = np.random.default_rng(3)
    text = torch.from_numpy(
        (random.integers(0, 64, (batch[0], 65)) * (random.random((batch[0], 65)) < 0.9)).astype(int)
    )
    with fake_world(job.concrete_grid, 0) as mesh:
        trainee = trains(job)(job, mesh, torch.device("cpu"), Adam())
        wide = trainee.context.master_type
        each = torch.full((batch[1], 64), 1 / (batch[0] * 64), dtype=wide)
        trainee.step(
            [
                MicroBatch(i, text[i : i + batch[1], :-1], text[i : i + batch[1], 1:], each)
                for i in range(0, batch[0], batch[1])
            ],
            0.0,
        )
        store = trainee.context.store
        return {name: parameter.gradient.double().numpy().copy() for name, parameter in store.parameters.items()}


@pytest.mark.parametrize(("strategy", "ranks", "model", "batch"), few(CASES, CASES[0], CASES[6], CASES[9], CASES[-1]))
def test_gradients_of_many_tokens_are_near_those_of_fp32(
    strategy: str, ranks: int, model: dict[str, Any], batch: tuple[int, int]
) -> None:
    narrow, wide = (gradients(strategy, ranks, model, batch, precision) for precision in ("bf16", "fp32"))
    assert narrow.keys() == wide.keys()
    for name, expected in wide.items():
        error = np.linalg.norm(narrow[name] - expected) / np.linalg.norm(expected)
        assert error < 0.03, f"{name}: {error:.3f}"
