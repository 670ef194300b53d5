"""The command `fourfold search`."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from twin.commands.options import Json, Scheduler, Slurm
from twin.engine.threads import load_numpy_alone

if TYPE_CHECKING:
    from twin.description.job import Job
    from twin.engine.crew import Workers
    from twin.search.best import Given

    Asked = tuple[Job, frozenset[str], Mapping[str, frozenset[int]] | None]
    """One search: its job, what it varies, and what it restricts."""

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415, T201


class ByName(StrEnum):
    """What decides the order."""

    simulation = "simulation"
    energy = "energy"
    axonn = "axonn"


def search(
    job: Annotated[Path, typer.Argument(help="Job file (YAML). Its grid and micro-batch are left open.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="KEY=VALUE", help="Override a key of the job or its machine. May be repeated."),
    ] = None,
    over: Annotated[
        str,
        typer.Option(
            metavar="WHAT,…",
            help="Vary these too: micro, recompute, recompute_keeps, recompute_layers, recompute_stops_early, cache, "
            "sharding, sharded_overlapped, overlap, halves, across_blocks, divide, tensor, offload, as far as the "
            "strategy has them; or all.",
        ),
    ] = "",
    by: Annotated[
        ByName,
        typer.Option(
            help="simulation: every candidate is simulated, the fastest is best; energy: the same, joules of devices, "
            "and of their nodes if energy.node is given, decide; axonn: only the published communication model decides."
        ),
    ] = ByName.simulation,
    strategy: Annotated[
        str,
        typer.Option(
            metavar="NAME,…",
            help="Search under these strategies, with all their options, or under all; by default the job's own, under "
            "strategy: auto every one. What cannot be the fastest is not simulated.",
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
    scheduler: Scheduler = None,
    slurm: Slurm = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Say how many candidates there are and how long they would take.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Simulate every grid of a job's ranks and say which is fastest."""
    load_numpy_alone()
    from twin.description.problems import fail
    from twin.search.best import Given
    from twin.search.candidates import unsettled
    from twin.search.fleet import search_fleet
    from twin.search.over import parse_over
    from twin.search.quantities import parse_deadline, parse_grid, parse_ranks, parse_tokens
    from twin.search.write import search_directory, write_fleet
    from twin.show import console
    from twin.show import search as shown
    from twin.strategies import AUTO, strategy_of

    where = _Where(workers, scheduler, slurm, dry_run)
    given = Given(job, tuple(overrides or ()))
    strategy = strategy or (AUTO if given.mapping.get("strategy") == AUTO else "")
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
            other = "name a strategy in the job" if strategy == AUTO else "leave out --strategy"
            raise fail(said[0], f"is for a search under the job's own strategy; leave it out, or {other}")
        _across(given, strategy, out, top=top, force=force, where=where, as_json=as_json)
        return
    counts = parse_ranks(ranks) if ranks else []
    wanted = parse_tokens(tokens) if tokens else None
    if within and wanted is None:
        raise fail("--within", "is a deadline for a number of tokens; add --tokens, such as --tokens 2T", within)
    deadline = parse_deadline(within) if within else None
    described = given.job()
    own = strategy_of(described)
    varied, only = parse_over(over, own), parse_grid(grid or [], own.axes)
    counts = counts or [described.ranks]
    asked = [(unsettled(described, count), varied, only) for count in counts]
    with search_directory(None if dry_run else out, overwrite=force) as place, where.crew() as crew:
        where.announce([] if by is ByName.axonn else asked, crew, pruned=False, as_json=as_json)
        with console.progress("simulating candidates") as advance:
            fleet = search_fleet(
                described,
                counts,
                tokens=wanted,
                within_seconds=deadline,
                over=varied,
                by=by.value,
                only=only,
                workers=crew,
                progress=advance,
            )
        if place is not None:
            write_fleet(place, fleet, given)
    if as_json:
        console.print_json(shown.search_object(fleet, given.fixed))
    else:
        shown.search(fleet, given.fixed, top, out)


@dataclass(frozen=True)
class _Where:
    """Where candidates are simulated, and whether they are."""

    workers: int | None
    scheduler: str | None
    slurm: int | None
    dry_run: bool

    @contextmanager
    def crew(self) -> Iterator[Workers]:
        """Give the processes; of SLURM none are started for a dry run."""
        from twin.engine.parallel import cores
        from twin.studies.crew import crew

        here = self.workers or cores()
        with crew(here, self.scheduler, None if self.dry_run else self.slurm) as found:
            yield found

    def announce(self, asked: Sequence[Asked], crew: Workers, *, pruned: bool, as_json: bool) -> None:
        """Say how large the searches are before one begins on other nodes; a dry run ends with it."""
        if not self.dry_run and self.scheduler is None and self.slurm is None:
            return
        from twin.search.estimate import estimate, estimate_json, words
        from twin.show import console

        found = [estimate(job, over=over, only=only, makes_room=pruned) for job, over, only in asked]
        if not self.dry_run:
            print(words(found, crew, pruned=pruned), file=sys.stderr)
            return
        if as_json:
            console.print_json(estimate_json(found, crew))
        else:
            console.make_console().print(words(found, crew, pruned=pruned), soft_wrap=True)
        raise typer.Exit


def _across(
    given: Given, strategy: str, out: Path | None, *, top: int, force: bool, where: _Where, as_json: bool
) -> None:
    """Search under several strategies."""
    from twin.search.across import across_json, openings, parse_strategies, search_across
    from twin.search.write import search_directory, write_across
    from twin.show import across as shown
    from twin.show import console

    strategies = parse_strategies(strategy)
    given.job()  # what is wrong with the file is said before anything is searched
    with search_directory(None if where.dry_run else out, overwrite=force) as place, where.crew() as crew:
        asked: list[Asked] = [(job, over, None) for job, over in openings(given, strategies)[0].values()]
        where.announce(asked, crew, pruned=True, as_json=as_json)
        with console.progress("simulating candidates") as advance:
            found = search_across(given, strategies, workers=crew, progress=advance)
        if place is not None:
            write_across(place, found, given)
    if as_json:
        console.print_json(across_json(found))
    else:
        shown.across(found, top, out)
