"""Energy of a simulated step, op by op and rank by rank, and its power over time.

A rank draws what its context draws from the step's first moment to its last, and each op adds its own watts while it
runs, but no more than the device's limit leaves it (`twin.engine.held_power`): so the joules of a step are those of its
ops and of the context, and power over time integrates to them. Devices of typical speed are taken: what all wait for
the slowest one is drawn at the context's watts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from twin.cost.power import LOWEST_CLOCK, follows_clock, memory_watts, unit_watts
from twin.description.power import Power
from twin.engine.held_power import Held, held_back
from twin.engine.power_over_time import Draws, Ops, PowerOverTime, Segments
from twin.engine.program import Program
from twin.engine.rows import Occurrences
from twin.engine.simulation import Simulation
from twin.engine.times import Floats
from twin.schedule.kernels import Kernel
from twin.schedule.ops import Compute, Start, Wait

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
        known: dict[tuple[Kernel, float], tuple[float, int]] = {}
        return [self._watts_of(part.program, known) for part in self.simulation.parts]

    def _watts_of(
        self, program: Program, known: dict[tuple[Kernel, float], tuple[float, int]]
    ) -> tuple[Floats, NDArray[np.int8]]:
        """Return those of a part; `known` are kernels that have been looked at, with the seconds that they take."""
        found: list[tuple[float, int]] = []
        links = KINDS.index(LINKS)
        for op, seconds in zip(program.ops.distinct, program.amounts, strict=True):
            if isinstance(op, Compute):
                key = (op.kernel, seconds)
                own = known.get(key)
                if own is None:
                    own = known[key] = self._kernel_watts(*key)
            elif isinstance(op, Start):
                own = (0.0 if op.kind in OFF_DEVICE else float(self.power.links_watts), links)
            else:
                own = (0.0, 0)
            found.append(own)
        watts, kinds = zip(*found, strict=True) if found else ((), ())
        return np.array(watts, dtype=np.float64), np.array(kinds, dtype=np.int8)

    def _kernel_watts(self, kernel: Kernel, seconds: float) -> tuple[float, int]:
        """Return what a kernel that takes so long adds, and what kind of work it is."""
        device, clock = self.simulation.job.machine.device, self.simulation.clock
        moved = memory_watts(device, self.power, kernel, seconds)
        kind = KINDS.index(PRODUCTS if follows_clock(kernel) else OTHERS)
        return min(unit_watts(self.power, kernel, clock) + moved, self.spare_watts), kind

    @property
    def spare_watts(self) -> float:
        """What a device's limit leaves for its ops beside the context."""
        return float(self.simulation.job.machine.device.busy_watts - self.power.context_watts)

    @cached_property
    def _held(self) -> list[list[tuple[Held, list[Held]]]]:
        """Of each part and class of ranks: what it does not draw of ops that are known one by one, and of segments."""
        alike: dict[tuple[int, bytes], Held] = {}
        found = []
        for number, part in enumerate(self.simulation.parts):
            which, code = np.asarray(part.program.ops.which), np.asarray(part.program.code)
            watts, slowness = self._watts[number][0], self.simulation.typical_slowness
            rows = []
            for row in part.timeline.rows:
                own = held_back(row.times, code[row.ops], watts[which[row.ops]], slowness, self.spare_watts)
                of_segments = []
                for each, drawn in row.each_once(watts[which[row.once]]):
                    segment, key = each.segment, (id(each.segment), drawn.tobytes())
                    if key not in alike:
                        alike[key] = held_back(segment.times, segment.code, drawn, slowness, self.spare_watts)
                    of_segments.append(alike[key])
                rows.append((own, of_segments))
            found.append(rows)
        return found

    @cached_property
    def _held_joules(self) -> list[Floats]:
        """Of each part: what its distinct ops do not draw in all, (rank classes, distinct ops)."""
        found = []
        for part, rows in zip(self.simulation.parts, self._held, strict=True):
            which, distinct = np.asarray(part.program.ops.which), len(part.program.ops.distinct)
            joules = np.zeros((len(rows), distinct))
            for number, (row, (own, of_segments)) in enumerate(zip(part.timeline.rows, rows, strict=True)):
                joules[number] = np.bincount(which[row.ops], own.joules, distinct)
                for each, held in zip(row.segments, of_segments, strict=True):
                    ops = which[each.firsts[0] : each.firsts[0] + len(held.joules)]
                    joules[number] += np.bincount(ops, len(each.begins) * held.joules, distinct)
            found.append(joules)
        return found

    @cached_property
    def _seconds(self) -> list[Floats]:
        """Of each part: seconds of its distinct ops on a device of typical speed, (rank classes, distinct ops)."""
        slower = {Compute: self.simulation.typical_slowness, Start: 1.0, Wait: np.inf}
        return [
            part.distinct_seconds / np.array([slower[type(op)] for op in part.program.ops.distinct])
            for part in self.simulation.parts
        ]

    def op_joules(self, part: int) -> Floats:
        """Return what each distinct op of a part adds in all to a rank of each class, (rank classes, distinct ops)."""
        found: Floats = self._seconds[part] * self._watts[part][0] - self._held_joules[part]
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
            sums = np.bincount(self._watts[number][1], weights=of_ops, minlength=len(KINDS))
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

    @property
    def active_watts(self) -> float:
        """Mean power of a device while it computes, with what links draw beside its kernels."""
        ranks = self._ranks_of_class
        weights = [ranks[part.classes] for part in self.simulation.parts]
        seconds = sum(float(w @ self.compute_seconds(n)) for n, w in enumerate(weights))
        joules = sum(float(w @ self._active_joules(n)) for n, w in enumerate(weights))
        return float(self.power.context_watts) + (joules / seconds if seconds else 0.0)

    def active_watts_of_classes(self, part: int) -> Floats:
        """Return the mean power of a rank of each of a part's classes while it computes, (rank classes,)."""
        joules, seconds = self._active_joules(part), self.compute_seconds(part)
        own = np.divide(joules, seconds, out=np.zeros_like(joules), where=seconds > 0.0)
        found: Floats = float(self.power.context_watts) + own
        return found

    def compute_seconds(self, part: int) -> Floats:
        """Return how long a rank of each of a part's classes computes, on a device of typical speed."""
        found: Floats = self._seconds[part][:, _computes(self._watts[part][1])].sum(axis=1)
        return found

    def _active_joules(self, part: int) -> Floats:
        """Return what kernels draw, and links beside them, of each of a part's classes; without the context."""
        kernels = self.op_joules(part)[:, _computes(self._watts[part][1])].sum(axis=1)
        rows = zip(self.simulation.parts[part].timeline.rows, self._held[part], strict=True)
        beside = [
            own.beside_joules
            + sum(len(each.begins) * held.beside_joules for each, held in zip(row.segments, of_segments, strict=True))
            for row, (own, of_segments) in rows
        ]
        found: Floats = kernels + np.array(beside)
        return found

    @property
    def over_time(self) -> tuple[Floats, Floats]:
        """Power of all devices together: when it changes, and watts from then on; the last time is the step's end."""
        pieces = list(self.drawn.pieces())
        moments, watts = (np.concatenate(each) for each in zip(*pieces, strict=True))
        if moments[-1] < self.simulation.step_seconds:
            moments, watts = np.append(moments, self.simulation.step_seconds), np.append(watts, watts[-1])
        return moments, watts

    @cached_property
    def peak_watts(self) -> float:
        """Highest power of all devices together that is more than rounding of times."""
        drawn, passed_over = self.drawn, self.simulation.parts[0].timeline.passed_over
        return (drawn if passed_over is None else drawn.without(passed_over)).peak_watts

    @property
    def drawn(self) -> PowerOverTime:
        """All that draws power: ops of each class of ranks, and segments, which several may go through."""
        ranks, slowness = self._ranks_of_class, self.simulation.typical_slowness
        draws: list[Draws] = []
        alike: dict[tuple[int, int, bytes], tuple[list[Occurrences], Floats, Ops]] = {}
        highest = 0.0
        for number, part in enumerate(self.simulation.parts):
            which, code = np.asarray(part.program.ops.which), np.asarray(part.program.code)
            rows = zip(part.timeline.rows, self._held[number], ranks[part.classes].tolist(), strict=True)
            for row, (held, of_segments), count in rows:
                watts = count * self._watts[number][0]
                highest += (1 + len(self.simulation.communicators)) * float(watts.max(initial=0.0))
                draws.append(Ops.of(row.times, code[row.ops], watts[which[row.ops]], slowness))
                if held.pieces.changes:
                    draws.append(held.of_ranks(count))
                for (each, own), less in zip(row.each_once(watts[which[row.once]]), of_segments, strict=True):
                    key = id(each.segment), count, own.tobytes()
                    alike.setdefault(key, ([], own, less.of_ranks(count)))[0].append(each)
        draws += (Segments.of(several, watts, slowness, less) for several, watts, less in alike.values())
        context = self.power.context_watts * float(ranks.sum())
        return PowerOverTime(draws, context, context + highest, self.simulation.step_seconds)

    def slack(self) -> tuple[float, float]:
        """Bound what slowing ranks down that wait could save: mean clock, and joules of the step.

        Each rank computes so slowly that it fills the time in which it does not compute (Perseus, SOSP '24). No step is
        longer for it, but what waits for what is not looked at: so nobody can save more this way.
        """
        saved = clocks = 0.0
        ranks = self._ranks_of_class
        for number, part in enumerate(self.simulation.parts):
            kinds, seconds = self._watts[number][1], self._seconds[number]
            compute = self.compute_seconds(number)
            products = seconds[:, kinds == KINDS.index(PRODUCTS)].sum(axis=1)
            others = compute - products
            room = np.maximum(self.simulation.step_seconds - compute, 0.0)
            clock = np.maximum(products / np.maximum(products + room, 1e-300), LOWEST_CLOCK)
            clock = np.where(compute > 0.0, clock, 1.0)
            now = self.power.clocked(self.simulation.clock)
            lowered = np.array([self.power.clocked(self.simulation.clock * each) for each in clock.tolist()])
            # products take longer; what memory bounds draws less and takes as long
            gain = float(self.power.products_watts) * products * (now - lowered / clock)
            gain = np.maximum(gain, 0.0) + float(self.power.others_watts) * others * (now - lowered)
            weight = ranks[part.classes]
            saved += float(weight @ gain)
            clocks += float(weight @ clock)
        return clocks / float(ranks.sum()), saved


KINDS: Sequence[str] = (CONTEXT, PRODUCTS, OTHERS, LINKS)


def _computes(kinds: NDArray[np.int8]) -> NDArray[np.bool_]:
    """Tell which kinds of work are compute."""
    found: NDArray[np.bool_] = (kinds == KINDS.index(PRODUCTS)) | (kinds == KINDS.index(OTHERS))
    return found


def step_energy(simulation: Simulation) -> StepEnergy | None:
    """Return the energy of a step; None where the device's watts by kind of work are not known."""
    power = simulation.job.machine.device.power
    return None if power is None else StepEnergy(simulation, power)
