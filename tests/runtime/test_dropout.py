"""Dropout against its formula: `kept / (1 − p)` of what passes, by the address in the full tensor."""

from __future__ import annotations

import math

import pytest
import torch

from runtime.model.attention import Attention
from runtime.model.elementwise import residual
from runtime.parallel import random
from runtime.parallel.mesh import Mesh
from runtime.parallel.ops import Place
from runtime.strategies.four_d.context import FourDContext
from tests.runtime import parity
from twin.strategies.four_d.grid import AXES, Grid

ALL, HIDDEN, HEADS, LENGTH = 6, 64, 8, parity.MODEL["sequence"]  # sequences in the full tensors
SIZE, SEED, STEP, DROP = HIDDEN // HEADS, 11, 3, 0.3
GRIDS = [Grid(), Grid(x=2), Grid(y=4), Grid(y=2, x=2)]


class Silent:
    """A listener that does what it hears of: ops then go through `Region`'s own backward."""

    in_autograd = False

    def compute(self, _op, run):
        return run()

    start = wait = compute


def context_of(grid, rank, first, listened=False):
    """A rank's context, without any process group, before sequence `first`."""
    mesh = Mesh(grid, rank, grid.coordinates(rank), {}, None)
    job = parity.describe(dict(zip(AXES, grid.sizes, strict=True)), dropout=DROP, attention="plain", seed=SEED)
    context = FourDContext(job, mesh, torch.device("cpu"), torch.float64, torch.float64)
    context.step, context.first_sequence = STEP, first
    context.ops.listener = Silent() if listened else None
    return context


