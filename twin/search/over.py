"""What a search varies besides the grid: the options of the job's strategy, and the micro-batch."""

from __future__ import annotations

from typing import Any

from twin.description.problems import did_you_mean, fail
from twin.strategies import Strategy

MICRO = "micro"
MICRO_CHOICES = 3
"""With `micro`: the largest micro-batch that fits, and the next smaller ones, so many in all."""


def parse_over(text: str, strategy: Strategy[Any]) -> frozenset[str]:
    """Read `--over recompute,micro` or `--over all`.

    Raises DescriptionError if a word is not known to the strategy.
    """
    known = (*strategy.varied, MICRO)
    words = [word.strip() for word in text.split(",") if word.strip()]
    if words == ["all"]:
        return frozenset(known)
    for word in words:
        if word not in known:
            raise fail("--over", did_you_mean(word, (*known, "all")), word)
    return frozenset(words)
