"""The order of training: permutations, checked by enumeration and by counting."""

import struct
from collections import Counter
from hashlib import shake_256
from itertools import count, permutations
from math import factorial, isqrt

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data.order import shuffled
from tests.profiles import examples
from tests.tiers import full


def order(size: int, seed: int = 0, epoch: int = 0) -> list[int]:
    return shuffled(np.arange(size), size, seed, epoch).tolist()


@given(size=st.integers(1, 3000), seed=st.integers(0, 2**70), epoch=st.integers(0, 10**9))
@examples(1.5)
def test_every_window_comes_once(size, seed, epoch):
    assert sorted(order(size, seed, epoch)) == list(range(size))


@pytest.mark.parametrize("size", range(1, 130))
def test_every_small_size_is_permuted(size):
    """Squares, primes, and what lies just beyond them, where the two digits fit worst."""
    assert sorted(order(size, seed=3)) == list(range(size))


@given(size=st.integers(1, 10**15), seed=st.integers(0, 2**32), data=st.data())
@examples(0.6)
def test_a_place_does_not_depend_on_what_else_is_asked(size, seed, data):
    """One number alone gives what it gives among others; results stay in range and differ."""
    places = data.draw(st.lists(st.integers(0, size - 1), min_size=1, max_size=20, unique=True))
    together = shuffled(np.array(places), size, seed, 0)
    alone = [int(shuffled(np.array([p]), size, seed, 0)[0]) for p in places]
    assert together.tolist() == alone
    assert len(set(alone)) == len(alone)
    assert 0 <= min(alone) <= max(alone) < size


@pytest.mark.parametrize("size", full([2, 3, 4, 5, 6], 6))
def test_all_orders_are_equally_likely(size):
    """Chi-squared over all permutations; five standard deviations, and the seeds are fixed."""
    kinds = factorial(size)
    draws = 12 * kinds
    seen = Counter(tuple(order(size, seed)) for seed in range(draws))
    expected = draws / kinds
    chi_squared = sum((seen[p] - expected) ** 2 / expected for p in permutations(range(size)))
    freedom = kinds - 1
    assert abs(chi_squared - freedom) < 5 * (2 * freedom) ** 0.5


@pytest.mark.parametrize("size", [1000, 4096, 99_991])
def test_neighbours_are_scattered(size):
    """As in a random permutation: ranks uncorrelated, gaps as long on average, one fixed point."""
    found = np.array(order(size, seed=7))
    places = np.arange(size)
    bound = 5 / size**0.5
    assert abs(np.corrcoef(places, found)[0, 1]) < bound
    assert abs(np.corrcoef(found[:-1], found[1:])[0, 1]) < bound
    assert np.abs(np.diff(found)).mean() / size == pytest.approx(1 / 3, abs=bound)
    assert (found == places).sum() < 10


def test_epochs_and_seeds_differ():
    orders = {tuple(order(200, seed, epoch)) for seed in range(5) for epoch in range(5)}
    assert len(orders) == 25
    assert order(200, 1, 12) != order(200, 11, 2)


def by_hand(place: int, size: int, seed: int, epoch: int) -> int:
    """The same network with Python's integers, one number at a time."""
    mask = 2**64 - 1

    def mix(number: int) -> int:
        for factor in (0xBF58476D1CE4E5B9, 0x94D049BB133111EB):
            number = ((number ^ number >> 31) * factor) & mask
        return number ^ number >> 31

    keys = struct.unpack("<16Q", shake_256(f"{seed} {epoch}".encode()).digest(128))
    left_size = next(n for n in count(isqrt(size)) if n * n >= size)
    right_size = (size + left_size - 1) // left_size
    while True:
        left, right = divmod(place, right_size)
        for number in range(0, 16, 2):
            left = (left + mix(right ^ keys[number])) % left_size
            right = (right + mix(left ^ keys[number + 1])) % right_size
        place = left * right_size + right
        if place < size:
            return place


@pytest.mark.parametrize("size", [1, 2, 7, 10_000, 10**12 + 39])
def test_the_order_is_what_the_integers_say(size):
    places = [p for p in range(0, size, max(1, size // 50)) if p < size]
    expected = [by_hand(p, size, seed=42, epoch=3) for p in places]
    assert shuffled(np.array(places), size, 42, 3).tolist() == expected


def test_the_order_is_the_same_for_ever():
    """A run resumed by another version must go on as it began."""
    assert order(10, seed=1) == [1, 9, 3, 2, 5, 7, 8, 4, 0, 6]
