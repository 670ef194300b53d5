"""The command `fourfold search`."""

from __future__ import annotations

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415


class ByName(StrEnum):
    """What decides the order."""

    simulation = "simulation"
    axonn = "axonn"


def search(
    job: Annotated[Path, typer.Argument(help="Job file (YAML). Its grid and micro-batch are left open.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the job or its machine. May be repeated."),
    ] = None,
    over: Annotated[
        str, typer.Option(metavar="WHAT,…", help="Vary these too: recompute, cache, sharding, overlap, micro; or all.")
    ] = "",
    by: Annotated[
        ByName,
        typer.Option(
            help="simulation: every candidate is simulated; axonn: only the published communication model decides."
        ),
    ] = ByName.simulation,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME,…",
            help="Search under these strategies, with all their options, or under all; by default the job's own. "
            "What cannot be the fastest is not simulated.",
        ),
    ] = "",
    grid: Annotated[
        list[str] | None,
        typer.Option(metavar="AXIS=N,…", help="Restrict an axis to these sizes, such as y=1,2. May be repeated."),
    ] = None,
    ranks: Annotated[
        str,
        typer.Option(
            metavar="A-B",
            help="Search several numbers of ranks: 1024-8192 (doubling), 512-2048:512 (in steps), 1024,1536.",
        ),
    ] = "",
    tokens: Annotated[
        str, typer.Option(metavar="N", help="Tokens to train, such as 2T: adds days, device hours and energy.")
    ] = "",
    within: Annotated[
        str,
        typer.Option(
            metavar="TIME", help="With --tokens, a deadline such as 30d: finds the fewest ranks that keep it."
        ),
    ] = "",
    top: Annotated[int, typer.Option(min=1, max=100_000, help="Candidates to print.")] = 10,
    out: Annotated[
        Path | None,
        typer.Option(help="Write candidates.parquet, ranking.json, search.html and best.yaml into this new directory."),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace what --out wrote before.")] = False,
    workers: Annotated[
        int | None, typer.Option(min=1, max=256, help="Processes to use; as many as there are cores if absent.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of tables.")] = False,
) -> None:
    """Simulate every grid of a job's ranks and say which is fastest."""
    from twin.description.problems import fail
    from twin.engine.parallel import cores
    from twin.search.best import Given
    from twin.search.fleet import search_fleet
    from twin.search.over import parse_over
    from twin.search.quantities import parse_deadline, parse_grid, parse_ranks, parse_tokens
    from twin.search.write import search_directory, write_fleet
    from twin.show import console
    from twin.show import search as shown
    from twin.strategies import strategy_of

    if strategy:
        others = {
            "--by": by is not ByName.simulation,
            "--over": over,
            "--grid": grid,
            "--ranks": ranks,
            "--tokens": tokens,
            "--within": within,
        }
        if said := [name for name, value in others.items() if value]:
            raise fail(said[0], "is for a search under the job's own strategy; leave it or --strategy out")
        _across(job, overrides or [], strategy, out, top=top, force=force, workers=workers, as_json=as_json)
        return
    counts = parse_ranks(ranks) if ranks else []
    wanted = parse_tokens(tokens) if tokens else None
    if within and wanted is None:
        raise fail("--within", "is a deadline for a number of tokens; add --tokens, such as --tokens 2T", within)
    deadline = parse_deadline(within) if within else None
    given = Given(job, tuple(overrides or ()))
    described = given.job()
    own = strategy_of(described)
    varied, only = parse_over(over, own), parse_grid(grid or [], own.axes)
    with search_directory(out, overwrite=force) as place:
        with console.progress("simulating candidates") as advance:
            fleet = search_fleet(
                described,
                counts or [described.ranks],
                tokens=wanted,
                within_seconds=deadline,
                over=varied,
                by=by.value,
                only=only,
                workers=workers or cores(),
                progress=advance,
            )
        if place is not None:
            write_fleet(place, fleet, given)
    if as_json:
        console.print_json(shown.search_object(fleet, given.fixed))
    else:
        shown.search(fleet, given.fixed, top, out)


def _across(
    job: Path,
    overrides: list[str],
    strategy: str,
    out: Path | None,
    *,
    top: int,
    force: bool,
    workers: int | None,
    as_json: bool,
) -> None:
    """Search under several strategies."""
    from twin.engine.parallel import cores
    from twin.search.across import across_json, parse_strategies, search_across
    from twin.search.best import Given
    from twin.search.write import search_directory, write_across
    from twin.show import across as shown
    from twin.show import console

    given, strategies = Given(job, tuple(overrides)), parse_strategies(strategy)
    given.job()  # what is wrong with the file is said before anything is searched
    with search_directory(out, overwrite=force) as place:
        with console.progress("simulating candidates") as advance:
            found = search_across(given, strategies, workers=workers or cores(), progress=advance)
        if place is not None:
            write_across(place, found, given)
    if as_json:
        console.print_json(across_json(found))
    else:
        shown.across(found, top, out)
