"""The schedule that the runtime's own step runs is the one that the twin generates, op by op."""

from __future__ import annotations

from itertools import product
from pathlib import Path

import pytest

from runtime.recorder import record
from tests.profiles import part
from tests.recorder.jobs import JOBS, job, some_ranks
from tests.tiers import few
from twin.schedule.difference import difference
from twin.schedule.ops import Schedule
from twin.strategies import load_job
from twin.strategies.four_d.step import generate

QUICK = (
    *("buckets", "sharded", "sharded, overlapped", "fused softmax, dropout", "blocks", "one layer", "some recomputed"),
    *("documents, llama, plain attention", "attention kept", "across blocks", "halves over z y", "divided"),
    "flat, llama",
)
"""One job for each thing that a schedule can do otherwise; the others put them together."""
EXAMPLES = Path(__file__).parents[2] / "examples"


@pytest.mark.parametrize("name", few(JOBS, *QUICK))
def test_recorded_and_generated_schedules_are_equal(name) -> None:
    described = JOBS[name]
    generated = generate(described)
    for rank in part(some_ranks(described), 1):
        recorded = record(described, rank).schedule
        found = difference(recorded, generated)
        assert not found, f"rank {rank}: {found}"
        # the comparison itself, without the text that it is made of
        for (ours, op), (theirs, other) in zip(recorded.named(), generated.named(), strict=True):
            assert ours == theirs
            assert type(op) is type(other)


def test_the_spread_is_wide_enough() -> None:
    assert len(JOBS) >= 40
    grids = [j.concrete_grid for j in JOBS.values()]
    patterns = {tuple(size > 1 for size in grid.sizes) for grid in grids}
    assert patterns == set(product((False, True), repeat=4))
    assert min(j.ranks for j in JOBS.values()) == 1
    assert max(j.ranks for j in JOBS.values()) == 32_768
    every = list(JOBS.values())
    for what, wanted in (
        (lambda j: j.recompute, {True, False}),
        (lambda j: j.overlap.all_reduce, {True, False}),
        (lambda j: j.overlap.reduce_scatter, {True, False}),
        (lambda j: j.overlap.prefetch_depth if j.overlap.all_gather else 0, {0, 1, 2, 5}),
        (lambda j: j.gather_unit, {"linear", "block"}),
        (lambda j: j.data_reduction.mode, {"one_bucket", "overlapped", "sharded", "sharded_overlapped"}),
        (lambda j: j.attention, {"flash", "fused_softmax", "plain"}),
        (lambda j: j.dropout > 0, {True, False}),
        (lambda j: j.document_mask, {True, False}),
        (lambda j: j.fused_elementwise, {True, False}),
        (lambda j: j.clip_gradients, {True, False}),
        (lambda j: j.communication_precision.gathers, {"compute", "fp32"}),
        (lambda j: j.communication_precision.scatters, {"compute", "fp32"}),
        (lambda j: j.precision, {"bf16", "fp32"}),
        (lambda j: j.model.biases, {True, False}),
        (lambda j: j.model.activation, {"gelu", "swiglu"}),
        (lambda j: j.model.positions, {"learned", "rotary"}),
        (lambda j: j.micro_steps, {1, 2, 3, 5}),
    ):
        assert {what(j) for j in every} >= wanted


def test_published_runs_can_be_recorded() -> None:
    """GPT-40B's widths on 4,096 ranks; two of its layers, for time."""
    described = load_job(EXAMPLES / "gpt-40b-perlmutter-4096.yaml", ["model={preset: gpt-40b, layers: 2}"])
    assert not difference(record(described, 4095).schedule, generate(described))


def test_two_worlds_in_one_process_leave_nothing_behind() -> None:
    import torch.distributed as dist

    first, again = job({"x": 2}), job({"data": 2, "z": 4})
    for described in (first, again, first):
        assert not difference(record(described, 1).schedule, generate(described))
        assert not dist.is_initialized()


def test_kernels_that_were_launched_are_counted() -> None:
    """A norm of one kernel; GELU, one; a sum of two tensors, one; what has no number does not differ."""
    schedule: Schedule = record(job({"z": 2}, precision="fp32", recompute=False)).schedule
    kernels = {name: op.kernel for name, op in schedule.named() if hasattr(op, "kernel")}
    for name in ("norm1/normalize", "gelu", "residual1"):
        assert kernels[f"micro0/fwd/block0/{name}"].kernels == 1
    assert kernels["micro0/loss/sum"].kernels == 3  # subtract, exp, sum
