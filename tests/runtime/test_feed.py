"""What a rank is fed: its part of one global batch, each target weighted by its share of all."""

from __future__ import annotations

import threading
from concurrent.futures import wait
from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch

from runtime.data.ahead import Ahead
from runtime.data.batches import Batches
from runtime.data.goldfish import Goldfish
from runtime.data.tokens import TokenFile
from runtime.parallel.mesh import Mesh
from runtime.step.feed import Feed
from runtime.strategies.four_d.context import FourDContext
from tests.runtime import parity
from twin.strategies.four_d.grid import AXES, Grid

ONE = dict.fromkeys(AXES, 1)
GRIDS = [{"data": 2, "z": 2, "y": 1, "x": 1}, {"data": 1, "z": 1, "y": 2, "x": 2}, {"data": 2, "z": 1, "y": 1, "x": 2}]
LENGTH, BATCH = parity.MODEL["sequence"], parity.SEQUENCES
WINDOWS, STEPS, MICRO_STEPS = 37, 4, 2  # the third step crosses the end of an epoch
TARGETS = BATCH * LENGTH


def feed(worker, grid, goldfish):
    """Return what each step gives this rank: (first, tokens, targets, weights) a micro-batch.

    Each token is its own place in the file, so that it shows where a sequence is from.
    """
    tokens = np.arange(WINDOWS * LENGTH + 1, dtype=np.uint16)
    batches = Batches(TokenFile(Path("train.bin"), tokens, ""), LENGTH, 5, len(tokens))
    job = parity.describe(grid, micro_steps=MICRO_STEPS)
    mesh = Mesh.alone(Grid()) if worker is None else worker.mesh(Grid(**grid))
    context = FourDContext.of_job(job, mesh, torch.device("cpu"))
    fed = Feed(context, batches, parity.GOLDFISH if goldfish else None)
    return [
        [
            (micro.first_sequence, *(part.numpy() for part in (micro.tokens, micro.targets, micro.weights)))
            for micro in fed.step(step)
        ]
        for step in range(STEPS)
    ]


@cache
def alone(goldfish):
    return feed(None, ONE, goldfish)


@pytest.fixture(
    params=[(grid, goldfish) for grid in GRIDS for goldfish in (False, True)],
    ids=lambda case: f"{Grid(**case[0])}{'-goldfish' * case[1]}",
)
def fed(pool, request):
    """A grid, whether Goldfish loss is on, and what each rank was fed."""
    grid, goldfish = request.param
    answers = pool.run("tests.runtime.test_feed:feed", 4, grid=grid, goldfish=goldfish)
    return Grid(**grid), goldfish, answers


def replicas(grid, answers):
    """One rank's answers of each (x, y) plane, in order of (data, z); the others must equal them."""
    planes = {}
    for rank, answer in enumerate(answers):
        at = grid.coordinates(rank)
        first = planes.setdefault((at["data"], at["z"]), answer)
        for step, other in zip(answer, first, strict=True):
            for micro, same in zip(step, other, strict=True):
                assert micro[0] == same[0]
                for part, expected in zip(micro[1:], same[1:], strict=True):
                    np.testing.assert_array_equal(part, expected)
    assert len(planes) == grid.data * grid.z
    return [planes[place] for place in sorted(planes)]


def joined(grid, answers, step, part):
    """One tensor of the global batch: the replicas' micro-batches one after the other."""
    return np.concatenate([micro[part] for rank in replicas(grid, answers) for micro in rank[step]])


def test_every_grid_is_fed_the_same_global_batch(fed):
    grid, goldfish, answers = fed
    for step in range(STEPS):
        for part in (1, 2, 3):
            expected = joined(Grid(), [alone(goldfish)], step, part)
            np.testing.assert_array_equal(joined(grid, answers, step, part), expected)


def test_sequences_are_numbered_over_all_steps(fed):
    grid, _, answers = fed
    micro = BATCH // (grid.data * grid.z * MICRO_STEPS)
    for step in range(STEPS):
        firsts = [each[0] for rank in replicas(grid, answers) for each in rank[step]]
        assert firsts == list(range(step * BATCH, (step + 1) * BATCH, micro))
        assert all(each[1].shape == (micro, LENGTH) for rank in answers for each in rank[step])


