"""`fourfold calibrate`: this machine, measured, as a machine file."""

from __future__ import annotations

import json
import os
import re
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from runtime.calibration.measure import Advance
    from runtime.launch.environment import Process

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415, T201

Fit = Callable[[dict[str, Any]], str]
MAX_MINUTES = 240.0
TIMEOUT_SECONDS = 300.0
NAME = r"[a-z0-9][a-z0-9._-]{0,62}"


def calibrate(fit: Fit) -> Callable[..., None]:
    """Make the command; `fit` turns measurements into the text of a machine file."""

    def calibrate(
        name: Annotated[
            str | None, typer.Option(metavar="NAME", help="Name of the machine; the host's if absent.")
        ] = None,
        ranks: Annotated[
            int | None,
            typer.Option(
                "--ranks",
                min=1,
                help="Start so many ranks here; without it torchrun or srun starts them, or there is one.",
            ),
        ] = None,
        out: Annotated[Path, typer.Option(help="Directory for NAME.yaml and NAME-measurements.json.")] = Path(),
        minutes: Annotated[float, typer.Option(metavar="M", help="About how long to measure.")] = 3.0,
        device: Annotated[str, typer.Option(metavar="DEVICE", help="auto, cpu or cuda.")] = "auto",
        force: Annotated[bool, typer.Option("--force", help="Replace files that are there.")] = False,
    ) -> None:
        """Measure this machine by microbenchmarks, and write it as a machine file."""
        from runtime.launch.environment import from_environment

        process = from_environment(os.environ)
        name = name or default_name(socket.gethostname())
        _check(name, out, minutes, device, ranks, process, force=force)
        if process.launcher == "alone" and (ranks or 1) > 1:
            from runtime.launch.local import run_ranks

            arguments = [
                "calibrate",
                "--name",
                name,
                "--out",
                str(out),
                "--minutes",
                str(minutes),
                "--device",
                device,
                *(["--force"] if force else []),
            ]
            raise typer.Exit(run_ranks(arguments, ranks or 1))
        from runtime.launch.rank import run_as_rank

        def work() -> None:
            data = _measured(process, name, minutes, device)
            if data is not None:
                _write(data, out, name, fit)

        run_as_rank(process, work)

    return calibrate


def default_name(host: str) -> str:
    """A name that a file can have, from that of a host.

    >>> default_name("Node-07.example.org"), default_name("")
    ('node-07', 'machine')
    """
    return re.sub(r"[^a-z0-9-]", "-", host.partition(".")[0].lower()).strip("-") or "machine"


def _check(
    name: str, out: Path, minutes: float, device: str, ranks: int | None, process: Process, *, force: bool
) -> None:
    from importlib.util import find_spec

    from twin.description.problems import fail

    if not re.fullmatch(NAME, name):
        raise fail("--name", "expected small letters, digits, points and dashes, such as my-cluster", name)
    if not 0 < minutes <= MAX_MINUTES:
        raise fail("--minutes", f"expected more than 0, at most {MAX_MINUTES:g}", minutes)
    if device not in ("auto", "cpu", "cuda"):
        raise fail("--device", "expected auto, cpu or cuda", device)
    if ranks is not None and process.launcher != "alone":
        raise fail("--ranks", f"the ranks are started by {process.launcher} already; leave it out", ranks)
    if out.exists() and not out.is_dir():
        raise fail("--out", "is not a directory", str(out))
    for path in files(out, name) if not force and process.rank == 0 else ():
        if path.exists():
            raise fail(str(path), "exists already; choose another --name or --out, or pass --force")
    if find_spec("torch") is None:
        raise fail("calibrate", "needs PyTorch, which is not installed; pip install 'fourfold[runtime]'")


def files(out: Path, name: str) -> tuple[Path, Path]:
    """Where the measurements and the machine go."""
    return out / f"{name}-measurements.json", out / f"{name}.yaml"


def _measured(process: Process, name: str, minutes: float, device: str) -> dict[str, Any] | None:
    from runtime.calibration.measure import measure
    from runtime.launch.board import Board
    from runtime.launch.devices import agree_on_type
    from runtime.launch.meeting import agree, choose_device, join, open_store, set_threads
    from twin.description.calibrated import check_alone

    set_threads(process, None)
    store = open_store(process, TIMEOUT_SECONDS) if process.ranks > 1 else None
    chosen = agree(store, process, "device", lambda: choose_device(device, process))
    agree_on_type(Board(store, process), chosen)
    agree(store, process, "ranks", lambda: check_alone(chosen.type, process.ranks))
    if store is not None:
        join(process, store, chosen, TIMEOUT_SECONDS)
    with _progress(shown=process.rank == 0) as advance:
        data = measure(process, chosen, name, minutes, advance)
    agree(store, process, "end", lambda: None)  # nobody leaves while others still talk to it
    return data


def _write(data: dict[str, Any], out: Path, name: str, fit: Fit) -> None:
    """Write the measurements, then the machine that is fitted to them."""
    from twin.description.files import write_whole

    measurements, machine = files(out, name)
    out.mkdir(parents=True, exist_ok=True)
    write_whole(measurements, json.dumps(data, indent=1, allow_nan=False) + "\n")
    print(f"measurements: {measurements}")
    write_whole(machine, fit(data))
    print(f"machine: {machine}")


@contextmanager
def _progress(*, shown: bool) -> Iterator[Advance]:
    """Show on standard error what is being measured, if it is a terminal."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    console = Console(stderr=True)
    if not shown or not console.is_terminal:
        yield lambda _section, _done: None
        return
    with Progress(
        TextColumn("measuring"),
        BarColumn(),
        TextColumn("{task.description}"),
        TimeElapsedColumn(),
        console=console,
        transient=True,
    ) as bars:
        task = bars.add_task("", total=1.0)
        yield lambda section, done: bars.update(task, completed=done, description=section.replace("_", " "))
