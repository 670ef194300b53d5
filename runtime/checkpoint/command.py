"""`fourfold export`: a checkpoint to a plain full model."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415


def export(
    checkpoint: Annotated[
        Path, typer.Argument(help="Checkpoint, directory of checkpoints, or run: the newest is taken.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT.safetensors", help="File to write.")],
    force: Annotated[bool, typer.Option("--force", help="Replace the file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a line.")] = False,
) -> None:
    """Write the full model of a checkpoint into one safetensors file."""
    from runtime.checkpoint.full_model import export_model
    from twin.description.units import format_si

    done = export_model(checkpoint, out, overwrite=force)
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "file": str(out),
                    "checkpoint": str(done.checkpoint),
                    "step": done.step,
                    "parameters": done.parameters,
                    "bytes": done.bytes,
                },
                indent=2,
            )
        )
    else:
        typer.echo(
            f"{out}: {done.parameters:,} parameters after step {done.step}, "
            f"{format_si(float(done.bytes), 'B', digits=3)}, from {done.checkpoint}"
        )
