"""The winner of a search as a job file: the user's own file with the choice filled in.

Names stay names (`machine: frontier`), and keys that the search does not touch (`train:`) stay as
they are; paths are made absolute, for the new file lies elsewhere.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from twin import __version__
from twin.description.grid import Axes
from twin.description.job import AUTO, Job
from twin.description.load import apply_override
from twin.description.paths import with_absolute_paths
from twin.description.problems import DescriptionError, Problem
from twin.description.strict_yaml import read_yaml
from twin.strategies import Variant, load_job, strategy_of, under


@dataclass(frozen=True)
class Given:
    """What the user gave: a job file and overrides of its keys."""

    source: Path
    overrides: tuple[str, ...] = ()

    @property
    def mapping(self) -> dict[str, Any]:
        """The file's keys with the overrides."""
        raw: dict[str, Any] = {"name": self.source.stem, **read_yaml(self.source)}
        for override in self.overrides:
            raw = apply_override(raw, override)
        return raw

    @property
    def absolute(self) -> dict[str, Any]:
        """The same with absolute paths, so that it holds wherever it is read."""
        return with_absolute_paths(self.mapping, self.source.resolve().parent)

    def job(self) -> Job:
        """Read and check the job with grid and micro-batch open.

        Raises DescriptionError with every problem of the rest.
        """
        self._check_fixed()
        opened = () if self.mapping.get("strategy") == AUTO else ("grid=auto",)  # there a grid is a mistake
        return load_job(self.source, [*self.overrides, *opened, "batch.micro_sequences=auto"])

    def _check_fixed(self) -> None:
        """Refuse sizes that can be none: what the search leaves open is otherwise not read."""
        grid, batch = self.mapping.get("grid", AUTO), self.mapping.get("batch", {})
        open_anyway = "a search leaves it open, so it may be left out"
        if not isinstance(grid, dict) and grid != AUTO:
            raise DescriptionError(
                [Problem("grid", f"must be sizes by axis, or auto; {open_anyway}", grid)], str(self.source)
            )
        if not isinstance(batch, dict):
            raise DescriptionError([Problem("batch", "must be keys, such as sequences", batch)], str(self.source))
        sizes = {f"grid.{axis}": size for axis, size in grid.items()} if isinstance(grid, dict) else {}
        if (micro := batch.get("micro_sequences", AUTO)) != AUTO:
            sizes["batch.micro_sequences"] = micro
        remedy = f"must be a whole number above 0; {open_anyway}"
        wrong = [Problem(key, remedy, size) for key, size in sizes.items() if not _is_size(size)]
        if wrong:
            raise DescriptionError(wrong, str(self.source))

    @property
    def fixed(self) -> tuple[str, ...]:
        """What the file fixes of that, to be said: the search leaves it open all the same."""
        raw = self.mapping
        batch = raw.get("batch")
        micro = batch.get("micro_sequences", "auto") if isinstance(batch, dict) else "auto"
        found = {"grid": raw.get("grid", "auto"), "batch.micro_sequences": micro}
        return tuple(key for key, value in found.items() if value != "auto")


def _is_size(value: object) -> bool:
    return type(value) is int and value > 0


def job_mapping(given: Given, winner: Job) -> dict[str, Any]:
    """Return the given job file made concrete as `winner` is.

    An option is written where the file has it or where the winner's differs from the default.
    """
    raw = under(given.absolute, winner.strategy)
    return settled(raw, winner.concrete_grid, winner.concrete_micro_sequences, strategy_of(winner).variant(winner))


def settled(raw: Mapping[str, Any], grid: Axes, micro_sequences: int, chosen: Variant) -> dict[str, Any]:
    """Return a job file's keys with this grid, micro-batch and options in place of its own."""
    raw = dict(raw)
    raw["ranks"] = grid.ranks
    raw["grid"] = grid.by_axis()
    raw["batch"] = {**raw["batch"], "micro_sequences": micro_sequences}
    chosen.settle(raw)
    return raw


def job_text(given: Given, winner: Job) -> str:
    """Return that job file as YAML."""
    body = yaml.safe_dump(job_mapping(given, winner), sort_keys=False, allow_unicode=True)
    name = "".join(c if c.isprintable() else "�" for c in given.source.name)
    return f"# The best that `fourfold search` (Fourfold {__version__}) found for {name}.\n{body}"
