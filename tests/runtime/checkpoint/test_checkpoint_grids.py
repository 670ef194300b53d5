"""What is saved on one grid is loaded on any other, and training goes on as if nothing had happened."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from tests.runtime import parity
from tests.runtime.checkpoint import tasks
from tests.runtime.checkpoint.tasks import grid
from tests.tiers import quick

SHARDED = {"data_reduction": {"mode": "sharded"}}
AHEAD = {"data_reduction": {"mode": "sharded_overlapped", "bucket": "16 KiB"}}
CASES: dict[str, tuple[str, dict[str, Any]]] = {
    "alone": ("1x1x1x1", {}),
    "data": ("2x1x1x1", {}),
    "zy": ("1x2x2x1", {}),
    "yx": ("1x1x2x2", {}),
    "data-z-x": ("2x2x1x2", {}),
    "sharded": ("2x1x1x1", SHARDED),
    "sharded-z-x": ("2x2x1x2", SHARDED),
    "sharded-4": ("4x1x2x1", SHARDED),
    "ahead": ("2x1x1x1", AHEAD),
    "ahead-z-x": ("2x2x1x2", AHEAD),
}
ODD = {"model": {**parity.MODEL, "vocabulary": 37}}
"""A vocabulary that does not divide: rows of the head are padded."""
SAVE, RESUME = "tests.runtime.checkpoint.tasks:save", "tests.runtime.checkpoint.tasks:resume"
AT = 2


def ranks(text: str) -> int:
    return int(np.prod(list(grid(text).values())))


class Saved:
    """A checkpoint saved after two steps, and the run that went on without a break."""

    def __init__(self, pool: Any, root: str, case: str, dtype: str = "float64", **options: Any) -> None:
        text, more = CASES[case]
        self.root = root
        answers = pool.run(SAVE, ranks(text), grid=grid(text), root=root, steps=[AT], dtype=dtype, **more, **options)
        self.full = tasks.assemble([state for state, _ in answers], tasks.shapes(**options))
        self.losses = answers[0][1]


@pytest.fixture(scope="module")
def saved(pool, tmp_path_factory):
    made: dict[str, Saved] = {}

    def get(case: str) -> Saved:
        if case not in made:
            made[case] = Saved(pool, str(tmp_path_factory.mktemp(case)), case, **ODD)
        return made[case]

    return get


NAMES = list(CASES)
SAMPLE = [(name, NAMES[(i + far) % len(NAMES)]) for i, name in enumerate(NAMES) for far in (0, 3)]
"""Every case to itself and to one more; sharded states to unsharded and back, and to parts of buckets, among them."""


@pytest.mark.parametrize(("source", "target"), quick(SAMPLE, ("zy", "zy"), ("zy", "sharded")))
def test_every_element_arrives_bit_for_bit(pool, saved, source, target):
    check(pool, saved, source, target)


@pytest.mark.slow
@pytest.mark.parametrize(("source", "target"), [c for c in itertools.product(NAMES, NAMES) if c not in SAMPLE])
def test_every_element_arrives_from_everywhere(pool, saved, source, target):
    check(pool, saved, source, target)


def check(pool: Any, saved: Any, source: str, target: str) -> None:
    text, options = CASES[target]
    before = saved(source)
    answers = pool.run(RESUME, ranks(text), grid=grid(text), root=before.root, go_on=True, **options, **ODD)
    for loaded, *_ in answers:
        assert (loaded.step, loaded.samples, loaded.rejected) == (AT, AT * parity.SEQUENCES, ())
        assert loaded.extra == {"note": f"step {AT}"}
        assert dict(loaded.grid) == grid(CASES[source][0])
    full = tasks.assemble([state for _, state, _, _ in answers], tasks.shapes(**ODD))
    for name, expected in before.full.items():
        np.testing.assert_array_equal(full[name], expected, err_msg=name)
    for _, _, losses, _ in answers:
        if source == target:
            assert losses == before.losses[AT:]
        else:
            np.testing.assert_allclose(losses, before.losses[AT:], rtol=1e-9)


@pytest.mark.parametrize("case", ["data-z-x", "sharded-4", "ahead-z-x"])
def test_the_same_grid_goes_on_bit_for_bit(pool, tmp_path, case):
    """In float32, with dropout, whose masks depend on the step; weights and moments at the end too."""
    text, more = CASES[case]
    options = {**more, "dropout": 0.1}
    root = str(tmp_path)
    run = {"grid": grid(text), "dtype": "float32", **options}
    straight = pool.run(SAVE, ranks(text), root=root, steps=[AT, parity.STEPS], **run)
    (tmp_path / f"step-{parity.STEPS:08d}").rename(tmp_path / "later")
    resumed = pool.run(RESUME, ranks(text), root=root, go_on=True, **run)
    shapes = tasks.shapes(**options)
    expected = tasks.assemble([state for state, _ in straight], shapes)
    found = tasks.assemble([state for *_, state in resumed], shapes)
    assert resumed[0][2] == straight[0][1][AT:]
    for name, values in expected.items():
        np.testing.assert_array_equal(found[name], values, err_msg=name)


@pytest.mark.parametrize(
    ("source", "target"),
    [("sharded-z-x", "sharded-4"), ("sharded", "data"), ("data-z-x", "sharded-z-x"), ("sharded-4", "ahead-z-x")],
)
def test_master_weights_of_a_part_go_with_rounded_ones_of_all(pool, tmp_path, source, target):
    """In bfloat16 a rank of a sharded run has the exact weights of its parts alone, and computes with all of them."""
    before = Saved(pool, str(tmp_path), source, "bfloat16", **ODD)
    text, options = CASES[target]
    run = {"grid": grid(text), "root": before.root, "dtype": "bfloat16", "go_on": True, **options, **ODD}
    answers = pool.run(RESUME, ranks(text), **run)
    full = tasks.assemble([state for _, state, _, _ in answers], tasks.shapes(**ODD))
    for name, expected in before.full.items():
        np.testing.assert_array_equal(full[name], expected, err_msg=name)
    for _, _, losses, _ in answers:
        np.testing.assert_allclose(losses, before.losses[AT:], rtol=2e-2)


def test_before_the_first_step_moments_are_zero(pool, tmp_path):
    text = "1x2x2x1"
    answers = pool.run(SAVE, 4, grid=grid(text), root=str(tmp_path), steps=[0])
    resumed = pool.run(RESUME, 4, grid=grid(text), root=str(tmp_path), go_on=True)
    assert resumed[0][2] == answers[0][1]
    moments = [p for name, pieces in resumed[0][1].items() if "exp_avg" in name for _, p in pieces]
    assert not any(piece.any() for piece in moments)


def test_replicas_share_the_writing(pool, tmp_path):
    """Every element is in one file only, and files of data replicas are of similar size."""
    wide = {"model": {**parity.MODEL, "hidden": 512}}
    pool.run(SAVE, 2, grid=grid("2x1x1x1"), root=str(tmp_path), steps=[0], dtype="float32", **wide)
    sizes = [p.stat().st_size for p in tmp_path.glob("*/rank-*.safetensors")]
    elements = sum(int(np.prod(shape)) for shape in tasks.shapes(**wide).values())
    assert len(sizes) == 2
    assert 4 * elements <= sum(sizes) <= 4 * elements * 1.01
    assert max(sizes) < 1.1 * min(sizes)
