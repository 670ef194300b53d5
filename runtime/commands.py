"""The runtime's commands: `train`, `data`, `import`, `export`, `sample`, `eval`, `memorize`, `calibrate`, `record`.

The twin's command line finds `register` by its entry point (`fourfold.commands` in pyproject.toml)
and hands it what only the twin can do: resolving `auto` in a job, choosing its strategy, making a machine of
measurements, and saying who is slow in a running job. Nothing here imports torch before it is needed.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from runtime.calibration.command import Fit
    from runtime.launch.environment import Process
    from runtime.tracing.wanted import TraceWanted
    from runtime.train.choice import Open, Search
    from runtime.watch.wanted import AskOf, WatchWanted
    from twin.description.job import Job
    from twin.description.train import Train
    from twin.strategies import Chosen

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415

Resolve = Callable[["Job"], "Job"]
Settle = Callable[["Job", Callable[["Job"], str]], "Job"]


JobFile = Annotated[Path, typer.Argument(help="Job file (YAML), the same that simulate reads.")]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set", metavar="KEY=VALUE", help="Override a key of the job, such as train.steps=100. May be repeated."
    ),
]
Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks",
        min=1,
        help="Start the job's ranks here, as so many processes; without it torchrun or srun starts them.",
    ),
]
InStrategy = Annotated[
    str | None,
    typer.Option(
        "--strategy",
        metavar="NAME",
        help="Train under another strategy than the job's: fsdp, ddp, four_d, megatron. What only its own has is left "
        "out, and grid and micro-batch chosen by simulation, unless --set gives them. auto: under the fastest of those "
        "that train, by simulation.",
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Directory of the run; runs/NAME if absent. A run that is there is continued.")
]
Force = Annotated[bool, typer.Option("--force", help="Delete the run that is there and begin anew.")]
AcceptChanges = Annotated[
    bool,
    typer.Option(
        "--accept-changes",
        help="Continue with options that the steps so far were not taken with: more steps, another rate.",
    ),
]
TraceInto = Annotated[
    Path | None, typer.Option(metavar="DIR", help="Record some steps on every rank into this directory.")
]
TraceSteps = Annotated[str, typer.Option(metavar="A-B", help="Steps to record, counted from 0.")]
WatchEvery = Annotated[
    int | None,
    typer.Option(
        metavar="N",
        min=10,
        help="Every N steps, look for a slow rank, host, link or axis; warn, and write alerts.jsonl.",
    ),
]
Restarts = Annotated[
    int,
    typer.Option(
        "--restarts", metavar="K", min=0, help="With --ranks: start all ranks again after a failure, so often."
    ),
]
Smoke = Annotated[
    bool,
    typer.Option(
        "--smoke",
        help="Try every path on one device for a minute, on a small model of the job's family: say what works, how "
        "long it takes, what it needs; exit code 1 if something does not. Trains nothing.",
    ),
]
Slurm = Annotated[bool, typer.Option("--slurm", help="Print a SLURM script for the job's machine, and stop.")]


def register(app: typer.Typer, settle: Settle, fit: Fit, ask_of: AskOf, search: Search) -> None:
    """Add the runtime's commands to the command line; `settle` leaves out what it is told to refuse."""
    from runtime.calibration.command import calibrate
    from runtime.data.command import data
    from runtime.huggingface.command import export, import_
    from runtime.inference.command import evaluate, sample
    from runtime.memorize.command import memorize
    from runtime.recorder.command import record

    def resolve(job: Job) -> Job:
        """Settle what a job leaves open to what the runtime trains."""
        from runtime.train.choice import refusal

        return settle(job, refusal)

    def under(file: Path, overrides: Sequence[str], strategy: str) -> Job:
        from runtime.train.under import job_under

        return job_under(file, overrides, strategy, search)[0]

    app.command()(_train(resolve, ask_of, search))
    app.command()(data)
    app.command("import")(import_)
    app.command()(export)
    app.command()(sample(resolve))
    app.command("eval")(evaluate(resolve))
    app.command()(memorize(resolve))
    app.command()(calibrate(fit))
    app.command()(record(resolve, under))


