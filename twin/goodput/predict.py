"""Goodput over many seeds, and the interval that loses least."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from twin.description.problems import fail
from twin.goodput.closed_form import daly, goodput, young
from twin.goodput.cycle import Policy, cycle_of
from twin.goodput.long_run import LongRun, Slowdown
from twin.goodput.run import Account, run

SCAN = 25
"""Intervals tried, evenly in the logarithm, from a twentieth of Young's to twenty times it."""
SCAN_SEEDS = 24
"""Runs for each interval that is tried; the same seeds for all, so that few tell intervals apart."""
PERCENTILES = (10, 50, 90)
"""The middle, and what one run in ten falls below or exceeds."""
MAX_STOPS = 20_000_000
"""Every stop is a turn of a loop in Python: with more, nobody waits for the forecast."""


@dataclass(frozen=True)
class Prediction:
    """What a long run is expected to make of its time."""

    plan: LongRun
    policy: Policy
    seconds: float
    runs: tuple[Account, ...]
    chosen: bool
    """True if the interval was chosen here."""
    scanned: tuple[tuple[float, float], ...] = ()
    """(interval, mean goodput) of all intervals tried."""

    def _slowdown(self, slow: Slowdown) -> dict[str, float]:
        step = self.plan.step_seconds
        return {
            "mean_seconds_between": 1.0 / slow.per_second,
            "seconds": slow.seconds,
            "step_seconds": float(np.mean(slow.factors)) * step,
            "worst_step_seconds": max(slow.factors) * step,
        }

    def figures(self) -> dict[str, Any]:
        """Everything as one JSON object; times in seconds, shares of the whole."""

        def spread(values: Sequence[float]) -> dict[str, float]:
            return {f"p{p}": float(np.percentile(values, p)) for p in PERCENTILES} | {"mean": float(np.mean(values))}

        parts = ("useful", "slow", "lost", "saving", "restarting", "waiting")
        stall = cycle_of(self.plan, self.policy).still
        between, from_files = (self.plan.between_seconds, self.plan.restart_seconds + self.plan.read_seconds)
        from_memory = self.plan.restart_seconds + self.plan.memory_read_seconds
        return {
            "days": self.seconds / 86400.0,
            "mode": self.policy.mode,
            "checkpoint_interval_seconds": self.policy.interval_seconds,
            "interval_chosen": self.chosen,
            "goodput": spread([r.goodput for r in self.runs]),
            "stops": spread([float(r.stops) for r in self.runs]),
            "slow_devices_replaced": spread([float(r.replaced) for r in self.runs]),
            "slowdowns": {s.cause: self._slowdown(s) for s in self.plan.slowdowns},
            "parts": {name: float(np.mean([getattr(r, name) for r in self.runs])) / self.seconds for name in parts},
            "mean_seconds_between_stops": between,
            "checkpoint_bytes": self.plan.state_bytes,
            "checkpoint_write_seconds": self.plan.write_seconds,
            "checkpoint_stall_seconds": stall,
            "restart_seconds": from_memory if self.policy.mode == "memory" else from_files,
            "restart_from_files_seconds": from_files,
            "young_interval_seconds": young(stall, between),
            "daly_interval_seconds": daly(stall, between),
            "closed_form_goodput": goodput(self.policy.interval_seconds, stall, from_files, between),
            "scanned": [list(pair) for pair in self.scanned],
        }


def worth(found: Prediction, otherwise: Prediction) -> dict[str, float]:
    """Say what finding slow devices at another time is worth, with the same seeds both ways.

    Failures and slowdowns are the same until the first device is replaced, which happens at another time.
    """
    after, instead_of = (next(s.seconds for s in one.plan.slowdowns if s.replaced) for one in (found, otherwise))
    gained = float(np.mean([r.goodput for r in found.runs]) - np.mean([r.goodput for r in otherwise.runs]))
    return {
        "seconds": after,
        "instead_of_seconds": instead_of,
        "goodput_gained": gained,
        "run_seconds_gained": gained * found.seconds,
    }


