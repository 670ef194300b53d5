"""How calibration times, groups and shares out: against sleeps, brute force and arithmetic."""

from __future__ import annotations

import math
import time
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from runtime.calibration import kernels
from runtime.calibration.attention import MIN_REPEATS, TimedAttention
from runtime.calibration.core_time import core_time
from runtime.calibration.gemms import passes, product
from runtime.calibration.layouts import layouts
from runtime.calibration.listening import by_kind, hear
from runtime.calibration.messages import chosen_peers
from runtime.calibration.overlap import chosen_layouts
from runtime.calibration.quiet import QuietRank, as_text, quiet_context
from runtime.calibration.sample import chunk_of, in_turn, repeat, spread
from runtime.calibration.sharing import rank_sets, stretches_ns
from runtime.calibration.tiers import _copies, _on_host
from runtime.parallel.mesh import line
from runtime.parallel.ops import Op
from runtime.strategies.four_d.gemm import natural_operands
from runtime.tracing.listener import HostListener
from twin.strategies.four_d.grid import Grid, factorizations

CPU = torch.device("cpu")
"""Stands for a GPU, too, where what is timed is the same."""
MODEL = {"layers": 2, "hidden": 32, "heads": 4, "sequence": 8, "vocabulary": 64}


@pytest.mark.parametrize("milliseconds", [0.2, 3.0])
def test_a_sleep_takes_as_long_as_it_sleeps(milliseconds):
    def run() -> None:
        time.sleep(milliseconds / 1e3)

    chunk = chunk_of(run, CPU)
    sample = repeat(run, chunk, 0.1, CPU)
    assert milliseconds / 1e3 <= sample.seconds < 20 * milliseconds / 1e3
    assert sample.mean_seconds >= milliseconds / 1e3
    assert sample.repeats % chunk == 0


@given(st.lists(st.floats(1e-6, 1e3), min_size=1, max_size=9), st.floats(1e-3, 1e3))
def test_spread_has_no_unit(values, factor):
    assert spread([factor * v for v in values]) == pytest.approx(spread(values), abs=1e-9)


def test_turns_are_taken():
    seen: list[int] = []
    run = in_turn([lambda i=i: seen.append(i) for i in range(3)])
    for _ in range(7):
        run()
    assert seen == [0, 1, 2, 0, 1, 2, 0]


@pytest.mark.parametrize("ranks", [1, 2, 4, 6, 8, 12])
def test_layouts_are_those_of_all_grids(ranks):
    """Brute force: inner size and size of every axis of every grid."""
    of_grids = {
        (grid.inner(axis), grid.size(axis))
        for grid in factorizations(ranks)
        for axis in ("data", "z", "y", "x")
        if grid.size(axis) > 1
    }
    assert {(layout.inner, layout.size) for layout in layouts(ranks)} == of_grids
    assert len(layouts(ranks)) == len(of_grids)


