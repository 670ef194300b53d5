"""All texts of a study, judged together: a row for each setting and each number of repetitions, over the seeds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from runtime.memorize.bounds import right_before_error
from runtime.memorize.cells import Cell, Setting

Figures = Mapping[str, Any]
"""What a training left, as in a line of cells.jsonl."""


@dataclass(frozen=True)
class Spread:
    """A figure over the seeds."""

    mean: float
    least: float
    most: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        """Take what each seed has."""
        return cls(sum(values) / len(values), min(values), max(values))


@dataclass(frozen=True)
class Row:
    """Texts that came equally often, in trainings of one setting."""

    setting: Setting
    repeats: int
    """0: the control."""
    texts: int
    """Of each seed."""
    seeds: int
    exact: Spread
    """Share of texts whose suffix is repeated without an error."""
    accuracy: Spread
    """Share of tokens at the right place."""
    subsequence: Spread
    """Mean length of the longest common subsequence over that of the suffix."""
    right_before_error: Spread
    """Mean number of right tokens before the first error, of the suffix."""
    right_before_drop: float | None
    """Mean number of tokens before the first that never counted; None without such a mask."""
    expected_before_error: float | None
    """What a closed form says of the hash: see `bounds`."""
    errors_at_drops: float | None
    """Share of first errors at a token that never counted; None without errors, or without such a mask."""
    first_errors: tuple[int, ...]
    """First error of each text that has one, ascending; over all seeds."""
    loss: float
    """Of the last step, on the targets that count: mean over seeds."""
    supervised_tokens: float
    """Targets that counted: mean over seeds."""

    def as_json(self) -> dict[str, Any]:
        """Return the figures by name."""
        kept = asdict(self)
        kept.pop("first_errors")
        setting = kept.pop("setting")
        return {"model": setting["model"], "mask": self.setting.mask_name, "k": setting["k"], **kept}


def rows_of(cells: Sequence[Cell], done: Mapping[int, Figures], suffix: int) -> list[Row]:
    """Return a row for each setting and number of repetitions, in the order of the trainings."""
    by_setting: dict[Setting, list[Figures]] = {}
    for cell in cells:
        if cell.number in done:
            by_setting.setdefault(cell.setting, []).append(done[cell.number])
    return [
        _row(setting, repeats, trainings, suffix)
        for setting, trainings in by_setting.items()
        for repeats in sorted({text["repeats"] for text in trainings[0]["texts"]})
    ]


def _row(setting: Setting, repeats: int, trainings: Sequence[Figures], suffix: int) -> Row:
    by_seed = [[text for text in training["texts"] if text["repeats"] == repeats] for training in trainings]
    every = [text for texts in by_seed for text in texts]
    known = [text["at_drop"] for text in every if text["at_drop"] is not None]
    fixed = repeats > 0 and setting.k is not None and setting.mask != "random"

    def spread(key: str) -> Spread:
        return Spread.of([_mean([float(text[key]) for text in texts]) for texts in by_seed])

    return Row(
        setting,
        repeats,
        len(by_seed[0]),
        len(by_seed),
        exact=spread("exact"),
        accuracy=spread("accuracy"),
        subsequence=spread("subsequence"),
        right_before_error=Spread.of([_mean([_or_all(t["first_error"], suffix) for t in texts]) for texts in by_seed]),
        right_before_drop=_mean([_or_all(text["first_drop"], suffix) for text in every]) if fixed else None,
        expected_before_error=right_before_error(setting.k, suffix) if fixed and setting.mask == "hash" else None,
        errors_at_drops=_mean(known) if fixed and known else None,
        first_errors=tuple(sorted(text["first_error"] for text in every if text["first_error"] is not None)),
        loss=_mean([training["loss"] for training in trainings]),
        supervised_tokens=_mean([training["supervised_tokens"] for training in trainings]),
    )


def _or_all(place: int | None, suffix: int) -> int:
    return suffix if place is None else place


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)
