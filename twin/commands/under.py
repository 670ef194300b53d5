"""`--strategy` of commands that predict: the job that `fourfold train --strategy` runs.

What trains, and with which keys, only the package that trains knows: it is asked by the entry point `fourfold.trained`.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from twin.description.problems import fail

if TYPE_CHECKING:
    from twin.description.job import Job
    from twin.search.candidates import Refuse
    from twin.strategies import Chosen

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415, T201

T = TypeVar("T")
InStrategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="Ask of the job that train --strategy NAME runs, which is under another strategy than the file's: fsdp, "
        "ddp, four_d, megatron. What only the file's has is left out, and grid and micro-batch chosen by simulation, "
        "unless --set gives them. auto: under the fastest of those that train.",
    ),
]


@dataclass(frozen=True)
class Asked:
    """The job that a command is asked of; it may leave its grid open."""

    job: Job
    refuse: Refuse | None = None
    """Says why a concrete job is not trained, by which grids are left out."""
    words: str = ""
    """What was compared, where the strategy was left open to what trains."""

    def settled(self, ask: Callable[..., T], **options: Any) -> T:
        """Call what settles the job with these options; if all of its grids are refused, with all of them, and say so.

        It takes the job, and `refuse` by its name.
        """
        from twin.search.choose import AllRefusedError

        try:
            return ask(self.job, refuse=self.refuse, **options)
        except AllRefusedError as error:
            print(f"fourfold: this job is predicted, but train refuses it: {error}", file=sys.stderr)
            return ask(self.job, **options)


def asked_job(file: Path, overrides: Sequence[str], strategy: str | None) -> Asked:
    """Read a job file, under a strategy as `fourfold train` runs it. Raises DescriptionError for bad input."""
    if strategy is None:
        from twin.strategies import load_job

        return Asked(load_job(file, overrides))
    for point in entry_points(group="fourfold.trained"):
        return Asked(*point.load()(file, overrides, strategy, choose))
    raise fail("--strategy", "is what train runs, and nothing that trains is installed; `make install` does", strategy)


def choose(
    job: Path, overrides: Sequence[str], strategies: Mapping[str, Mapping[str, Any]], refuse: Callable[[Job], str]
) -> Chosen:
    """Return the fastest way to run a job file under these strategies, but for what is refused: `strategy: auto`.

    Each strategy comes with keys of its own that it is opened with, where the file does not give them.
    Raises DescriptionError with the reason of each strategy if nothing is left.
    """
    from twin.engine.parallel import cores
    from twin.search.across import search_across
    from twin.search.best import Given
    from twin.search.chosen import chosen
    from twin.show import across as shown
    from twin.show import console

    given = Given(job, tuple(overrides))
    with console.progress("simulating candidates") as advance:
        found = search_across(
            given, list(strategies), keys=strategies, refuse=refuse, workers=cores(), progress=advance
        )
    keys = strategies[found.best.job.strategy]
    return chosen(given, found, shown.chosen(found, given.fixed), keys)
