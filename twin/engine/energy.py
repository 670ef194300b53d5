"""Energy of a simulated step, op by op and rank by rank, and its power over time.

A rank draws what its context draws from the step's first moment to its last, and each op adds its own watts while it
runs: so the joules of a step are those of its ops and of the context, and power over time integrates to them. Devices
of typical speed are taken: what all wait for the slowest one is drawn at the context's watts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from twin.cost.power import LOWEST_CLOCK, follows_clock, memory_watts, unit_watts
from twin.description.power import Power
from twin.engine.program import COMPUTE, START, Program
from twin.engine.simulate import Part, Simulation
from twin.schedule.ops import Compute, Start

Floats = NDArray[np.float64]
Places = NDArray[np.int32]
CONTEXT, PRODUCTS, OTHERS, LINKS = "context", "products", "other kernels", "links and copies"
"""What joules are booked under."""
OFF_DEVICE = frozenset(("host_update", "disk_read", "disk_write"))
"""What is done without the device and its links."""


@dataclass(frozen=True)
class StepEnergy:
    """Energy of one simulated step, of the devices alone."""

    simulation: Simulation
    power: Power

    @cached_property
    def _watts(self) -> list[tuple[Floats, NDArray[np.int8]]]:
        """Of each part: watts that each of its distinct ops adds, and what kind of work that is."""
        return [self._watts_of(part.program) for part in self.simulation.parts]

    def _watts_of(self, program: Program) -> tuple[Floats, NDArray[np.int8]]:
        device, clock = self.simulation.job.machine.device, self.simulation.clock
        watts, kinds = np.zeros(len(program.ops.distinct)), np.zeros(len(program.ops.distinct), dtype=np.int8)
        which, amounts = np.asarray(program.ops.which), np.asarray(program.amount)
        _, firsts = np.unique(which, return_index=True)
        for number, first in zip(np.unique(which).tolist(), firsts.tolist(), strict=True):
            op = program.ops.distinct[number]
            if isinstance(op, Compute):
                kinds[number] = KINDS.index(PRODUCTS if follows_clock(op.kernel) else OTHERS)
                moved = memory_watts(device, self.power, op.kernel, float(amounts[first]))
                watts[number] = unit_watts(self.power, op.kernel, clock) + moved
            elif isinstance(op, Start):
                kinds[number] = KINDS.index(LINKS)
                watts[number] = 0.0 if op.kind in OFF_DEVICE else self.power.links_watts
        return watts, kinds

    def _of_ops(self, number: int) -> tuple[Floats, NDArray[np.int8]]:
        """Return watts and kind of each op of a part."""
        (watts, kinds), which = self._watts[number], np.asarray(self.simulation.parts[number].program.ops.which)
        return watts[which], kinds[which]

    def _durations(self, part: Part) -> Floats:
        """Seconds of each op on a device of typical speed, (rank classes, ops)."""
        timeline, code = part.timeline, np.asarray(part.program.code)
        slower = np.where(code == COMPUTE, self.simulation.typical_slowness, 1.0)
        runs = (code == COMPUTE) | (code == START)
        found: Floats = np.where(runs, (timeline.end - timeline.start) / slower, 0.0)
        return found

    def op_joules(self, part: int) -> Floats:
        """Return what each op of a part adds, of one rank of each of its classes, (rank classes, ops)."""
        watts, _ = self._of_ops(part)
        found: Floats = self._durations(self.simulation.parts[part]) * watts
        return found

    @property
    def context_joules(self) -> float:
        """What a rank's context draws in a step."""
        return float(self.power.context_watts * self.simulation.step_seconds)

    def rank_joules(self) -> Floats:
        """Return the joules of one rank of each class, in the order of the classes' numbers."""
        found = np.zeros(self.simulation.partition.rank_classes)
        for number, part in enumerate(self.simulation.parts):
            found[part.classes] = self.op_joules(number).sum(axis=1) + self.context_joules
        return found

    @cached_property
    def _ranks_of_class(self) -> NDArray[np.int64]:
        classes = self.simulation.partition.rank_class
        return np.bincount(classes[classes >= 0], minlength=self.simulation.partition.rank_classes)

    @cached_property
    def joules_by_kind(self) -> dict[str, float]:
        """Joules of all devices by what draws them."""
        ranks = self._ranks_of_class
        found = dict.fromkeys(KINDS, 0.0)
        found[CONTEXT] = self.context_joules * float(ranks.sum())
        for number, part in enumerate(self.simulation.parts):
            of_ops = ranks[part.classes].astype(np.float64) @ self.op_joules(number)
            sums = np.bincount(self._of_ops(number)[1], weights=of_ops, minlength=len(KINDS))
            for kind, joules in zip(KINDS[1:], sums[1:].tolist(), strict=True):
                found[kind] += joules
        return found

    @property
    def joules(self) -> float:
        """Joules of all devices."""
        return sum(self.joules_by_kind.values())

    @property
    def mean_watts(self) -> float:
        """Mean power of all devices together."""
        return self.joules / self.simulation.step_seconds if self.simulation.step_seconds else 0.0

    @cached_property
    def active_watts(self) -> float:
        """Mean power of a device while it computes, as tools that sample busy devices report it."""
        ranks, seconds = self._ranks_of_class, 0.0
        for part in self.simulation.parts:
            computes = np.asarray(part.program.code) == COMPUTE
            seconds += float(ranks[part.classes] @ self._durations(part)[:, computes].sum(axis=1))
        kernels = self.joules_by_kind[PRODUCTS] + self.joules_by_kind[OTHERS]
        return float(self.power.context_watts) + (kernels / seconds if seconds else 0.0)

    @property
    def over_time(self) -> tuple[Floats, Floats]:
        """Power of all devices together: when it changes, and watts from then on; the last time is the step's end."""
        pieces = list(self._pieces())
        moments, watts = (np.concatenate(each) for each in zip(*pieces, strict=True))
        if moments[-1] < self.simulation.step_seconds:
            moments, watts = np.append(moments, self.simulation.step_seconds), np.append(watts, watts[-1])
        return moments, watts

    @cached_property
    def peak_watts(self) -> float:
        """Highest power of all devices together; what begins as the step ends lasts for no time."""
        end = self.simulation.step_seconds
        return max(float(watts[moments < end].max(initial=0.0)) for moments, watts in self._pieces())

    def _pieces(self) -> Iterator[tuple[Floats, Floats]]:
        """Yield power over time as `over_time` has it, a stretch of the step after the other.

        Ops of all classes together may be millions, of which only those of one stretch are put in order at once; of
        those that outlast it their ends are kept.
        """
        drawing = [self._drawing(number) for number in range(len(self.simulation.parts))]
        count = 1 + 2 * sum(map(len, drawing)) // MAX_DRAWING
        edges = np.linspace(0.0, self.simulation.step_seconds, count + 1)[1:-1]
        # each is let go as soon as it is sorted
        stretches = [self._stretches(number, drawing.pop(0), edges) for number in range(len(drawing))]
        level, context = 0.0, self.power.context_watts * float(self._ranks_of_class.sum())
        ending, falls = np.empty(0), np.empty(0)
        for stretch in range(count):
            drawn = [self._drawn(number, places[stretch]) for number, places in enumerate(stretches)]
            begin, end, rises = (np.concatenate(each) for each in zip(*drawn, strict=True))
            ending, falls = np.concatenate([ending, end]), np.concatenate([falls, -rises])
            over = ending < edges[stretch] if stretch < len(edges) else np.ones(len(ending), dtype=bool)
            at, change = np.concatenate([begin, ending[over]]), np.concatenate([rises, falls[over]])
            ending, falls = ending[~over], falls[~over]
            if not stretch:
                at, change = np.append(0.0, at), np.append(context, change)
            if not len(at):
                continue
            order = np.argsort(at, kind="stable")
            at, watts = at[order], np.cumsum(np.concatenate([[level], change[order]]))[1:]
            level = float(watts[-1])
            after = np.append(np.flatnonzero(at[1:] != at[:-1]), len(at) - 1)
            yield at[after], watts[after]

    def _drawing(self, number: int) -> Places:
        """Return places of the ops of a part that draw anything, among those of all its classes in a row."""
        steps = np.multiply.outer(self._ranks_of_class[self.simulation.parts[number].classes], self._of_ops(number)[0])
        return np.flatnonzero((steps != 0.0) & (self._durations(self.simulation.parts[number]) > 0.0)).astype(np.int32)

    def _stretches(self, number: int, drawing: Places, edges: Floats) -> list[Places]:
        """Sort places of ops by the stretch of the step in which they begin."""
        begin = self.simulation.parts[number].timeline.start.reshape(-1).take(drawing)
        stretch = np.searchsorted(edges, begin, side="right").astype(np.uint16)
        if (stretch[1:] < stretch[:-1]).any():
            drawing = drawing[np.argsort(stretch, kind="stable")]
        return np.split(drawing, np.cumsum(np.bincount(stretch, minlength=len(edges) + 1))[:-1])

    def _drawn(self, number: int, places: Places) -> tuple[Floats, Floats, Floats]:
        """Return begin and end of such ops on devices of typical speed, and what all their ranks draw by each."""
        part = self.simulation.parts[number]
        program, (watts, _) = part.program, self._watts[number]
        ranks = self._ranks_of_class[part.classes]
        row, op = np.divmod(places, len(program.code)) if len(ranks) > 1 else (0, places)
        begin, end = part.timeline.start.reshape(-1).take(places), part.timeline.end.reshape(-1).take(places)
        seconds = end - begin
        computes = np.asarray(program.code).take(op) == COMPUTE
        np.divide(seconds, self.simulation.typical_slowness, out=seconds, where=computes)
        steps = watts.take(np.asarray(program.ops.which).take(op)) * ranks[row]
        return begin, begin + seconds, steps

    def slack(self) -> tuple[float, float]:
        """Bound what slowing ranks down that wait could save: mean clock, and joules of the step.

        Each rank computes so slowly that it fills the time in which it does not compute (Perseus, SOSP '24). No step is
        longer for it, but what waits for what is not looked at: so nobody can save more this way.
        """
        saved = clocks = 0.0
        ranks = self._ranks_of_class
        for number, part in enumerate(self.simulation.parts):
            _, kinds = self._of_ops(number)
            durations = self._durations(part)
            compute = durations[:, np.asarray(part.program.code) == COMPUTE].sum(axis=1)
            products = durations[:, kinds == KINDS.index(PRODUCTS)].sum(axis=1)
            room = np.maximum(self.simulation.step_seconds - compute, 0.0)
            clock = np.where(products > 0.0, products / np.maximum(products + room, 1e-300), 1.0)
            clock = np.maximum(clock, LOWEST_CLOCK)
            units = float(self.power.products_watts) * self.power.clocked(self.simulation.clock)
            slowed = np.array([self.power.clocked(self.simulation.clock * each) / each for each in clock.tolist()])
            now = self.power.clocked(self.simulation.clock)
            gain = units * products * (1.0 - slowed / now)
            weight = ranks[part.classes]
            saved += float(weight @ np.maximum(gain, 0.0))
            clocks += float(weight @ clock)
        return clocks / float(ranks.sum()), saved


MAX_DRAWING = 2**16
"""Ops whose power is put in order at once: some megabytes."""
KINDS: Sequence[str] = (CONTEXT, PRODUCTS, OTHERS, LINKS)


def step_energy(simulation: Simulation) -> StepEnergy | None:
    """Return the energy of a step; None where the device's watts by kind of work are not known."""
    power = simulation.job.machine.device.power
    return None if power is None else StepEnergy(simulation, power)
