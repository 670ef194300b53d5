"""Weights and gradients that travel in fp32 over z, where layers compute in bfloat16."""

from __future__ import annotations

import numpy as np
import pytest

from tests.runtime.equal import assemble
from twin.description.problems import DescriptionError
from twin.strategies import load_job

OVER_Z = {"data": 1, "z": 2, "y": 1, "x": 1}
OVER_DATA = {"data": 2, "z": 1, "y": 1, "x": 1}


def trained(pool, grid, **options):
    answers = pool.run(
        "tests.runtime.parity:run", int(np.prod([*grid.values()])), grid=grid, dtype="bfloat16", **options
    )
    return answers[0][0], assemble([pieces for _, _, pieces in answers])


def same(found, expected) -> bool:
    return found[0] == expected[0] and all(np.array_equal(found[1][name], full) for name, full in expected[1].items())


@pytest.mark.parametrize("options", [{}, {"gather_unit": "block", "recompute": True}, {"cache_gathered_layers": 1}])
def test_weights_are_the_same_wherever_they_are_rounded(pool, options):
    grid = OVER_Z | {"y": 2}
    rounded_before = trained(pool, grid, **options)
    rounded_after = trained(pool, grid, communication_precision={"gathers": "fp32"}, **options)
    assert same(rounded_after, rounded_before)


@pytest.mark.quick
def test_gradients_are_summed_over_z_as_over_data(pool):
    """Two ranks' gradients of one micro-step each: over data their sum is fp32's, whatever the type of products."""
    options = {"micro_steps": 1, "clip_gradients": False}
    expected = trained(pool, OVER_DATA, **options)
    assert same(trained(pool, OVER_Z, communication_precision={"scatters": "fp32"}, **options), expected)
    assert not same(trained(pool, OVER_Z, **options), expected)


def test_sharded_states_leave_no_fp32_weights_to_gather():
    job = {
        "model": "gpt-5b",
        "machine": "perlmutter",
        "ranks": 8,
        "grid": {"data": 2, "z": 4},
        "batch": {"sequences": 8, "micro_sequences": 1},
        "communication_precision": {"gathers": "fp32"},
        "data_reduction": {"mode": "sharded"},
    }
    with pytest.raises(DescriptionError, match=r"communication_precision\.gathers = 'fp32': .*; use compute, or"):
        load_job(job)
    # in fp32 what is computed with is what the optimizer updates
    assert load_job({**job, "precision": "fp32"}).precision == "fp32"
