"""Whether a training is healthy, said in a sentence with its reasons."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from dashboards.events import Floats
from dashboards.parts import seconds
from dashboards.training.record import VALIDATION, Record

WINDOW = 50
"""Latest steps that are looked at, or a fifth of them if there are fewer."""
SPIKE, RISE, SLOW = 6.0, 0.02, 0.8
"""A loss so many spreads above those before; a median so much above that of the window before; a rate below so much."""
FIRST, FAR, FEW, NOISE = 3, 0.1, 12, 3.0
"""Steps at whose loss a training began; a median so much above the lowest of any window; steps that say how much a loss
changes from one to the next; so many times that is noise."""


@dataclass(frozen=True)
class Health:
    """What is well, and what is not."""

    good: tuple[str, ...]
    worries: tuple[str, ...]

    @property
    def words(self) -> str:
        """The answer and its reasons."""
        return ("Look at this: " if self.worries else "Healthy: ") + "; ".join([*self.worries, *self.good]) + "."


def health_of(record: Record, predicted_rate: float | None, alerts: int, predicted_for: str = "") -> Health:
    """Judge the latest steps by those before them, and by what the twin predicts (for another machine, if named)."""
    if not len(record):
        return Health((), ("no step is written yet",))
    good: list[str] = []
    worries: list[str] = []
    loss = np.frombuffer(record.columns["loss"])
    window = max(2, min(WINDOW, len(loss) // 5))
    latest, before = loss[-window:], loss[-2 * window : -window]
    if np.isnan(loss[-1]):
        worries.append("the latest loss is no number")
    elif len(before) >= 2:
        now, then = float(np.nanmedian(latest)), float(np.nanmedian(before))
        moved = f"loss {now:.4g}, {then:.4g} in the {_steps_before(record, window):,} steps before"
        rising = now > then * (1 + RISE)
        more = ", rising" if rising else f", less than {100 * RISE:.0f} % above" if now > then else ""
        (worries if rising else good).append(moved + more)
    else:
        good.append(f"loss {loss[-1]:.4g}")
    worries += _lost(loss, window)
    spikes = spikes_of(loss, window)
    if spikes:
        worries.append(f"the loss leapt {spikes} time{'s' if spikes > 1 else ''}")
    norm = np.frombuffer(record.columns["gradient_norm"])[-window:]
    if np.isnan(norm).any():
        worries.append("a gradient norm is no number")
    _judge_validation(record.validation.get(VALIDATION, []), good, worries)
    _judge_speed(record, window, predicted_rate, predicted_for, good, worries)
    if record.back:
        worries.append(f"it went back {len(record.back)} times" if len(record.back) > 1 else "it went back once")
    if alerts:
        worries.append(f"--watch warned {alerts} times" if alerts > 1 else "--watch warned once")
    return Health(tuple(good), tuple(worries))


def _steps_before(record: Record, window: int) -> int:
    """Return how many steps lie in the window before the latest lines: not every step has a line.

    Where the run went back, and has lines of some steps twice, those count that it went on.
    """
    steps = np.frombuffer(record.step, dtype=np.int64)
    return int(np.maximum(np.diff(steps[len(steps) - 2 * window :][: window + 1]), 0).sum())


def _lost(loss: Floats, window: int) -> list[str]:
    """Say where the latest steps are above the first ones, or far above the lowest before: these may be long ago."""
    latest, known = loss[-window:], loss[~np.isnan(loss)]
    if len(known) < FIRST + FEW or np.isnan(loss[-1]):
        return []
    now = float(np.nanmedian(latest))
    noise = NOISE * 1.4826 / 2**0.5 * float(np.median(np.abs(np.diff(known[-max(window, FEW) :]))))
    first = float(np.median(known[:FIRST]))
    if now > first + max(RISE * abs(first), noise):
        return [f"loss {now:.4g} is above the {first:.4g} that it began with"]
    windows = known[len(known) % window :].reshape(-1, window)[:-1]
    lowest = float(np.median(windows, axis=1).min(initial=np.inf))
    if now > lowest + max(FAR * abs(lowest), noise):
        return [f"loss {now:.4g} is far above the {lowest:.4g} that it had before"]
    return []


def _judge_validation(found: list[tuple[int, float]], good: list[str], worries: list[str]) -> None:
    """Hold the latest loss on held-out text against the first and the best."""
    known = [one for one in found if not math.isnan(one[1])]
    if not found:
        return
    steps, latest = found[-1]
    words = f"validation {latest:.4g} after {steps:,} steps"
    if math.isnan(latest):
        worries.append(f"the validation after {steps:,} steps is no number")
        return
    (begin, first), (after, best) = known[0], min(known, key=lambda one: one[1])
    if latest > first + RISE * abs(first):
        worries.append(f"{words}, above the {first:.4g} {f'after {begin:,}' if begin else 'before training'}")
    elif latest > best + RISE * abs(best):
        worries.append(f"{words}, above its best, {best:.4g} after {after:,}")
    else:
        good.append(words)


def _judge_speed(
    record: Record, window: int, predicted_rate: float | None, predicted_for: str, good: list[str], worries: list[str]
) -> None:
    rates = np.frombuffer(record.columns["tokens_per_second"])
    rate, middle = float(np.nanmedian(rates[-window:])), float(np.nanmedian(rates))
    step = seconds(float(np.nanmedian(np.frombuffer(record.columns["seconds"])[-window:])))
    words = f"{rate:,.0f} tokens/s ({step} a step)"
    if predicted_rate:
        where = f" for {predicted_for}" if predicted_for else ""
        words += f", {100 * rate / predicted_rate:.0f} % of the predicted rate{where}"
    if rate < SLOW * middle:
        worries.append(f"{words}, slower than its own median of {middle:,.0f}")
    else:
        good.append(words)


def spikes_of(loss: Floats, window: int) -> int:
    """Count the latest steps whose loss lies far above the steps before them."""
    if len(loss) < 3 * window:
        return 0
    before, latest = loss[-3 * window : -window], loss[-window:]
    middle = float(np.nanmedian(before))
    spread = float(np.nanmedian(np.abs(before - middle))) or 1e-12
    return int((latest > middle + max(SPIKE * 1.4826 * spread, 0.05 * abs(middle))).sum())
