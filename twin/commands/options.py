"""Options that several commands have."""

from __future__ import annotations

from typing import Annotated

import typer

from twin.description.problems import fail

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the job or its machine, such as grid.z=64 or "
        "machine.nic.bandwidth='50 GB/s'. May be repeated.",
    ),
]
Scheduler = Annotated[
    str | None,
    typer.Option(
        metavar="ADDRESS", help="Compute on the workers of this Dask scheduler; only your own: it can run any code."
    ),
]
Slurm = Annotated[
    int | None,
    typer.Option(
        min=1, max=10_000, metavar="N", help="Compute in N SLURM jobs that Dask starts (~/.config/dask/jobqueue.yaml)."
    ),
]


def rank_list(text: str, ranks: int) -> list[int] | None:
    """Read `--ranks 0,5,7` of a job with so many ranks; None if nothing was given."""
    if not text:
        return None
    try:
        chosen = sorted({int(part) for part in text.split(",")})
    except ValueError:
        raise fail("--ranks", "expected rank numbers separated by commas", text) from None
    if bad := [r for r in chosen if not 0 <= r < ranks]:
        raise fail("--ranks", f"ranks are 0 to {ranks - 1}", bad[0])
    return chosen
