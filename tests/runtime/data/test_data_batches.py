"""Samples: what they hold, in which order, and which rank works on which."""

from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data.batches import Batches, local_sequences
from runtime.data.tokens import TokenFile, open_dataset
from tests.profiles import examples
from twin.description.problems import DescriptionError
from twin.strategies.four_d.grid import Grid


def token_file(tokens: object, dtype: str = "<u2") -> TokenFile:
    return TokenFile(Path("set/train.bin"), np.asarray(tokens, dtype=dtype), "")


def test_windows_are_read_from_disk_in_file_order(make_dataset):
    """101 tokens make ten windows of ten and the target of the last input."""
    data = open_dataset(make_dataset(range(101)), vocabulary=101, sequence=10)
    batches = Batches(data.train, 10, seed=0, vocabulary=101, shuffle=False)
    assert batches.windows == 10
    found = batches.sequences(0, 10)
    assert found.dtype == np.int64
    assert found.shape == (10, 11)
    assert found[:, :-1].ravel().tolist() == list(range(100))
    assert (found[:, 1:] == found[:, :-1] + 1).all()
    assert batches.sequences(8, 4)[:, 0].tolist() == [80, 90, 0, 10]


def test_uint32_tokens_keep_their_value(make_dataset):
    large = 2**32 - 1
    tokens = [0, 70_000, large, 5]
    folder = make_dataset(tokens, [1, 2, 3], dtype="uint32", changes={"vocabulary": 2**32})
    data = open_dataset(folder, vocabulary=2**32, sequence=2)
    found = Batches(data.train, 2, 0, 2**32, shuffle=False).sequences(0, 1)
    assert found.tolist() == [[0, 70_000, large]]


@given(tokens=st.integers(2, 400), sequence=st.integers(1, 50), seed=st.integers(0, 100), epoch=st.integers(0, 10**6))
@examples(0.8)
def test_every_epoch_holds_every_window_once(tokens, sequence, seed, epoch):
    sequence = min(sequence, tokens - 1)
    batches = Batches(token_file(range(tokens)), sequence, seed, vocabulary=tokens)
    found = batches.sequences(epoch * batches.windows, batches.windows)
    expected = [list(range(w, w + sequence + 1)) for w in range(0, tokens - sequence, sequence)]
    assert sorted(found.tolist()) == expected


@given(first=st.integers(0, 1000), cuts=st.lists(st.integers(0, 40), max_size=6), seed=st.integers(0, 9))
@examples(0.6)
def test_samples_do_not_depend_on_how_they_are_asked_for(first, cuts, seed):
    """Across ends of epochs, too: that is what makes resuming exact and every grid equal."""
    batches = Batches(token_file(np.arange(200) * 7 % 191), 8, seed, vocabulary=200)
    whole = batches.sequences(first, sum(cuts))
    parts, at = [np.empty((0, 9), dtype=np.int64)], first
    for count in cuts:
        parts.append(batches.sequences(at, count))
        at += count
    assert (np.concatenate(parts) == whole).all()


def test_one_window_is_an_epoch():
    batches = Batches(token_file([1, 2, 3]), 2, seed=0, vocabulary=4)
    assert batches.sequences(5, 3).tolist() == [[1, 2, 3]] * 3


@pytest.mark.parametrize("token", [101, 60_000])
@pytest.mark.parametrize("shuffle", [False, True])
def test_a_damaged_token_is_named(shuffle, token):
    """Window 3 of length 10 begins at 30; the damage is at its fifth token and nowhere else."""
    tokens = np.arange(101)
    tokens[34] = token
    batches = Batches(token_file(tokens), 10, seed=1, vocabulary=101, shuffle=shuffle)
    with pytest.raises(DescriptionError) as caught:
        batches.sequences(0, 10)
    said = str(caught.value)
    for part in ("set/train.bin", "window 3", f"token {token}", "position 34", "101", "fourfold data set"):
        assert part in said
    sound = [i for i in range(10) if batches.window_of(np.array([i]))[0] != 3]
    assert sum(len(batches.sequences(i, 1)) for i in sound) == 9


axis = st.integers(1, 4)


@given(
    data=axis,
    z=axis,
    y=axis,
    x=axis,
    micro=st.integers(1, 3),
    micro_steps=st.integers(1, 4),
    step=st.integers(0, 10**9),
)
def test_each_sample_of_a_step_is_worked_on_once(data, z, y, x, micro, micro_steps, step):
    """Once in every (x, y) plane position, by ranks that see the same micro-batches."""
    grid = Grid(data=data, z=z, y=y, x=x)
    sequences = data * z * micro * micro_steps
    seen: dict[tuple[int, int], Counter[int]] = {}
    for rank in range(grid.ranks):
        mine = local_sequences(grid, rank, step, sequences, micro)
        assert len(mine) == micro_steps
        own_x, own_y = rank % x, rank // x % y
        plane = seen.setdefault((own_y, own_x), Counter())
        plane.update(i for first, count in mine for i in range(first, first + count))
    once = Counter(range(step * sequences, (step + 1) * sequences))
    assert len(seen) == x * y
    assert all(plane == once for plane in seen.values())


def test_a_replica_s_samples_follow_each_other():
    """Six replicas (data 3, z 2) of 24 samples: the fifth, data 2 and z 0, starts at 16."""
    grid = Grid(data=3, z=2, y=2, x=1)
    rank = ((2 * 2 + 0) * 2 + 1) * 1
    assert local_sequences(grid, rank, 0, 24, 2) == [(16, 2), (18, 2)]
    assert local_sequences(grid, rank, 10, 24, 4) == [(256, 4)]


def test_batches_that_do_not_divide_are_refused():
    with pytest.raises(DescriptionError, match=r"batch\.sequences = 10: must be a multiple .* 8"):
        local_sequences(Grid(data=2, z=2), 0, 0, sequences=10, micro_sequences=2)
