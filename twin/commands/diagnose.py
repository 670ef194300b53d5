"""The command `fourfold diagnose`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from twin.commands.options import Json

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415

FOUND = 1


def diagnose(
    trace: Annotated[Path, typer.Argument(help="Directory of a trace, as fourfold train --trace writes it.")],
    machine: Annotated[
        str | None,
        typer.Option(
            metavar="NAME|FILE",
            help="The machine that it ran on, if not the one of its job: a name, or what fourfold calibrate wrote.",
        ),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(
            metavar="TRACE",
            help="An earlier, healthy trace of the grid on the same hosts: each rank is compared with itself.",
        ),
    ] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Exit with code 1 if something was found, or a step is far too long.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Name what is slow in a trace: a rank, a host, a link, an axis, the loading of data; or nothing."""
    from twin.diagnose.diagnose import diagnose_trace
    from twin.show import console
    from twin.show import diagnosis as shown

    found, job = diagnose_trace(trace, machine, reference)
    if as_json:
        console.print_json(found.as_json())
    else:
        shown.diagnosis(found, job)
    if check and not found.healthy:
        raise typer.Exit(FOUND)