def test_targets_are_the_tokens_after(fed):
    grid, _, answers = fed
    for step in range(STEPS):
        tokens, targets = (joined(grid, answers, step, part) for part in (1, 2))
        begins = tokens[:, :1]
        assert (begins % LENGTH == 0).all()
        np.testing.assert_array_equal(tokens, begins + np.arange(LENGTH))
        np.testing.assert_array_equal(targets, tokens + 1)


def test_an_epoch_has_every_window_once(fed):
    grid, _, answers = fed
    begins = np.concatenate([joined(grid, answers, step, 1)[:, 0] for step in range(STEPS)])
    order = begins[:WINDOWS] // LENGTH
    assert sorted(order) == list(range(WINDOWS))
    assert list(order) != sorted(order)
    rest = begins[WINDOWS:] // LENGTH  # the next epoch, in another order
    assert len(set(rest)) == len(rest)
    assert list(rest) != list(order[: len(rest)])


def test_weights_are_each_targets_share_of_those_that_count(fed):
    grid, goldfish, answers = fed
    for step in range(STEPS):
        tokens, targets, weights = (joined(grid, answers, step, part) for part in (1, 2, 3))
        window = torch.from_numpy(np.concatenate([tokens, targets[:, -1:]], 1))
        kept = Goldfish(k=3, h=3).keeps(window).numpy() if goldfish else np.ones_like(tokens, bool)
        count = int(kept.sum())
        assert count < TARGETS if goldfish else count == TARGETS
        expected = np.where(kept, np.float32(1) / np.float32(count), np.float32(0))
        assert weights.dtype == np.float32
        np.testing.assert_array_equal(weights, expected)
        assert weights.sum(dtype=np.float64) == pytest.approx(1.0, abs=1e-7)


@pytest.mark.quick
def test_replicas_keep_unequal_numbers_of_targets(pool):
    """Else dividing by a replica's own count would look right above."""
    grid = GRIDS[0]
    answers = pool.run("tests.runtime.test_feed:feed", 4, grid=grid, goldfish=True)
    for step in range(STEPS):
        counts = {sum(int((micro[3] > 0).sum()) for micro in rank[step]) for rank in replicas(Grid(**grid), answers)}
        assert len(counts) > 1


class Slow:
    """Samples that say when they are read and by whom; of the last there is none."""

    def __init__(self, last: int) -> None:
        self.last, self.read = last, list[tuple[int, bool]]()

    def sequences(self, first, count):
        if first + count > self.last:
            raise ValueError(f"no sample {self.last}")
        self.read.append((first, threading.current_thread() is threading.main_thread()))
        return np.arange(first, first + count).repeat(5).reshape(count, 5)

    def targets(self, _first, count):
        return np.ones((count, 4), dtype=np.bool_)

    def documents(self, _first, _count):
        raise AssertionError("not asked for")


def test_samples_are_read_ahead_by_a_thread_and_are_those_that_were_asked_for():
    samples = Slow(last=100)
    ahead = Ahead(samples, torch.device("cpu"), documents=False)
    ahead.begin([(4, 2), (6, 2)])
    wait([ahead._begun[1]])
    assert samples.read == [(4, False), (6, False)]
    parts = ahead.take([(4, 2), (6, 2)])
    assert [part.first for part in parts] == [4, 6]
    assert [part.window[:, 0].tolist() for part in parts] == [[4, 5], [6, 7]]
    assert [part.documents for part in parts] == [None, None]
    assert len(samples.read) == 2
    ahead.begin([(8, 2)])
    assert ahead.take([(40, 1)])[0].window[0, 0] == 40  # after a step back, say
    assert samples.read[2:] == [(8, False), (40, True)]


def test_what_cannot_be_read_ahead_is_told_when_it_is_wanted():
    ahead = Ahead(Slow(last=5), torch.device("cpu"), documents=False)
    ahead.begin([(4, 2)])
    with pytest.raises(ValueError, match="no sample 5"):
        ahead.take([(4, 2)])
    assert ahead.take([(0, 1)])[0].first == 0
