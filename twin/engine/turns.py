"""Ranks that share cores take turns on them: who wants to start a collective has to get the core first.

The engine lets threads share cores evenly and at once, which is right for how long work takes. A kernel lets one run on
for a turn while the others wait. Where all have work before they next stand still, the last of a group comes to what it
starts after the others' turns, not at the same time as they; so what is started to run beside compute has less of it
beside it, and what is waited for at once is no later.

The others are taken to have as much to do as the rank itself, and all of them something: true of ranks that run the
same program, and said of no others (the stages of a pipeline take no turns here).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from twin.description.machine import Machine
from twin.engine.program import WAIT, Program
from twin.engine.times import Floats
from twin.schedule.communicator import Communicator


@dataclass(frozen=True)
class Turns:
    """How ranks take turns."""

    seconds: float = 0.0
    """Of one turn; 0: there are none."""
    before_last: Mapping[str, float] = field(default_factory=dict)
    """Turns of other ranks on a core before that of a group's last member, by communicator."""

    def late(self, communicator: str, worked: float, rest: float) -> float:
        """Return by how much the last member's start is later than if all had run at once.

        `worked` is a rank's work since it last stood still, `rest` what it has left to do until it may do so again.
        """
        left = min(self.seconds - worked % self.seconds, rest)
        return self.before_last.get(communicator, 0.0) * left


def turns_of(machine: Machine, ranks: int, communicators: Mapping[str, Communicator], roles: int = 1) -> Turns:
    """Say how a job's ranks take turns; with several roles not at all."""
    cores = machine.cores
    if cores is None or cores.turn_seconds is None or roles > 1:
        return Turns()
    sharing = ranks if cores.shared_by == "machine" else min(ranks, machine.devices_per_node)
    others = max(0.0, sharing / cores.count - 1.0)
    before = {name: others * _last_of(min(each.size, sharing), sharing) for name, each in communicators.items()}
    return Turns(float(cores.turn_seconds), before)


def _last_of(size: int, ranks: int) -> float:
    """Where the last of `size` of so many ranks comes in a queue of all, in the mean: 0 first, 1 last.

    >>> _last_of(8, 8), round(_last_of(1, 8), 3)
    (1.0, 0.5)
    """
    return (size * (ranks + 1) / (size + 1) - 1) / (ranks - 1) if ranks > 1 else 0.0


def work_until_wait(program: Program) -> Floats:
    """Return the seconds of work, at nominal speed, between each op and the next wait."""
    done = np.concatenate(([0.0], np.cumsum(np.asarray(program.amount))))
    waits = np.flatnonzero(np.asarray(program.code) == WAIT)
    following = np.searchsorted(waits, np.arange(len(program)), side="right")
    until = np.concatenate((waits, [len(program)]))[following]
    return np.asarray(done[until] - done[1:])
