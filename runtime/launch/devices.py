"""What ranks compute on: alike on all of them, agreed upon before any process group is made.

A rank that fell back to its CPU beside ranks on GPUs would leave NCCL waiting for gloo, and all ranks
on CPUs of hosts that have GPUs would be a run a hundred times too slow that nobody asked for.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from runtime.launch.board import Board
from runtime.launch.disagreement import DisagreementError
from runtime.parallel.host import host_name
from twin.description.problems import fail

MAX_NAMED = 8
"""Ranks of a host that a message names one by one."""


def agree_on_type(board: Board, device: torch.device) -> None:
    """Refuse ranks on CPUs beside ranks on GPUs; every rank must call it.

    Raises DisagreementError on every rank, naming ranks and hosts without a GPU.
    """
    found = board.gather([device.type, host_name()])
    if problem := board.tell(lambda: mixture(found)):
        raise DisagreementError([problem])


def mixture(found: Sequence[Sequence[str]]) -> str:
    """Say which ranks see no GPU though others do; empty if all are alike. `found` is type and host by rank."""
    without: dict[str, list[int]] = {}
    for rank, (kind, host) in enumerate(found):
        if kind == "cpu":
            without.setdefault(host, []).append(rank)
    lonely = sum(map(len, without.values()))
    if lonely in (0, len(found)):
        return ""
    where = "; ".join(f"{_ranks(ranks)} on host {host}" for host, ranks in without.items())
    return str(
        fail(
            "train.device",
            f"no GPU is seen by {where}, while {len(found) - lonely} others have one each; repair or leave out "
            "what has none, or train all on CPUs (train.device: cpu)",
            "auto",
        )
    )


def place_name(device: torch.device, ranks: int) -> str:
    """Name what so many ranks compute on, and by which library they talk.

    >>> place_name(torch.device("cpu"), 4)
    '4 ranks on CPUs (gloo)'
    """
    many = f"{ranks} rank{'s' if ranks > 1 else ''}"
    if device.type == "cpu":
        return f"{many} on CPUs (gloo)" if ranks > 1 else f"{many} on the CPU"
    talk = "RCCL" if torch.version.hip else "NCCL"
    return f"{many} on {torch.cuda.get_device_name(device)}" + (f" ({talk})" if ranks > 1 else "")


def _ranks(ranks: Sequence[int]) -> str:
    shown = ", ".join(map(str, ranks[:MAX_NAMED])) + (", …" if len(ranks) > MAX_NAMED else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"
