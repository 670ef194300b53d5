"""Parts of a machine that run below their rate: a NIC, a link inside a node, a group's uplinks.

A degraded part keeps its place and its latency; only its capacity is multiplied by `rate`. What
runs over it shares what is left, so everything that waits for the slow transfer waits longer.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Annotated, Self

from pydantic import Field, model_validator

from twin.description.machine import Machine
from twin.description.placement import PlacementChoice, groups_used, nodes_used
from twin.description.problems import Problem
from twin.description.spec import Spec

Index = Annotated[int, Field(ge=0, strict=True)]


class Degraded(Spec):
    """One slow part: `{node, nic}`, `{node, link: [a, b]}`, `{node, port}` or `{group}`, and its rate.

    Nodes are counted from the job's first, groups likewise from the first that the job uses.
    """

    node: Index | None = None
    """Node of the job: rank // devices per node."""
    nic: Index | None = None
    """NIC of that node, as in `machine.nic.devices`; where several stand side by side, one of them."""
    link: tuple[Index, Index] | None = None
    """The two devices of that node which the link joins; both directions are slow."""
    port: Index | None = None
    """Device of that node whose port to the node's switch is slow."""
    group: Index | None = None
    """Dragonfly group of the job, all of whose global links together are slow."""
    rate: Annotated[float, Field(ge=1e-3, le=1)]
    """Share of its capacity that the part still has, at least a thousandth."""

    @model_validator(mode="after")
    def _names_one_part(self) -> Self:
        inside = [name for name in ("nic", "link", "port") if getattr(self, name) is not None]
        if self.group is not None and self.node is None and not inside:
            return self
        if self.group is None and self.node is not None and len(inside) == 1:
            return self
        raise ValueError("name one part: {node, nic}, {node, link: [a, b]}, {node, port} or {group}, with its rate")

    @property
    def part(self) -> tuple[str, int | None, tuple[int, ...]]:
        """What is degraded: kind, node, and which one of that kind."""
        if self.group is not None:
            return "group", None, (self.group,)
        if self.link is not None:
            return "link", self.node, tuple(sorted(self.link))
        kind, number = ("nic", self.nic) if self.nic is not None else ("port", self.port)
        return kind, self.node, (number or 0,)


def check_degraded(
    machine: Machine, ranks: int, placement: PlacementChoice, degraded: Sequence[Degraded]
) -> list[Problem]:
    """Return every part that the job's share of the machine does not have."""
    problems: list[Problem] = []
    seen = set()
    for i, one in enumerate(degraded):
        path = f"degraded.{i}"
        if one.part in seen:
            problems.append(Problem(path, "names a part a second time; keep one"))
        seen.add(one.part)
        if one.group is not None:
            problems += _check_group(machine, ranks, placement, one.group, path)
        else:
            problems += _check_inside(machine, ranks, one, path)
    return problems


def _check_group(machine: Machine, ranks: int, placement: PlacementChoice, group: int, path: str) -> list[Problem]:
    if machine.network.group_bandwidth_bytes_per_second is None:
        remedy = f"{machine.name} has no global links between groups that could be slow"
        return [Problem(f"{path}.group", remedy, group)]
    groups = groups_used(machine, ranks, placement)
    if group < groups:
        return []
    remedy = f"the job uses {groups} dragonfly group{'s' if groups > 1 else ''}: 0 to {groups - 1}"
    return [Problem(f"{path}.group", remedy, group)]


def _check_inside(machine: Machine, ranks: int, one: Degraded, path: str) -> list[Problem]:
    problems = []
    nodes = nodes_used(machine, ranks)
    if one.node is not None and one.node >= nodes:
        remedy = f"the job's nodes are 0 to {nodes - 1}"
        problems.append(Problem(f"{path}.node", remedy, one.node))
    if one.nic is not None and one.nic >= len(machine.nic.devices):
        remedy = f"the NICs of a node are 0 to {len(machine.nic.devices) - 1}"
        problems.append(Problem(f"{path}.nic", remedy, one.nic))
    if one.link is not None:
        links = sorted({tuple(sorted(link.devices)) for link in machine.fabric.links})
        if tuple(sorted(one.link)) not in links:
            known = ", ".join(f"[{a}, {b}]" for a, b in links) or "none: use port"
            problems.append(Problem(f"{path}.link", f"links of a node are {known}", list(one.link)))
    if one.port is not None:
        if machine.fabric.port_bandwidth_bytes_per_second is None:
            problems.append(Problem(f"{path}.port", f"{machine.name} has no switch in its nodes; use link", one.port))
        elif one.port >= machine.devices_per_node:
            remedy = f"the devices of a node are 0 to {machine.devices_per_node - 1}"
            problems.append(Problem(f"{path}.port", remedy, one.port))
    return problems