def drawn(*shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def mask_of(path, name, rows, columns):
    """Which elements of a full tensor stay: addresses are row and column numbers."""
    stream = random.key(SEED, STEP, path, name)
    return random.keep_mask(torch.arange(rows), torch.arange(columns), stream, DROP)


CASES = [(grid, rank) for grid in GRIDS for rank in range(grid.ranks)]


@pytest.mark.parametrize("listened", [False, True])
@pytest.mark.parametrize(("grid", "rank"), CASES, ids=str)
def test_a_residual_sum_adds_what_is_kept_scaled_up(grid, rank, listened):
    first, count, width = 2, 3, HIDDEN // grid.x
    context = context_of(grid, rank, first, listened)
    rows = slice(first * LENGTH, (first + count) * LENGTH)
    at = grid.coordinates(rank)["x"]
    columns = slice(at * width, (at + 1) * width)
    full = [drawn(ALL * LENGTH, HIDDEN, seed=seed) for seed in (1, 2, 3)]
    stream, update, gradient = (part[rows, columns].clone() for part in full)
    stream.requires_grad_()
    update.requires_grad_()
    for path, name in (("block0", "residual1"), ("block0", "residual2"), ("block1", "residual1")):
        scale = mask_of(path, name, ALL * LENGTH, HIDDEN)[rows, columns].double() / (1 - DROP)
        out = residual(context, Place(path), name, stream, update, first_column=at * width)
        torch.testing.assert_close(out, stream + scale * update)
        to_stream, to_update = torch.autograd.grad(out, (stream, update), gradient)
        torch.testing.assert_close(to_stream, gradient)
        torch.testing.assert_close(to_update, scale * gradient)


def attended(packed, masks):
    """Causal attention (tokens, h) of whole sequences, one head and sequence after another."""
    q, k, v = (packed[:, part * HIDDEN : (part + 1) * HIDDEN] for part in range(3))
    out = torch.empty(packed.shape[0], HIDDEN, dtype=torch.float64)
    for sequence in range(packed.shape[0] // LENGTH):
        for head in range(HEADS):
            rows = slice(sequence * LENGTH, (sequence + 1) * LENGTH)
            columns = slice(head * SIZE, (head + 1) * SIZE)
            scores = (q[rows, columns] @ k[rows, columns].T / math.sqrt(SIZE)).exp().tril()
            shares = scores / scores.sum(1, keepdim=True)
            if masks is not None:
                shares = shares * masks[sequence, head] / (1 - DROP)
            out[rows, columns] = shares @ v[rows, columns]
    return out


def part_of(full, grid, rank, first, count, parts):
    """What a rank of y holds of (tokens, parts · h), for some sequences."""
    rows = full[first * LENGTH : (first + count) * LENGTH].view(count * LENGTH, parts, HIDDEN)
    width, at = HIDDEN // grid.y, grid.coordinates(rank)["y"]
    return rows[:, :, at * width : (at + 1) * width].flatten(1)


@pytest.mark.parametrize("listened", [False, True])
@pytest.mark.parametrize(("grid", "rank"), CASES, ids=str)
def test_attention_drops_scores_after_the_softmax(grid, rank, listened):
    first, count = 2, 3
    context = context_of(grid, rank, first, listened)
    packed = drawn(ALL * LENGTH, 3 * HIDDEN, seed=4)
    # row of the mask: (sequence · heads + head) · s + query; column: key
    masks = mask_of("block1", "scores", ALL * HEADS * LENGTH, LENGTH)
    expected = attended(packed, masks.view(ALL, HEADS, LENGTH, LENGTH).double())
    attention = Attention(context, Place("block1"), parts=grid.y, part=grid.coordinates(rank)["y"])
    out = attention(part_of(packed, grid, rank, first, count, 3), count)
    torch.testing.assert_close(out, part_of(expected, grid, rank, first, count, 1))


@pytest.mark.parametrize("listened", [False, True])
def test_nothing_is_dropped_when_not_training(listened):
    context = context_of(Grid(), 0, 0, listened)
    stream, update = (drawn(2 * LENGTH, HIDDEN, seed=seed) for seed in (1, 2))
    packed = drawn(2 * LENGTH, 3 * HIDDEN, seed=4)
    attention = Attention(context, Place("block0"))
    for training in (False, True):
        context.training = training
        added = residual(context, Place("block0"), "residual1", stream, update)
        assert torch.equal(added, stream + update) is not training
        assert torch.allclose(attention(packed, 2), attended(packed, None)) is not training


def lines_and_columns():
    """What a mask of 300 rows and 200 columns is made of."""
    rows, columns = (random.numbers(torch.arange(7, 7 + count)) for count in (300, 200))
    return *random.lines(rows, SEED), columns[0], random.least_kept(DROP)


def test_masks_are_equal_in_one_kernel_and_in_three():
    made_of = lines_and_columns()
    in_steps = random.kept_in_steps(*made_of)
    assert in_steps.double().mean().item() == pytest.approx(1 - DROP, abs=0.01)
    assert torch.equal(random.kept(*made_of), in_steps)


@pytest.mark.process  # the C++ compiler
@pytest.mark.filterwarnings("ignore:.*torch.jit:DeprecationWarning")  # of what torch.compile imports
def test_masks_are_equal_when_compiled():
    made_of = lines_and_columns()
    compiled = torch.compile(random.kept, dynamic=False, fullgraph=True)
    assert torch.equal(compiled(*made_of), random.kept_in_steps(*made_of))


@pytest.mark.full
def test_masks_have_no_structure():
    """Rows and columns of a mask, and masks of two uses, have no more in common than chance gives them."""
    rows, columns = torch.arange(2048), torch.arange(1024)
    masks = [random.keep_mask(rows, columns, random.key(SEED, use), DROP) for use in ("a", "b")]
    here, there = ((mask.double() - (1 - DROP)) / math.sqrt(DROP * (1 - DROP)) for mask in masks)
    # of random numbers the largest singular value is that (Marchenko and Pastur), give or take a percent
    edge = math.sqrt(len(rows)) + math.sqrt(len(columns))
    for matrix in (here, here * there, here[1:] * here[:-1], here[:, 1:] * here[:, :-1]):
        assert torch.linalg.matrix_norm(matrix, 2).item() == pytest.approx(edge, rel=0.02)
        assert abs(matrix.mean().item()) < 5 / math.sqrt(matrix.numel())
    # four elements at the corners of a rectangle
    corners = here[::2, ::2] * here[1::2, ::2] * here[::2, 1::2] * here[1::2, 1::2]
    assert abs(corners.mean().item()) < 5 * corners.std().item() / math.sqrt(corners.numel())


def check_mean(draws, mean, variance):
    """Means of many draws lie about the true mean as their true variance says."""
    scores = (draws.mean(0) - mean) / (variance / len(draws)).sqrt()
    assert scores.abs().max() < 5
    assert scores.square().mean().item() == pytest.approx(1.0, abs=0.15)
    assert scores.mean().item() == pytest.approx(0.0, abs=0.15)


def test_the_expectation_over_masks_is_the_value_without_dropout():
    context, place = context_of(Grid(), 0, 0), Place("block0")
    stream, update = (drawn(2 * LENGTH, HIDDEN, seed=seed) for seed in (1, 2))
    packed = drawn(LENGTH, 3 * HIDDEN, seed=4)
    attention, sums, mixed = Attention(context, place), [], []
    for context.step in range(1500):  # each step has masks of its own
        sums.append(residual(context, place, "residual1", stream, update))
        mixed.append(attention(packed, 1))
    # a kept share x/(1 − p) has variance x²·p/(1 − p)
    spread = DROP / (1 - DROP)
    check_mean(torch.stack(sums), stream + update, update.square() * spread)
    values = packed[:, 2 * HIDDEN :].view(LENGTH, HEADS, SIZE)
    mean = attended(packed, None)
    variances = [shares.square() @ values[:, head].square() for head, shares in enumerate(shares_of(packed))]
    check_mean(torch.stack(mixed), mean, torch.cat(variances, 1) * spread)


def shares_of(packed):
    """Each head's attention shares (s, s): what it makes of values that are unit vectors.

    There are as many as a head has features.
    """
    for head in range(HEADS):
        columns = slice(head * SIZE, (head + 1) * SIZE)
        units = packed.clone()
        units[:, 2 * HIDDEN :] = 0
        units[:, 2 * HIDDEN :][:, columns] = torch.eye(LENGTH, dtype=torch.float64)
        yield attended(units, None)[:, columns]
