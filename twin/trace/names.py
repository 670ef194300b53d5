"""What names of ops and numbers of groups in an event table mean."""

from __future__ import annotations

from collections.abc import Iterable

from twin.description.grid import Axes, Axis
from twin.trace.palette import AXES


def short_name(full: str) -> str:
    """Drop micro-step, its half, phase and block from an op's name.

    >>> short_name("micro0/fwd/block3/mlp_up/gemm"), short_name("optimizer/adamw")
    ('mlp_up/gemm', 'optimizer/adamw')
    >>> short_name("micro0/half1/bwd/block3/mlp_up/input_gradient")
    'mlp_up/input_gradient'
    """
    parts = full.split("/")
    if parts[0].startswith("micro"):
        parts = parts[3:] if parts[1:] and parts[1].startswith("half") else parts[2:]
    if len(parts) > 1 and parts[0].startswith("block"):
        parts = parts[1:]
    return "/".join(parts)


def micro_step(full: str) -> int | None:
    """Return the micro-step of an op's name, None outside of micro-steps."""
    first = full.split("/", 1)[0]
    return int(first[5:]) if first.startswith("micro") and first[5:].isdigit() else None


def group_number(grid: Axes, rank: int, axis: Axis) -> int:
    """Return the number of a rank's group among those of an axis.

    >>> from twin.description.grid import Mesh
    >>> group_number(Mesh(("data", "z", "y", "x"), (1, 2, 1, 2)), 3, "z")
    1
    """
    inner = grid.inner(axis)
    return rank // (inner * grid.size(axis)) * inner + rank % inner


def in_order(streams: Iterable[str]) -> list[str]:
    """Put streams in the order in which they are drawn: compute, axes that have a colour, all others.

    >>> in_order(["data", "pipe_up", "z_scatter", "x", "z_gather", "compute"])
    ['compute', 'x', 'z_gather', 'z_scatter', 'data', 'pipe_up']
    """
    axes = list(AXES)

    def place(stream: str) -> tuple[int, str]:
        axis = stream.partition("_")[0]
        if stream == "compute":
            return -1, ""
        return (axes.index(axis) if axis in axes else len(axes)), stream

    return sorted(set(streams), key=place)
