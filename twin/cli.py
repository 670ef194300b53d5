"""The `fourfold` command.

Every command imports what it needs when it runs, so that `fourfold --help` answers at once.
Human output goes to standard output, progress to standard error; bad input ends with a clear
message and exit code 2, never with a traceback.
"""

from __future__ import annotations

import atexit
import errno
import gc
import io
import sys
from collections.abc import Callable
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from twin import __version__
from twin.commands.options import Json
from twin.commands.simulate import simulate
from twin.commands.under import choose
from twin.description.problems import DescriptionError, fail

if TYPE_CHECKING:
    from twin.description.job import Job
    from twin.diagnose.watch import Watcher

app = typer.Typer(
    name="fourfold",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="4D-parallel LLM training: simulate a step before paying for it, then train the same job.",
)

BAD_INPUT = 2


class SchemaName(StrEnum):
    """Schemas that are published."""

    job = "job"
    machine = "machine"


class Reading(StrEnum):
    """Strategies that tables of FSDP iterations are read as."""

    four_d = "four_d"
    fsdp = "fsdp"


class CollectiveName(StrEnum):
    """Collectives that `collective` answers for."""

    all_gather = "all_gather"
    reduce_scatter = "reduce_scatter"
    all_reduce = "all_reduce"
    broadcast = "broadcast"
    all_to_all = "all_to_all"


class ModeName(StrEnum):
    """GEMM modes."""

    nn = "NN"
    nt = "NT"
    tn = "TN"


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"fourfold {__version__}")
        raise typer.Exit


@app.callback()
def _root(
    version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Print the version.")
    ] = False,
) -> None:
    del version


app.command()(simulate)


@app.command()
def machines(
    name: Annotated[str | None, typer.Argument(help="Machine to describe; all if absent.")] = None,
    as_json: Json = False,
) -> None:
    """List the machines that are known, or describe one with the source of every number."""
    from twin.description.load import load_machine, names
    from twin.show import machines as shown

    if name is None:
        shown.machine_list([load_machine(n) for n in names()], as_json=as_json)
    else:
        shown.machine(load_machine(name), as_json=as_json)


@app.command()
def models(
    name: Annotated[str | None, typer.Argument(help="Model to describe; all if absent.")] = None, as_json: Json = False
) -> None:
    """List the models known by name."""
    from twin.description.presets import presets
    from twin.description.problems import did_you_mean
    from twin.show import machines as shown

    known = presets()
    if name is not None and name not in known:
        raise fail("model", did_you_mean(name, known), name)
    shown.models([known[name]] if name else list(known.values()), as_json=as_json)


@app.command()
def schema(what: Annotated[SchemaName, typer.Argument(help="Which file's schema.")]) -> None:
    """Print the JSON schema of job or machine files, for editors that check YAML."""
    from twin.description.schema import machine_schema
    from twin.show import console
    from twin.strategies.schema import job_schema

    console.print_json(job_schema() if what is SchemaName.job else machine_schema())


@app.command()
def validate(
    measurements: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Measured collectives, GEMMs or iterations (CSV) or training runs (YAML) to compare with; "
            "the runs of this project's paper if absent.",
        ),
    ] = None,
    strategy: Annotated[
        Reading | None,
        typer.Option(
            help="Read iterations of FSDP as this strategy: four_d, whose z axis shards (the default), "
            "or fsdp, flavour fsdp1."
        ),
    ] = None,
    as_json: Json = False,
    workers: Annotated[int, typer.Option(min=1, max=256, help="Processes to use.")] = 2,
) -> None:
    """Compare predictions with published runs, or with your own measurements."""
    from twin.show import console
    from twin.show import validation as shown

    if measurements is None and strategy is not None:
        raise fail("--strategy", "is of --measurements FILE; give one, or leave it out", strategy.value)
    if measurements is not None:
        from twin.validate.measurements import validate_file

        with console.progress("comparing") as advance:
            result = validate_file(
                measurements, strategy=strategy and strategy.value, workers=workers, progress=advance
            )
        shown.measurements(result, as_json=as_json)
    else:
        from twin.validate.validate import validate_published

        with console.progress("simulating published runs") as advance:
            published = validate_published(workers=workers, progress=advance)
        shown.published(published, as_json=as_json)


