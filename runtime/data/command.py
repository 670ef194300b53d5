"""`fourfold data`: text to a data set."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from runtime.data.manifest import Manifest, Split

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415

MAX_SEQUENCE = 1 << 24
"""Tokens: beyond any model's sequence, and what is padded to it is still in memory without harm."""


def data(
    out: Annotated[Path, typer.Argument(help="Directory to write the data set into.")],
    text: Annotated[
        list[Path] | None, typer.Option(metavar="PATH", help="Text file, or directory of text files. May be repeated.")
    ] = None,
    jsonl: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="File of JSON lines, or directory of them. May be repeated."),
    ] = None,
    key: Annotated[str, typer.Option(help="Key of the text in JSON lines.")] = "text",
    chat: Annotated[
        list[Path] | None,
        typer.Option(metavar="PATH", help="Conversations in JSON lines; answers count. May be repeated."),
    ] = None,
    sequence: Annotated[
        int | None,
        typer.Option(metavar="N", min=2, max=MAX_SEQUENCE, help="Every document begins a sequence of N tokens."),
    ] = None,
    pack: Annotated[
        bool, typer.Option("--pack", help="With --chat: several conversations in a sequence, see document_mask.")
    ] = False,
    template: Annotated[
        Path | None, typer.Option(metavar="FILE", help="With --chat: Jinja or tokenizer_config.json; else ChatML.")
    ] = None,
    tokenizer: Annotated[
        Path | None, typer.Option(metavar="FILE.json", help="Tokenizer of the tokenizers library; bytes if absent.")
    ] = None,
    validation_fraction: Annotated[
        float, typer.Option(metavar="SHARE", help="Share of the documents held out for validation.")
    ] = 0.02,
    force: Annotated[bool, typer.Option("--force", help="Replace the data set that is there.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object instead of a table.")] = False,
) -> None:
    """Build a data set from text; from the Python standard library if none is given."""
    from itertools import chain

    from runtime.data.build import build_dataset
    from runtime.data.chat import chatml, conversations, template_of
    from runtime.data.documents import jsonl_documents, standard_library_documents, text_documents
    from runtime.data.tokenizer import ByteTokenizer, JsonTokenizer

    _check(text, jsonl, chat, sequence, template, pack=pack)
    documents = (
        conversations(chat, template_of(template) if template else chatml)
        if chat
        else chain(text_documents(text or ()), jsonl_documents(jsonl or (), key))
        if text or jsonl
        else standard_library_documents()
    )
    with _progress() as advance:
        manifest = build_dataset(
            out,
            documents,
            JsonTokenizer(tokenizer) if tokenizer else ByteTokenizer(),
            validation_fraction,
            sequence=sequence,
            pack=pack,
            overwrite=force,
            progress=advance,
        )
    if as_json:
        typer.echo(json.dumps({"directory": str(out), **manifest.model_dump()}, indent=2))
    else:
        _show(out, manifest)


def _check(
    text: list[Path] | None,
    jsonl: list[Path] | None,
    chat: list[Path] | None,
    sequence: int | None,
    template: Path | None,
    *,
    pack: bool,
) -> None:
    """Refuse what does not go together: conversations are laid out otherwise than text."""
    from twin.description.problems import fail

    if chat and (text or jsonl):
        raise fail("--chat", "cannot be mixed with --text or --jsonl; build two data sets")
    if chat and sequence is None:
        raise fail("--sequence", "is missing: each conversation gets a sequence; give the tokens of the model's")
    given = {"--template": template and str(template), "--pack": pack or None}
    for name, value in given.items():
        if not chat and value is not None:
            raise fail(name, "is for conversations; give some with --chat", value)


@contextmanager
def _progress() -> Iterator[Callable[[int, int], None] | None]:
    """Count documents and tokens on standard error, if it is a terminal."""
    from rich.console import Console
    from rich.progress import Progress, SpinnerColumn, TextColumn

    console = Console(stderr=True)
    if not console.is_terminal:
        yield None
        return
    with Progress(SpinnerColumn(), TextColumn("{task.description}"), console=console, transient=True) as bars:
        task = bars.add_task("reading text", total=None)

        def advance(documents: int, tokens: int) -> None:
            bars.update(task, description=f"{documents:,} documents, {tokens:,} tokens")

        yield advance


def _show(out: Path, manifest: Manifest) -> None:
    from rich.console import Console
    from rich.markup import escape
    from rich.table import Table

    from twin.description.units import format_si

    console = Console(width=None if sys.stdout.isatty() else 120, highlight=False)
    console.print(f"[bold]{escape(str(out))}[/]: tokenizer {manifest.tokenizer}, vocabulary {manifest.vocabulary:,}")
    table = Table(box=None, pad_edge=False)
    for name in ("", "documents", "tokens", "largest", "file"):
        table.add_column(name, justify="right" if name else "left")
    for name, split in (("train", manifest.train), ("validation", manifest.validation)):
        size = format_si(float(split.tokens * manifest.token_bytes), "B", digits=3)
        table.add_row(name, f"{split.documents:,}", f"{split.tokens:,}", str(split.largest_token), size)
    console.print(table)
    if manifest.sequence is not None:
        for name, split in (("train", manifest.train), ("validation", manifest.validation)):
            console.print(_told(name, split, manifest.sequence))


def _told(name: str, split: Split, sequence: int) -> str:
    """Say how documents fill their sequences; the last token of a file is behind them."""
    count = split.tokens // sequence
    packed = "" if split.documents_sha256 is None else f", {split.documents / count:.2f} conversations in each"
    full = "" if split.padding is None else f", {1 - split.padding / (count * sequence):.1%} full"
    longer = "" if split.left_out is None else f"; {split.left_out:,} longer ones left out"
    sequences = "sequence" if count == 1 else "sequences"
    return f"{name}: {count:,} {sequences} of {sequence:,}{packed}{full}{longer}"
