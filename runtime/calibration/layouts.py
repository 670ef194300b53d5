"""Groups of every layout that a grid's axes can have, and collectives over them."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist

from runtime.calibration.listening import AnyListener
from runtime.calibration.team import Team
from runtime.parallel.collectives import Collectives, Handle
from runtime.parallel.mesh import Communicator, Mesh, line
from runtime.parallel.ops import Ops, Place
from twin.description.grid import divisors
from twin.description.library import CollectiveKind
from twin.strategies.four_d.grid import Grid

KINDS: tuple[CollectiveKind, ...] = ("all_gather", "reduce_scatter", "all_reduce")
AXIS: Communicator = "y"
PLACE = Place("calibration")


@dataclass(frozen=True)
class GroupLayout:
    """Groups of `size` ranks that are `inner` apart, as an axis has them outside `inner` others."""

    inner: int
    size: int

    def groups(self, ranks: int) -> int:
        """Return the number of such groups."""
        return ranks // self.size


def layouts(ranks: int) -> list[GroupLayout]:
    """Every layout that an axis of a grid of so many ranks can have.

    >>> [(l.inner, l.size) for l in layouts(4)]
    [(1, 2), (1, 4), (2, 2)]
    """
    return [GroupLayout(inner, size) for inner in divisors(ranks) for size in divisors(ranks // inner) if size > 1]


class Axis:
    """This rank's group of a layout, with the runtime's own verbs over it."""

    def __init__(self, team: Team, layout: GroupLayout) -> None:
        """Make the group; every rank must call it."""
        self.layout, self.device = layout, team.device
        grid = Grid(data=team.ranks // layout.inner // layout.size, y=layout.size, x=layout.inner)
        members = line(grid, team.rank, AXIS)
        group = dist.new_group(members, use_local_synchronization=True)
        self.number = members[0] // (layout.inner * layout.size) * layout.inner + members[0] % layout.inner
        on_host = frozenset({AXIS} if len({team.hosts[member] for member in members}) == 1 else ())
        mesh = Mesh(grid, team.rank, grid.coordinates(team.rank), {AXIS: group}, team.control, on_host)
        self.ops = Ops()
        self._collectives = Collectives(mesh, self.ops, direct=team.device.type == "cpu")

    def buffer(self, kind: CollectiveKind, bytes_: int, dtype: torch.dtype) -> torch.Tensor:
        """What this rank brings to a collective of so many bytes, counted as ops count them."""
        whole = max(1, bytes_ // dtype.itemsize // self.layout.size) * self.layout.size
        elements = whole // self.layout.size if kind == "all_gather" else whole
        return torch.zeros(elements, dtype=dtype, device=self.device)

    def start(self, kind: CollectiveKind, buffer: torch.Tensor, listener: AnyListener | None = None) -> Handle:
        """Start a collective; whoever listens now listens to its end as well."""
        self.ops.listener = listener
        verb = getattr(self._collectives, kind)
        handle: Handle = verb(PLACE, AXIS, buffer)
        return handle