@app.command()
def compare(
    predicted: Annotated[Path, typer.Argument(help="Directory that `simulate --out` wrote.")],
    measured: Annotated[Path, typer.Argument(help="Directory that `train --trace` wrote.")],
    step: Annotated[
        int | None, typer.Option(help="Measured step to take apart; the one of median length if absent.")
    ] = None,
    html: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write one self-contained page.")] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace a page that --html wrote before.")] = False,
    as_json: Json = False,
) -> None:
    """Say where the difference between a predicted and a measured step comes from."""
    from twin.compare.compare import compare as held_together
    from twin.compare.page import check_page, write_page
    from twin.show import compare as shown

    if html is not None:
        check_page(html, overwrite=force)
    found = held_together(predicted, measured, step)
    if html is not None:
        write_page(html, found, overwrite=force)
    shown.comparison(found, as_json=as_json, page=html)


@app.command()
def collective(
    machine: Annotated[str, typer.Option(help="Machine name or path.")],
    kind: Annotated[CollectiveName, typer.Option(help="Which collective.")],
    ranks: Annotated[int, typer.Option(min=1, help="Members of the group.")],
    bytes_: Annotated[
        str, typer.Option("--bytes", help="Gathered output, scattered input, reduced or traded buffer, such as 64MiB.")
    ],
    stride: Annotated[int, typer.Option(min=1, help="Ranks between neighbours of the group.")] = 1,
    library: Annotated[str | None, typer.Option(help="Collective library; the machine's default if absent.")] = None,
    as_json: Json = False,
) -> None:
    """Say how long one collective takes, alone and with all its sister groups at work."""
    from twin.engine.single import collective_answer
    from twin.show import console

    console.answer(collective_answer(machine, kind.value, ranks, bytes_, stride, library), as_json=as_json)


@app.command()
def gemm(
    machine: Annotated[str, typer.Option(help="Machine name or path.")],
    m: Annotated[int, typer.Option(min=1, max=10**9)],
    n: Annotated[int, typer.Option(min=1, max=10**9)],
    k: Annotated[int, typer.Option(min=1, max=10**9)],
    mode: Annotated[
        ModeName, typer.Option(help="Operand layout: TN forward, NN input gradient, NT weight gradient.")
    ] = ModeName.tn,
    tuned: Annotated[bool, typer.Option("--tuned/--untuned", help="Pick the fastest mode.")] = True,
    as_json: Json = False,
) -> None:
    """Say how long one matrix product C[m, n] = A[m, k] · B[k, n] takes on a machine's device."""
    from twin.engine.single import gemm_answer
    from twin.show import console

    console.answer(gemm_answer(machine, m, n, k, mode.value, tuned=tuned), as_json=as_json)


def resolve(job: Job, refuse: Callable[[Job], str] | None = None) -> Job:
    """Settle what a job leaves to Fourfold (`grid: auto`), as `simulate` does; its strategy must be named.

    What is refused, for the reason that is returned, is not chosen.
    """
    from twin import api
    from twin.show import console
    from twin.strategies import strategy_of

    strategy_of(job)
    with console.progress("simulating candidates") as advance:
        return api.settle(job, refuse=refuse, progress=advance)[0]


def fitted_machine(measurements: dict[str, Any]) -> str:
    """Make a machine file of what `calibrate` measured."""
    from twin.calibrate import machine_from

    return machine_from(measurements)


def watcher(job: Job) -> Watcher:
    """Say who is slow in a running job; the runtime's part of the command line is handed this."""
    from twin.diagnose.watch import Watcher

    return Watcher(job)


@cache
def application() -> typer.Typer:
    """All commands: the twin's own, and those that other packages of Fourfold bring by entry point."""
    from twin.commands import register

    register(app)
    for point in entry_points(group="fourfold.commands"):
        point.load()(app, resolve, fitted_machine, watcher, choose)
    return app


@cache
def command() -> Callable[..., Any]:
    """Make what parses a command line and calls; once, since to read what all commands take costs 30 ms."""
    return typer.main.get_command(application())


def main(arguments: list[str] | None = None) -> Any:
    """Run the command line; the entry point of the `fourfold` script."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="replace")  # a terminal that knows no "×" is no reason to fail
    atexit.register(gc.freeze)  # what is left then ends with the process: to look through it for garbage takes 0.1 s
    try:
        return command()(args=arguments)
    except DescriptionError as error:
        print(f"fourfold: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT)
    except KeyboardInterrupt:
        print("fourfold: interrupted", file=sys.stderr)
        sys.exit(130)
    except BrokenPipeError:
        sys.stderr.close()  # the reader has gone; say nothing
        sys.exit(0)
    except OSError as error:
        print(f"fourfold: {error}", file=sys.stderr)
        sys.exit(BAD_INPUT if error.errno == errno.ENAMETOOLONG else 1)  # Python asks for it before anything is written


if __name__ == "__main__":
    main()