@pytest.mark.parametrize("ranks", [2, 8, 12])
def test_groups_of_a_layout_share_out_the_ranks(ranks):
    for layout in layouts(ranks):
        grid = Grid(data=ranks // layout.inner // layout.size, y=layout.size, x=layout.inner)
        groups = {tuple(line(grid, rank, "y")) for rank in range(ranks)}
        assert len(groups) == layout.groups(ranks)
        assert Counter(rank for group in groups for rank in group) == Counter(range(ranks))


@given(st.lists(st.integers(1, 4), min_size=1, max_size=5))
def test_busy_ranks_grow_from_one_to_all(sizes):
    hosts = tuple(host for host, count in enumerate(sizes) for _ in range(count))
    sets = rank_sets(hosts)
    assert sets[0] == (0,)
    assert set(sets[-1]) == set(range(len(hosts)))
    assert len(set(sets)) == len(sets)
    peers = chosen_peers(hosts)
    assert set(peers) <= set(range(1, len(hosts)))
    assert all(layout.inner * layout.size <= len(hosts) for layout in chosen_layouts(hosts))


def test_products_are_those_of_a_linear_layer():
    """Shapes from the layer's own tensors: O = I·Wᵀ, dI = dO·W, dW = dOᵀ·I."""
    tokens, out, into = 5, 3, 2
    shapes = [(tokens, out, into), (tokens, into, out), (out, into, tokens)]
    assert [(s.m, s.n, s.k) for s in passes(tokens, out, into)] == shapes
    for signature in passes(tokens, out, into):
        found = product(signature, torch.float32, CPU)()
        a, b = natural_operands(signature, torch.float32, CPU)
        torch.testing.assert_close(found, a @ b)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_operands_hold_normal_numbers(dtype):
    """Of equal ones a GPU draws too little power. A sum of k products of two such numbers has the variance k."""
    for signature in passes(192, 256, 320):
        a, b = natural_operands(signature, dtype, CPU)
        product_of_both = (a.double() @ b.double()).flatten()
        assert float(product_of_both.var()) == pytest.approx(signature.k, rel=0.1)
        assert not torch.equal(a.flatten()[:100], b.flatten()[:100])


def test_operands_draw_no_numbers_of_training():
    """Choosing modes must leave dropout and data as they are."""
    torch.manual_seed(3)
    natural_operands(passes(8, 4, 2)[0], torch.float32, CPU)
    after = torch.rand(3)
    torch.manual_seed(3)
    assert torch.equal(after, torch.rand(3))


@pytest.mark.parametrize("grid", [Grid(), Grid(x=2, y=2), Grid(z=2), Grid(data=2, z=2, y=2, x=1)], ids=str)
def test_a_quiet_rank_does_every_op_of_its_part(grid):
    """Products of a step, counted by the algorithm: three a linear, four linears a block, and the head."""
    rank = QuietRank(quiet_context(MODEL, grid, CPU, sequences=2))
    notes = hear(CPU, rank.step)
    gemms = [note.op for note in notes if len(note.op.shape) == 3]
    assert len(gemms) == 3 * (4 * 2 + 1)
    h, tokens, vocabulary = 32, 2 * 8, 64
    weights = 2 * 12 * h * h + vocabulary * h
    assert sum(op.flops for op in gemms) == 6.0 * tokens * weights / (grid.x * grid.y)
    started = Counter(n.op.name for n in notes if n.kind == "collective")
    waited = Counter(n.op.name for n in notes if n.kind == "wait")
    assert started == waited
    assert bool(started) == (grid.ranks > 1)
    assert all(seconds >= 0 for times in by_kind(notes).values() for seconds in times)


def test_of_attention_only_attention_is_timed():
    """Backward also packs gradients, much quicker: with both in one list the median was half of what it takes."""
    layer = TimedAttention(CPU, sequences=2, length=16, heads=2, size=8, form="flash")
    found = layer.times(0.0)
    assert found["fwd"].repeats == found["bwd"].repeats == MIN_REPEATS


def test_copies_and_updates_of_the_host_are_timed(monkeypatch):
    """Rates lie between those of a drive and of a cache, and every thread is back."""
    monkeypatch.setattr("runtime.calibration.tiers.COPIED_BYTES", (1 << 12, 1 << 20))
    monkeypatch.setattr("runtime.calibration.tiers.CONVERTED_ELEMENTS", 1 << 20)
    monkeypatch.setattr("runtime.calibration.tiers.UPDATED_ELEMENTS", 1 << 20)
    threads = torch.get_num_threads()
    entries = [*_copies(CPU, 0.01), *_on_host(CPU, 0.01)]
    assert torch.get_num_threads() == threads
    assert {entry["work"] for entry in entries} == {
        "down",
        "up",
        "converting_down",
        "converting_up",
        "stream",
        "update",
    }
    assert {entry["bytes"] for entry in entries if entry["work"] == "stream"} == {3 * 4 * 2.0**20}
    assert {entry["bytes"] for entry in entries if entry["work"] == "update"} == {7 * 4 * 2.0**20}
    assert 1 in {entry["threads"] for entry in entries if entry["work"] == "stream"}
    for entry in entries:
        assert 1e7 < entry["bytes"] / entry["seconds"] < 1e13


def test_tokens_come_as_often_as_in_text():
    """Zipf's law: the k-th has a share of ln((k + 1) / k) / ln V when numbers are cut off, next to 1 / (k ln V)."""
    torch.manual_seed(0)
    vocabulary, count = 1000, 200_000
    tokens = as_text(vocabulary, (2, count // 2), CPU)
    assert int(tokens.min()) == 0
    assert int(tokens.max()) < vocabulary
    counted = torch.bincount(tokens.flatten(), minlength=vocabulary)
    for k in (1, 2, 5, 20):
        expected = math.log((k + 1) / k) / math.log(vocabulary)
        assert int(counted[k - 1]) / count == pytest.approx(expected, rel=0.1)


def test_what_lies_between_ops_is_of_steps_that_nobody_hears(monkeypatch):
    now = [0.0]

    def step(listener: HostListener | None = None) -> None:
        now[0] += 0.002 if listener is None else 0.5  # what listening costs
        if listener is not None:
            listener.compute(Op("fwd/gelu", "fwd", None, None), int)

    monkeypatch.setattr(time, "thread_time", lambda: now[0])
    team: Any = SimpleNamespace(device=CPU)
    rank: Any = SimpleNamespace(step=step)
    between = kernels._listen(team, rank, 0.0)[kernels.BETWEEN]
    assert len(between) == kernels.MIN_STEPS
    assert between == pytest.approx([0.002] * len(between), abs=5e-4)


def test_stretches_are_what_lies_between_gaps(monkeypatch):
    """A clock that jumps twice: 3 ms after the begin, and 4 ms after it came back."""
    step = 100_000
    looks = [*range(0, 3_000_001, step), *range(15_000_000, 19_000_001, step), 31_000_000]
    monkeypatch.setattr(time, "monotonic_ns", iter(looks).__next__)
    assert stretches_ns(0.031) == [3_000_000, 4_000_000, 0]


class Counted:
    """A clock of a core and of a process, an axis and a product that move them: 5 of a product, 3 of a collective."""

    def __init__(self) -> None:
        self.thread = self.process = 0.0
        self.said: list[str] = []

    def run(self) -> None:
        self.said.append("product")
        self.thread += 5.0
        self.process += 5.0

    def start(self, *_: object) -> Counted:
        self.said.append("start")
        self.process += 2.0  # by gloo's threads
        return self

    def wait(self) -> None:
        self.said.append("wait")
        self.thread += 1.0
        self.process += 1.0


@pytest.mark.parametrize(
    ("beside", "order"),
    [(True, ["start", "product", "product", "wait"]), (False, ["product", "product", "start", "wait"])],
)
def test_processor_time_of_a_collective_is_what_products_leave(monkeypatch, beside, order):
    clock = Counted()
    monkeypatch.setattr(time, "thread_time", lambda: clock.thread)
    monkeypatch.setattr(time, "process_time", lambda: clock.process)
    found = core_time(clock, "all_gather", torch.zeros(1), clock.run, 2, 3, beside=beside)
    assert clock.said == 3 * order
    assert found.collective_seconds == pytest.approx(3.0)
    assert found.product_seconds == pytest.approx(5.0)