def predict(
    plan: LongRun,
    policy: Policy,
    seconds: float,
    *,
    seeds: int,
    seed: int = 0,
    progress: Callable[[int, int], None] = lambda _d, _a: None,
) -> Prediction:
    """Simulate a run with every seed; an interval of 0 means the best one.

    Raises DescriptionError where stops are so frequent that nothing would ever be trained, and for copies in a
    neighbour's memory where all ranks are on one node.
    """
    if policy.mode == "memory" and plan.nodes < 2:
        raise fail(
            "--mode",
            "copies state to the memory of a neighbouring node, and all ranks are on one; use async, or more ranks",
            policy.mode,
        )
    _refuse_hopeless(plan, seconds, seeds)
    scanned: tuple[tuple[float, float], ...] = ()
    chosen = policy.interval_seconds <= 0.0
    if chosen:
        scanned, best = best_interval(plan, policy, seconds, seed=seed, progress=progress)
        policy = replace(policy, interval_seconds=best)
    runs = []
    for number in range(seeds):
        progress(number, seeds)
        runs.append(run(plan, policy, seconds, seed + number))
    return Prediction(plan, policy, seconds, tuple(runs), chosen, scanned)


def _refuse_hopeless(plan: LongRun, seconds: float, seeds: int) -> None:
    restart = plan.restart_seconds + plan.read_seconds
    wanted = sum(s.per_second for s in plan.slowdowns if s.replaced)
    if wanted * 0.1 * restart > 1.0:
        raise fail(
            "machine.reliability.slow_device.between",
            f"a device becomes slow every {1.0 / wanted:.3g} s, a "
            f"restart without it takes {restart:.3g} s: nothing would ever be trained; use fewer ranks, or "
            "--no-slow",
        )
    if plan.between_seconds < 0.1 * restart:
        raise fail(
            "machine.reliability",
            f"a stop every {plan.between_seconds:.3g} s, a restart of {restart:.3g} s: "
            "nothing would ever be trained; use fewer ranks, or another machine",
        )
    rate = 1.0 / plan.between_seconds + sum(s.per_second for s in plan.slowdowns)
    if seconds * rate * max(seeds, SCAN * SCAN_SEEDS) > MAX_STOPS:
        raise fail(
            "--days",
            f"all runs together have more than {MAX_STOPS:,} stops and slowdowns; use fewer days or --seeds",
            seconds / 86400.0,
        )


def best_interval(
    plan: LongRun,
    policy: Policy,
    seconds: float,
    *,
    seed: int = 0,
    seeds: int = SCAN_SEEDS,
    progress: Callable[[int, int], None] = lambda _d, _a: None,
) -> tuple[tuple[tuple[float, float], ...], float]:
    """Try intervals, each with the same failures; return them all, and the vertex of the best ones' parabola."""
    stall = {
        "sync": plan.write_seconds,
        "async": plan.copy_seconds,
        "memory": plan.copy_seconds + plan.neighbour_seconds,
    }[policy.mode]
    middle = max(young(max(stall, 1e-3), min(plan.between_seconds, seconds)), plan.step_seconds)
    tried: list[tuple[float, float]] = []
    for number, interval in enumerate(middle * np.geomspace(0.05, 20.0, SCAN)):
        progress(number, SCAN)
        trial = replace(policy, interval_seconds=max(float(interval), plan.step_seconds))
        goodputs = [run(plan, trial, seconds, seed + n).goodput for n in range(seeds)]
        tried.append((trial.interval_seconds, float(np.mean(goodputs))))
    at = int(np.argmax([share for _, share in tried]))
    near = tried[max(0, at - 3) : at + 4]
    x, y = np.log([i for i, _ in near]), np.array([share for _, share in near])
    bend, slope, _ = np.polyfit(x - x.mean(), y, 2) if len(set(x)) > 2 else (0.0, 0.0, 0.0)
    best = float(np.exp(np.clip(x.mean() - slope / (2 * bend), x.min(), x.max()))) if bend < 0 else tried[at][0]
    return tuple(tried), best