def _train(resolve: Resolve, ask_of: AskOf, search: Search) -> Callable[..., None]:
    def train(
        job: JobFile,
        overrides: Overrides = None,
        ranks: Ranks = None,
        strategy: InStrategy = None,
        out: Out = None,
        force: Force = False,
        accept_changes: AcceptChanges = False,
        trace: TraceInto = None,
        trace_steps: TraceSteps = "3-5",
        watch: WatchEvery = None,
        restarts: Restarts = 0,
        slurm: Slurm = False,
        smoke: Smoke = False,
    ) -> None:
        """Train the job's model for real: on gloo here, on NCCL or RCCL under torchrun or srun."""
        from runtime.launch.environment import from_environment
        from runtime.launch.signals import hold

        process = from_environment(os.environ)
        starts = process.launcher == "alone" and ((ranks or 1) > 1 or restarts > 0)
        if not (starts or slurm):
            hold()  # before any thread is started: numpy, which the job's strategies load, starts some
        from runtime.launch.need import need_torch
        from runtime.plan.options import located
        from runtime.train.choice import Open
        from runtime.watch.wanted import WatchWanted
        from twin.strategies import AUTO, load_job

        given = _given(job, overrides or [], strategy)
        described = load_job(job, given, strategy=strategy)
        if smoke:
            from runtime.smoke.command import run_smoke

            raise typer.Exit(run_smoke(described))
        options = located(described.train, job.parent)
        left_open = Open(job, tuple(given), described.ranks, search) if described.strategy == AUTO else None
        if slurm:
            _print_script(described, job, given, strategy, left_open, resolve)
            return
        _check_ranks(described, ranks, restarts, process, options, force=force)
        out = out or Path("runs") / described.name
        wanted = _trace_wanted(trace, trace_steps, options.steps, process, force=force)
        need_torch("train")
        chosen = None if left_open is None else _chosen(left_open, out, process, force=force)
        if left_open is not None and chosen is not None:
            described = left_open.job(chosen)
        here = process.ranks if process.launcher != "alone" else ranks or described.ranks
        if described.strategy != AUTO and (here == described.ranks or not options.elastic):
            described = _resolved(described, resolve, process)  # else the ranks choose together
        if starts:
            arguments = _arguments(job, out, given, strategy, force=force, accept_changes=accept_changes)
            arguments += ["--trace", str(trace), "--trace-steps", trace_steps] if trace else []
            arguments += ["--watch", str(watch)] if watch else []
            raise typer.Exit(_start_ranks(arguments, described, here, restarts, chosen))
        looking = WatchWanted(watch, ask_of) if watch else None
        changes = {"force": force, "accept_changes": accept_changes}
        _train_here(described, options, out, wanted, looking, process, resolve, chosen, left_open, **changes)

    return train


def _given(job: Path, overrides: Sequence[str], strategy: str | None) -> list[str]:
    from runtime.train.under import needed

    return [*needed(job, strategy), *overrides]


def _resolved(job: Job, resolve: Resolve, process: Process) -> Job:
    """Settle what a job leaves open, and say it where no other rank would say the same."""
    from runtime.train.under import cut

    settled = resolve(job)
    if not job.is_concrete and process.launcher == "alone":
        typer.echo(f"left open by the job, and chosen by simulation: {cut(settled)}")
    return settled


def _chosen(left_open: Open, out: Path, process: Process, *, force: bool) -> Chosen | None:
    """Choose the strategy where that is done here; None: by rank 0, for ranks that torchrun or srun has started."""
    from runtime.train.choice import handed

    if process.launcher != "alone":
        return handed(os.environ, process)
    chosen = left_open.chosen_for(out, force=force)
    typer.echo(chosen.words)
    return chosen


def _start_ranks(arguments: list[str], described: Job, here: int, restarts: int, chosen: Chosen | None) -> int:
    """Start the ranks, with what was settled for all of them; returns the exit code."""
    from runtime.launch.local import run_ranks
    from runtime.plan.options import settled

    if chosen is not None:
        from runtime.train.choice import hand_over

        return run_ranks(arguments, here, restarts=restarts, forward=True, environment=hand_over(chosen))
    if here == described.ranks:
        for override in settled(described):
            arguments += ["--set", override]
    return run_ranks(arguments, here, restarts=restarts, forward=True)


