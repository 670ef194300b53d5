"""What people write for ranks, tokens, deadlines and grids on the command line."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from twin.description.problems import did_you_mean, fail
from twin.description.units import SUFFIXES, parse_quantity

MAX_COUNTS = 64
"""Numbers of ranks that one search may ask for."""
MAX_TOKENS = 1e18
"""Far above any text there is; sums with it stay finite."""
_NUMBER = re.compile(r"\d{1,12}")  # Python refuses to read thousands of digits
_RANGE = re.compile(r"(\d{1,12})-(\d{1,12})(?::(\d{1,12}))?")
_COUNT = re.compile(r"([\d_.]+(?:[eE]\d+)?)\s*([kMGBT]?)\s*(?:tokens?)?")
_POWERS = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "B": 1e9, "T": 1e12}


def parse_ranks(text: str) -> list[int]:
    """Read numbers of ranks: `1024`, `1024,1536`, `1024-8192` (doubling), `512-2048:512` (steps).

    Raises DescriptionError.

    >>> parse_ranks("1024-8192")
    [1024, 2048, 4096, 8192]
    >>> parse_ranks("512-1536:512, 4096")
    [512, 1024, 1536, 4096]
    """
    found: set[int] = set()
    for part in text.split(","):
        word = part.strip()
        if _NUMBER.fullmatch(word) and int(word) > 0:
            found.add(int(word))
        elif match := _RANGE.fullmatch(word):
            found |= set(_range(text, *(int(g) if g else 0 for g in match.groups())))
        else:
            raise fail(
                "--ranks",
                "expected numbers and ranges such as 4096, 1024-8192 (doubling) or "
                "512-2048:512 (in steps), separated by commas, of at most 12 digits",
                text,
            )
    if len(found) > MAX_COUNTS:
        raise fail("--ranks", f"asks for {len(found)} numbers of ranks; use at most {MAX_COUNTS}", text)
    return sorted(found)


def _range(text: str, low: int, high: int, step: int) -> list[int]:
    if not 0 < low <= high:
        raise fail("--ranks", "a range goes from a smaller to a larger number, such as 1024-8192", text)
    if step:
        return list(range(low, high + 1, step)[: MAX_COUNTS + 1])
    return [low * 2**i for i in range((high // low).bit_length())]


def parse_tokens(text: str) -> float:
    """Read a number of tokens, such as `2T`, `300B` or `1e12`.

    Raises DescriptionError.

    >>> parse_tokens("2T"), parse_tokens("300 B tokens")
    (2000000000000.0, 300000000000.0)
    """
    match = _COUNT.fullmatch(text.strip())
    try:
        number = float(match[1]) * _POWERS[match[2]] if match else math.nan
    except ValueError:
        number = math.nan
    if not 1 <= number <= MAX_TOKENS:  # neither is a number that is none
        raise fail("--tokens", "expected a number of tokens such as 2T, 300B or 1e12, at most 1e18", text)
    return number


def parse_deadline(text: str) -> float:
    """Read a time such as `30d` or `36 h` into seconds.

    Raises DescriptionError.

    >>> parse_deadline("30d")
    2592000.0
    """
    try:
        seconds = parse_quantity(text, SUFFIXES["_seconds"])
    except ValueError as error:
        raise fail("--within", f"{error}, or '30 d'", None) from None
    if not text.strip()[-1:].isalpha() or seconds <= 0:
        raise fail("--within", "expected a time with its unit, such as '30 d' or '36 h'", text)
    return seconds


def parse_grid(texts: list[str], axes: Sequence[str]) -> dict[str, frozenset[int]]:
    """Read sizes that some of the axes are restricted to: `z=32`, `y=1,2,4`.

    Raises DescriptionError.

    >>> parse_grid(["y=1,2"], ("x", "y"))["y"] == {1, 2}
    True
    """
    found: dict[str, frozenset[int]] = {}
    for text in texts:
        name, equals, sizes = text.partition("=")
        words = [word.strip() for word in sizes.split(",")]
        if not equals or not all(_NUMBER.fullmatch(word) and int(word) > 0 for word in words):
            raise fail("--grid", "expected AXIS=SIZE[,SIZE…], such as y=1,2,4, of at most 12 digits", text)
        axis = next((a for a in axes if a == name.strip()), None)
        if axis is None:
            raise fail("--grid", did_you_mean(name.strip(), axes), text)
        found[axis] = found.get(axis, frozenset()) | frozenset(map(int, words))
    return found
