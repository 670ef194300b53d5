"""Rules of pipeline schedules: which numbers of ranks, micro-batches and chunks they work with."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal, get_args

from twin.description.problems import did_you_mean

Name = Literal["gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v", "dualpipe_v", "dualpipe", "deepspeed"]
"""What a schedule is called in a job file."""
NAMES: tuple[str, ...] = get_args(Name)
V_SHAPES = frozenset({"zb_v", "dualpipe_v"})
"""Schedules whose second chunk is on the way back."""
ONE_RANK = frozenset({"gpipe", "1f1b"})
"""Schedules that say something of a pipeline of one rank."""

Broken = tuple[str, str, Any]
"""A rule that is broken: a key of the job file, what to do, and the value of the key, None if it isn't known here."""
MICRO = "batch.micro_sequences"
MAX_SHOWN = 6


def problems(name: str, ranks: int, micro_steps: int, chunks: int = 1, group: int | None = None) -> list[Broken]:
    """Return the rules that a schedule's configuration breaks: keys, remedies and values, none where `order` works.

    The number of micro-batches is no key of a job file: what is wrong with it stands at the key of their size.
    """
    if name not in NAMES:
        return [("schedule", did_you_mean(name, NAMES), name)]
    return [*_ranks(name, ranks), *_chunks(name, chunks), *_micro_steps(name, ranks, micro_steps, group)]


def _ranks(name: str, ranks: int) -> Iterator[Broken]:
    if ranks < 2 and name not in ONE_RANK:
        yield "grid.pipeline", f"{name} needs 2 pipeline ranks or more; of one rank, use 1f1b", ranks
    elif name == "dualpipe" and ranks % 2:
        yield "grid.pipeline", f"dualpipe pairs ranks from both ends; use {ranks - 1} or {ranks + 1}", ranks


def _chunks(name: str, chunks: int) -> Iterator[Broken]:
    if name == "interleaved" and chunks < 2:
        yield "chunks", "interleaved needs 2 chunks of layers per rank or more; of one chunk, use 1f1b", chunks
    elif name in V_SHAPES and chunks != 2:
        yield "chunks", f"{name} has 2 chunks of layers per rank, one on the way there and one on the way back", chunks
    elif name not in {"interleaved", *V_SHAPES} and chunks != 1:
        yield "chunks", f"{name} has 1 chunk of layers per rank; of several, use interleaved", chunks


def _micro_steps(name: str, ranks: int, micro_steps: int, group: int | None) -> Iterator[Broken]:
    if name == "interleaved":
        yield from _groups(ranks, micro_steps, group)
        return
    if group is not None:
        yield "micro_group", f"only interleaved has groups of micro-batches; leave it out with {name}", group
    if name in {"dualpipe", "dualpipe_v"} and micro_steps < 2 * ranks:
        needs = f"{name} needs 2 micro-batches per pipeline rank, {2 * ranks} in all"
        yield MICRO, f"{needs}, but a step has {micro_steps}; use smaller micro-batches", None
    if name == "dualpipe" and micro_steps % 2:
        yield MICRO, f"dualpipe needs as many micro-batches from both ends, but a step has {micro_steps}", None


def _groups(ranks: int, micro_steps: int, group: int | None) -> Iterator[Broken]:
    """Yield what Megatron refuses: it wants ranks <= group <= micro-batches, and no small group at the end."""
    size = ranks if group is None else group
    if group is not None and group < ranks:
        yield "micro_group", f"use {ranks} or more, the number of pipeline ranks", group
    elif micro_steps < ranks:
        needs = f"interleaved needs a micro-batch per pipeline rank, {ranks}"
        yield MICRO, f"{needs}, but a step has {micro_steps}; use smaller micro-batches", None
    elif size > micro_steps:
        yield "micro_group", f"use {micro_steps} or less, the number of micro-batches in a step", group
    elif 0 < micro_steps % size < ranks:
        left = f"groups of {size} leave {micro_steps % size} of the {micro_steps} micro-batches in a step"
        remedy = f"{left}, fewer than the {ranks} pipeline ranks; {_fitting(ranks, micro_steps)}"
        yield ("micro_group", remedy, group) if group is not None else (MICRO, remedy, None)


def _fitting(ranks: int, micro_steps: int) -> str:
    """Name sizes of groups that fit; as many as micro-batches always do."""
    fit = [size for size in range(ranks, micro_steps + 1) if not 0 < micro_steps % size < ranks]
    shown = ", ".join(map(str, fit[:MAX_SHOWN]))
    return f"use micro_group {shown}{' …' if len(fit) > MAX_SHOWN else ''}"
