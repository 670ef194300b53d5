"""What the all-ranks engine draws, handed to the SimPy engine op by op: so the two are compared."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from twin.engine.cube import Cube, Floats
from twin.engine.every_role import OPS
from twin.engine.meetings import Ranks, units_of
from twin.engine.program import START, Program
from twin.engine.ranks import Variation
from twin.engine.simulate import Differences
from twin.engine.simulation import Simulation
from twin.engine.variation import Factors
from twin.schedule.ops import OWN_STREAMS


def differences(nominal: Simulation, cube: Cube, variation: Variation) -> Differences:
    """Return the same differences by rank, of the simulation without them and the layout of its ranks."""
    compute, collective = variation.compute, variation.collective
    slowness = cube.in_rank_order(variation.slowness)
    if len(nominal.parts) == 1:
        return Differences(
            slowness,
            None if compute is None else _compute(nominal, cube, compute),
            None if collective is None else _collectives(nominal, cube, collective),
        )
    roles = [Ranks(number, part, slowness, ()) for number, part in enumerate(nominal.parts)]
    return Differences(
        slowness,
        None if compute is None else _compute_of_roles(nominal, roles, compute),
        None if collective is None else _collectives_of_roles(nominal, roles, collective),
    )


def _compute(nominal: Simulation, cube: Cube, factors: Factors) -> Floats:
    ops = range(len(nominal.program))
    return np.array([cube.in_rank_order(cube.from_memory(factors.of(op, cube.ranks))) for op in ops])


def _collectives(nominal: Simulation, cube: Cube, factors: Factors) -> Floats:
    program = nominal.program
    found = np.ones((len(program), cube.ranks))
    for name in dict.fromkeys(name for name, _, _ in program.calls):
        if name in OWN_STREAMS:  # no network disturbs it
            continue
        members = nominal.communicators[name].members
        along = cube.along(members)
        assert along is not None
        for op in _starts(program, name):
            of_group = cube.from_memory(factors.of(op, len(members)), along).reshape(-1)
            found[op, members] = of_group[:, None]
    return found


def _compute_of_roles(nominal: Simulation, roles: Sequence[Ranks], factors: Factors) -> Floats:
    """Ops of different roles that have the same number have different factors."""
    found = _ones(nominal)
    for role in roles:
        ranks = role.part.role.ranks
        for op in range(len(role.part.program)):
            found[op, ranks] = factors.of(op + role.number * OPS, len(ranks))
    return found


def _collectives_of_roles(nominal: Simulation, roles: Sequence[Ranks], factors: Factors) -> Floats:
    """The number of a collective is that of the op by which its first member's role starts it."""
    found = _ones(nominal)
    starts = [{name: _starts(r.part.program, name) for name in nominal.communicators} for r in roles]
    for name in dict.fromkeys(name for name, _, _ in roles[0].part.program.calls):
        for unit in units_of(name, nominal, roles, 1.0):
            for nth, op in enumerate(starts[unit.first][name]):
                of_group = factors.of(op + unit.first * OPS, len(unit.group_class))
                for number in unit.roles:
                    found[starts[number][name][nth], roles[number].part.role.ranks] = of_group[unit.group[number]]
    return found


def _ones(nominal: Simulation) -> Floats:
    return np.ones((max(len(part.program) for part in nominal.parts), nominal.job.ranks))


def _starts(program: Program, communicator: str) -> list[int]:
    """Return the ops that start a collective on a communicator."""
    return [
        op
        for op, (code, target) in enumerate(zip(program.code, program.target, strict=True))
        if code == START and program.calls[target][0] == communicator
    ]
