"""`fourfold import` and `fourfold export`: weights of a full model in and out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415

ShardBytes = Annotated[
    str, typer.Option(metavar="BYTES", help="With --hf: tensors in one file at most, such as '500 MB'.")
]


def import_(
    source: Annotated[Path, typer.Argument(help="Hugging Face directory, or one safetensors file in it.")],
    out: Annotated[Path, typer.Option(metavar="RUN", help="Directory to write: weights, a job file, the tokenizer.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option(
            "--set", metavar="KEY=VALUE", help="Set a key of the job, such as model.sequence=2048. May be repeated."
        ),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of lines.")] = False,
) -> None:
    """Bring a Hugging Face model: its weights in one file that any grid reads, and a job that trains on from it."""
    from runtime.launch.need import need_torch
    from twin.description.units import format_si

    need_torch("import")
    from runtime.data.manifest import TOKENIZER
    from runtime.huggingface.importing import import_huggingface
    from runtime.records.run_directory import COMPANIONS, IMPORTED

    done = import_huggingface(source, out, overrides or [])
    if as_json:
        typer.echo(
            json.dumps(
                {
                    "directory": str(out),
                    "family": done.family,
                    "parameters": done.parameters,
                    "bytes": done.bytes,
                    "companions": done.companions,
                },
                indent=2,
            )
        )
        return
    size = format_si(float(done.bytes), "B", digits=3)
    typer.echo(f"{out}: {done.family}, {done.parameters:,} parameters, {size}, with {', '.join(done.companions)}")
    train = f"fourfold train {out / IMPORTED}"
    if TOKENIZER in done.companions:  # in its own words
        data = f"fourfold data DATA --text FILE --tokenizer {out / COMPANIONS / TOKENIZER}"
        train = f"{data}, then {train} --set train.data=DATA"
    typer.echo(f"train on from it: {train}")


def export(
    checkpoint: Annotated[
        Path, typer.Argument(help="Checkpoint, directory of checkpoints, or run: the newest is taken.")
    ],
    out: Annotated[Path, typer.Argument(metavar="OUT", help="File to write; with --hf, directory.")],
    hf: Annotated[bool, typer.Option("--hf", help="Write a directory that Hugging Face transformers reads.")] = False,
    peft: Annotated[
        bool, typer.Option("--peft", help="Of a run that trained adapters: write a directory that PEFT reads.")
    ] = False,
    dtype: Annotated[
        str | None, typer.Option(metavar="TYPE", help="With --hf: fp32, bf16 or fp16; as it is stored if absent.")
    ] = None,
    family: Annotated[
        str | None, typer.Option(help="With --hf: the model's family there, such as llama, if several can be.")
    ] = None,
    shard_bytes: ShardBytes = "5 GB",
    force: Annotated[bool, typer.Option("--force", help="Replace the file that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a line.")] = False,
) -> None:
    """Write the full model of a checkpoint into one safetensors file, or a Hugging Face directory.

    Adapters are merged into the weights that they stand beside; with --peft they alone are written.
    """
    if peft:
        _export_peft(checkpoint, out, as_json=as_json, given={"--hf": hf, "--dtype": dtype, "--force": force})
        return
    if hf:
        _export_hf(checkpoint, out, dtype, family, shard_bytes, as_json=as_json, force=force)
        return
    from runtime.checkpoint.full_model import export_model
    from runtime.huggingface.merging import open_merged
    from twin.description.problems import fail
    from twin.description.units import format_si

    if given := [name for name, value in (("--dtype", dtype), ("--family", family)) if value is not None]:
        raise fail(given[0], "goes with --hf; without it weights keep their dtype and their names")
    done = export_model(checkpoint, out, overwrite=force, opened=open_merged)
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


def _export_peft(checkpoint: Path, out: Path, *, as_json: bool, given: dict[str, bool | str | None]) -> None:
    from runtime.launch.need import need_torch
    from twin.description.problems import fail
    from twin.description.units import format_si

    need_torch("export")
    if useless := [name for name, value in given.items() if value]:
        raise fail(useless[0], "does not go with --peft, which writes adapters in fp32 into a new directory")
    from runtime.huggingface.peft_out import export_peft

    done = export_peft(checkpoint, out)
    if as_json:
        facts = {"directory": str(out), "source": str(done.source), "family": done.family}
        typer.echo(json.dumps(facts | {"parameters": done.parameters, "bytes": done.bytes}, indent=2))
        return
    size = format_si(float(done.bytes), "B", digits=3)
    typer.echo(f"{out}: adapters of {done.family}, {done.parameters:,} parameters, {size}, from {done.source}")


def _export_hf(
    checkpoint: Path, out: Path, dtype: str | None, family: str | None, shard: str, *, as_json: bool, force: bool
) -> None:
    from runtime.launch.need import need_torch
    from twin.description.problems import fail
    from twin.description.units import SUFFIXES, format_si, parse_quantity

    need_torch("export")
    if force:
        raise fail("--force", "goes with a file; delete the directory yourself, or choose another")
    try:
        shard_bytes = int(parse_quantity(shard, SUFFIXES["_bytes"]))
    except ValueError as error:
        raise fail("--shard-bytes", str(error)) from None
    if shard_bytes < 1:
        raise fail("--shard-bytes", "must be more than nothing", shard)
    from runtime.huggingface.exporting import export_huggingface

    done = export_huggingface(checkpoint, out, dtype=dtype, family=family, shard_bytes=shard_bytes)
    if as_json:
        facts = {"directory": str(out), "source": str(done.source), "family": done.family, "files": done.files}
        facts |= {"parameters": done.parameters, "bytes": done.bytes, "companions": done.companions}
        typer.echo(json.dumps(facts, indent=2))
        return
    size = format_si(float(done.bytes), "B", digits=3)
    typer.echo(
        f"{out}: {done.family}, {done.parameters:,} parameters, {size} in {done.files} files, from {done.source}"
    )
