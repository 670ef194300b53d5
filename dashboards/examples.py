"""The runs that come with Fourfold, for a first look before there are any of one's own."""

from __future__ import annotations

from pathlib import Path

from twin.description.problems import fail


def example_runs() -> Path:
    """Return where they lie: in an installed package beside this module, else in the repository.

    Raises DescriptionError if they are in neither place.
    """
    here = Path(__file__).resolve().parent
    for place in (here / "example_runs", here.parent / "examples" / "runs"):
        if place.is_dir():
            return place
    raise fail("[DIR]", "name a directory that holds runs; the examples were not installed")


def default_runs(working: Path) -> Path:
    """Return `runs` in the working directory if it is there, else the examples."""
    own = working / "runs"
    return own if own.is_dir() else example_runs()