def _print_script(
    described: Job, job: Path, overrides: Sequence[str], strategy: str | None, left_open: Open | None, resolve: Resolve
) -> None:
    from runtime.slurm import script
    from twin.description.problems import fail

    if strategy is not None:
        raise fail("--strategy", "write it into the job file, which the script names: strategy", strategy)
    if left_open is not None:
        chosen = left_open.chosen()
        typer.echo(chosen.words, err=True)  # the script is what is printed
        described, overrides = left_open.job(chosen), [*overrides, *chosen.overrides]
    typer.echo(script(resolve(described), job, overrides), nl=False)


def _arguments(
    job: Path, out: Path, chosen: Sequence[str], strategy: str | None, *, force: bool, accept_changes: bool
) -> list[str]:
    """Return the command line of a rank, as far as it is about the job and its run."""
    arguments = ["train", str(job), "--out", str(out)]
    for override in chosen:
        arguments += ["--set", override]
    arguments += [] if strategy is None else ["--strategy", strategy]
    arguments += ["--force"] if force else []
    arguments += ["--accept-changes"] if accept_changes else []
    return arguments


def _check_ranks(job: Job, ranks: int | None, restarts: int, process: Process, options: Train, *, force: bool) -> None:
    from runtime.launch.environment import refuse_ranks
    from twin.description.problems import fail

    refuse_ranks(process, ranks)
    if process.launcher != "alone":
        if restarts:
            raise fail(
                "--restarts",
                f"the ranks are started by {process.launcher}, which starts them again "
                "if told to (torchrun --max-restarts, sbatch --requeue); leave it out",
                restarts,
            )
        if force and options.elastic and process.launcher == "torchrun":
            raise fail(
                "--force",
                "torchrun does not say whether it starts an elastic run for the first time: it "
                "would be deleted whenever nodes come or go; delete it yourself",
            )
        return
    if ranks is None and (job.ranks > 1 or restarts):
        raise fail(
            "ranks",
            f"start the job's {job.ranks} ranks with torchrun or srun, or here with --ranks {job.ranks}",
            job.ranks,
        )
    if ranks not in (None, job.ranks) and not options.elastic:
        raise fail(
            "--ranks",
            f"the job has {job.ranks} ranks (grid {job.grid}); start as many, --set ranks and "
            "grid too, or let the run choose a grid (train.elastic: true)",
            ranks,
        )


def _trace_wanted(
    directory: Path | None, steps: str, last: int, process: Process, *, force: bool
) -> TraceWanted | None:
    from twin.description.problems import fail

    if directory is None:
        return None
    found = re.fullmatch(r"(\d{1,15})(?:-(\d{1,15}))?", steps)
    first, end = (int(found[1]), int(found[2] or found[1])) if found else (0, -1)
    if end < first:
        raise fail("--trace-steps", "expected a step or a range such as 3-5", steps)
    if end >= last:  # what is recorded is written when the last of them is done
        raise fail("--trace-steps", f"the run has steps 0 to {last - 1}", steps)
    if process.started_again and not force and directory.exists():
        return None  # written before the failure
    from runtime.tracing.wanted import TraceWanted
    from twin.trace.store import refuse_run

    if process.rank == 0:  # who writes it, when all is trained
        refuse_run(directory, overwrite=force)

    return TraceWanted(directory, first, end, overwrite=force)


def _train_here(
    job: Job,
    options: Train,
    out: Path,
    trace: TraceWanted | None,
    watch: WatchWanted | None,
    process: Process,
    resolve: Resolve,
    chosen: Chosen | None,
    left_open: Open | None,
    *,
    force: bool,
    accept_changes: bool,
) -> None:
    """Be one rank of the run; `left_open` is settled among the ranks unless it is `chosen`."""
    from runtime.launch.signals import Notice

    notice = Notice()
    notice.listen()
    from runtime.launch.rank import run_as_rank
    from runtime.plan.plan import Plan
    from runtime.train.trainer import train

    force = force and process.attempt == 0
    plan = Plan(job, options, out, trace, force=force, watch=watch, chosen=chosen, accept_changes=accept_changes)
    open_here = left_open if chosen is None else None
    run_as_rank(process, lambda: train(plan, process, notice, resolve, open_here))
