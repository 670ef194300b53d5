"""Mixtures: shares of every prefix, each set's own epochs, the same order however it is asked for, what is refused."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data.batches import Batches, local_sequences
from runtime.data.build import build_dataset
from runtime.data.mixture import Mixture
from runtime.data.tokens import TokenFile
from runtime.plan.sources import open_sources
from tests.profiles import examples
from tests.runtime import runs
from twin.description.mixture import Weighted, cycle, whole_weights
from twin.description.problems import DescriptionError
from twin.strategies import load_job
from twin.strategies.four_d.grid import Grid

WEIGHTS = st.lists(st.integers(1, 60), min_size=1, max_size=7)


def lowest(weights: list[int]) -> tuple[int, ...]:
    return whole_weights(tuple(Weighted(path=str(i), weight=weight) for i, weight in enumerate(weights)))


def part(number: int, windows: int, *, shuffle: bool = True, answers: bool = False) -> Batches:
    """Windows of three tokens: the set, and which window it is, twice."""
    tokens = np.array([(number, w, w) for w in range(windows)]).ravel()
    tokens = np.append(tokens, number)
    targets = np.arange(len(tokens)) % 3 == 2 if answers else None
    file = TokenFile(Path(f"{number}/train.bin"), tokens.astype("<u2"), "", targets)
    return Batches(file, 3, seed=4, vocabulary=1000, shuffle=shuffle)


@given(weights=WEIGHTS)
@examples(2)
def test_every_prefix_has_every_share_but_for_less_than_one_sample(weights):
    whole = lowest(weights)
    total, taken = sum(whole), [0] * len(whole)
    for n, chosen in enumerate(cycle(whole), start=1):
        taken[chosen] += 1
        assert all(abs(count - n * Fraction(w, total)) < 1 for count, w in zip(taken, whole, strict=True))
    assert tuple(taken) == whole  # and so on, cycle after cycle


@given(weights=WEIGHTS, n=st.integers(0, 3000))
@examples(0.5)
def test_counts_are_those_of_the_samples(weights, n):
    whole = lowest(weights)
    mixture = Mixture([part(i, 2 + i) for i in range(len(whole))], whole)
    sets, _ = mixture.places(np.arange(n))
    assert mixture.counts(n) == np.bincount(sets, minlength=len(whole)).tolist()


@given(weights=st.lists(st.integers(1, 9), min_size=1, max_size=4), sizes=st.lists(st.integers(1, 30), min_size=4))
@examples(0.5)
def test_each_set_is_walked_as_it_would_be_alone(weights, sizes):
    """Every window once an epoch, in an order of its own for each."""
    parts = [part(i, size) for i, size in zip(range(len(weights)), sizes, strict=False)]
    found = Mixture(parts, lowest(weights)).sequences(0, 400)
    for number, alone in enumerate(parts):
        mine = found[found[:, 0] == number]
        np.testing.assert_array_equal(mine, alone.sequences(0, len(mine)))
        whole_epochs = mine[: len(mine) // alone.windows * alone.windows, 1].reshape(-1, alone.windows)
        assert (np.sort(whole_epochs, 1) == np.arange(alone.windows)).all()


@given(first=st.integers(0, 10**12), cuts=st.lists(st.integers(0, 30), max_size=5))
@examples(0.5)
def test_samples_do_not_depend_on_how_they_are_asked_for(first, cuts):
    mixture = Mixture([part(0, 7), part(1, 40), part(2, 3)], (5, 3, 2))
    whole = mixture.sequences(first, sum(cuts))
    begins = first + np.concatenate([[0], np.cumsum(cuts)])
    pieces = [mixture.sequences(int(begin), count) for begin, count in zip(begins, cuts, strict=False)]
    np.testing.assert_array_equal(np.concatenate([np.empty((0, 4), np.int64), *pieces]), whole)


@pytest.mark.parametrize("grid", [Grid(), Grid(data=2, z=2), Grid(z=4), Grid(data=2, x=2), Grid(y=4)], ids=str)
def test_a_step_has_the_same_samples_on_every_grid(grid):
    mixture = Mixture([part(0, 7), part(1, 40)], (2, 1))
    replicas = {}
    for rank in range(grid.ranks):
        parts = [mixture.sequences(*each) for each in local_sequences(grid, rank, 3, 8, 2)]
        replicas[grid.replica(rank)] = np.concatenate(parts)
    step = np.concatenate([replicas[number] for number in sorted(replicas)])
    np.testing.assert_array_equal(step, mixture.sequences(24, 8))


def test_plain_sets_and_conversations_together():
    """All targets of a plain set count; and ranks agree that targets are counted, whatever samples they have."""
    mixture = Mixture([part(0, 7), part(1, 40, answers=True)], (1, 1))
    for sample in range(20):
        counts = mixture.targets(sample, 1)
        assert counts.tolist() == [[True] * 3 if sample % 2 == 0 else [False, True, False]]
    assert Mixture([part(0, 7), part(1, 40)], (1, 1)).targets(0, 9) is None


@given(weights=st.lists(st.integers(1, 9), min_size=2, max_size=4), sizes=st.lists(st.integers(1, 30), min_size=4))
@examples(0.5)
def test_held_out_parts_are_looked_at_until_one_would_come_again(weights, sizes):
    parts = [part(i, size, shuffle=False) for i, size in zip(range(len(weights)), sizes, strict=False)]
    mixture = Mixture(parts, lowest(weights))
    found = [tuple(row) for row in mixture.sequences(0, mixture.windows + 1)[:, :2].tolist()]
    assert len(set(found)) == len(found) - 1
    assert found[-1] in found[:-1]


@pytest.mark.parametrize(
    ("weights", "whole"), [([3, 1], (3, 1)), ([0.7, 0.3], (7, 3)), ([0.1, 1e-3], (100, 1)), ([2, 4, 6], (1, 2, 3))]
)
def test_weights_are_taken_as_they_are_written(weights, whole):
    assert lowest(weights) == whole


def data_sets(folder: Path) -> None:
    for number, name in enumerate(("a", "b")):
        noise = np.random.default_rng(number).integers(97, 123, (40, 30 * (number + 1))).astype(np.uint8)
        build_dataset(folder / name, [bytes(row).decode() for row in noise], validation_fraction=0.3)


@pytest.mark.parametrize(
    ("data", "words"),
    [
        ([], "train.data: is an empty list"),
        ([{"path": "a", "weight": 0}], "train.data.0.weight = 0"),
        ([{"path": "a"}, {"weight": 3}], "train.data.1.path: missing"),
        ([{"path": "a"}, {"path": "a", "weight": 2}], "train.data.1.path = 'a': is given twice"),
        ([{"path": ""}], "train.data.0.path = '': is empty"),
        ([{"path": "a", "wight": 3}], "train.data.0.wight"),
        ([{"path": "a", "weight": 3.14159}, {"path": "b", "weight": 2.71828}], "train.data = '3.14159, 2.71828': its"),
        (["a", "b"], "train.data.0"),
        (3, "train.data = 3"),
        ({"path": "a"}, "train.data"),
    ],
    ids=str,
)
def test_mixtures_that_are_none(tmp_path, data, words):
    with pytest.raises(DescriptionError) as refused:
        load_job(runs.write_job(tmp_path, train={"data": data}))
    assert words in str(refused.value), refused.value


def test_one_set_in_a_list_is_the_set_alone(tmp_path):
    data_sets(tmp_path)
    found = []
    for data in (str(tmp_path / "a"), [{"path": str(tmp_path / "a"), "weight": 7}]):
        job = load_job(runs.write_job(tmp_path, train={"data": data}))
        sources = open_sources(job, job.train)
        found.append((sources.identity(), sources.samples(job).sequences(0, 50).tolist()))
    assert found[0] == found[1]


def test_sets_that_do_not_go_together_are_named(tmp_path):
    library = pytest.importorskip("tokenizers")
    from runtime.data.tokenizer import JsonTokenizer

    data_sets(tmp_path)
    words = library.Tokenizer(library.models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="c"))
    words.pre_tokenizer = library.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "words.json"))
    texts = (f"a b {'c ' * (20 + number)}" for number in range(60))
    build_dataset(tmp_path / "words", texts, JsonTokenizer(tmp_path / "words.json"), 0.3)
    mixture = [{"path": str(tmp_path / name)} for name in ("a", "words", "none")]
    job = load_job(runs.write_job(tmp_path, train={"data": mixture}))
    with pytest.raises(DescriptionError) as refused:
        open_sources(job, job.train)
    first, second = map(str, refused.value.problems)
    assert first.startswith("train.data.1.path")
    assert "has tokenizer tokenizer.json, but" in first
    assert second.startswith("train.data.2.path")
    assert "no such data set" in second
