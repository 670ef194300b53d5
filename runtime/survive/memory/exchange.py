"""Sending a rank's part to the rank that keeps it too, and taking in what others send.

A part is its text and its file of numbers, which travels in slices as it lies in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from runtime.survive.memory.part import put
from runtime.survive.memory.place import data_file, part_file

SLICE_BYTES = 1 << 26
"""Of a message: large enough for the full rate of a link, small beside a host's memory."""
NOTHING = -1
"""As a length: the sender has no part, for it could not be written."""


def exchange(
    group: dist.ProcessGroup, folder: Path, rank: int, keeper: int | None, senders: Sequence[int], *, whole: bool
) -> str:
    """Send the part in `folder`, if it is `whole`, and keep what the senders send in the same folder.

    Every rank of the group must call it. Returns what went wrong here, or nothing; raises
    RuntimeError if a peer is lost.
    """
    sending: list[tuple[Any, torch.Tensor]] = []  # what is sent must stay until it is
    problem = ""
    if keeper is not None:
        outgoing, problem = _outgoing(folder, rank, whole=whole)
        sending = [(dist.isend(values, group=group, group_dst=keeper), values) for values in outgoing]
    for sender in senders:
        problem = _take_in(group, folder, sender) or problem
    for work, _ in sending:
        work.wait()
    return problem


def _outgoing(folder: Path, rank: int, *, whole: bool) -> tuple[list[torch.Tensor], str]:
    """What is sent, and what is wrong with it: the keeper waits for something in any case."""
    nothing = [torch.tensor([NOTHING, 0])]
    if not whole:
        return nothing, ""  # what is wrong is known
    path = data_file(folder, rank)
    try:
        text = bytearray(part_file(folder, rank).read_bytes())
        size = path.stat().st_size if path.exists() else 0
        # torch maps it, and raises RuntimeError if it is gone
        numbers = torch.from_file(str(path), shared=False, size=size, dtype=torch.uint8) if size else None
    except (OSError, RuntimeError) as error:
        return nothing, f"{path}: cannot be read again: {error}"
    made = [torch.tensor([len(text), size]), torch.frombuffer(text, dtype=torch.uint8)]
    return made if numbers is None else [*made, *numbers.split(SLICE_BYTES)], ""


def _take_in(group: dist.ProcessGroup, folder: Path, sender: int) -> str:
    """Receive one part whatever happens to the disk: the sender waits for it."""
    lengths = torch.zeros(2, dtype=torch.int64)
    dist.recv(lengths, group=group, group_src=sender)
    length, size = map(int, lengths)
    if length == NOTHING:
        return ""  # the sender tells
    text = torch.empty(length, dtype=torch.uint8)
    dist.recv(text, group=group, group_src=sender)
    problem = ""
    file = None
    try:
        path = data_file(folder, sender)
        if size:
            try:
                folder.mkdir(exist_ok=True)
                file = path.open("wb", buffering=0)
            except OSError as error:
                problem = str(error)
        buffer = torch.empty(min(size, SLICE_BYTES), dtype=torch.uint8)
        for begin in range(0, size, SLICE_BYTES):
            values = buffer[: min(SLICE_BYTES, size - begin)]
            dist.recv(values, group=group, group_src=sender)
            if file is not None and not problem:
                problem = _append(file, values)
    finally:
        if file is not None:
            file.close()
    if not problem:
        try:
            put(part_file(folder, sender), text.numpy().tobytes())
        except OSError as error:
            problem = str(error)
    return problem


def _append(file: Any, values: torch.Tensor) -> str:
    left = values.numpy().data
    try:
        while left:
            left = left[file.write(left) :]
    except OSError as error:
        return str(error)
    return ""
