"""What may change when a run is continued, and what would bend it.

A checkpoint holds the options that its steps were taken with. A continued run is to be one that could
have had its present options from the first step on. So of what differs

* what decided the steps already taken is refused, unless asked for: the optimizer's constants, what the
  weights began as, and the learning rate if the new options give another one to any of these steps (with
  a constant rate, or within an equal warm-up, more `steps` change none of them);
* what decides only what is seen, kept and waited for (evaluation, checkpoints, sample, logging, limits of time),
  or only how sums are rounded (kernels, device, threads, the grid), is said and done;
* what makes it another run altogether (model, data, sets of evaluation, seed, batch, precision, dropout, document mask,
  Goldfish loss)
  `run.json` refuses before, and no option allows it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any, get_args

from runtime.plan.optimizer_settings import Schedule
from twin.description.huggingface import absolute, is_directory_of
from twin.description.job import Job
from twin.description.problems import DescriptionError, Problem
from twin.description.train import Shape, Train

KEY = "options"
"""In the `extra` of a checkpoint."""
OF_IDENTITY: dict[str, Any] = {"data": True, "goldfish": True, "evaluation": {"sets"}}
"""Compared by what they are, in `run.json`; the places of data sets may change."""
_RATE = "train.learning_rate."
RATE = (
    *(f"{_RATE}peak", f"{_RATE}least", f"{_RATE}warmup_steps", "train.steps"),
    *(f"{_RATE}schedule", f"{_RATE}decay_steps"),
)
"""What the learning rate of a step depends on; in the order of `Schedule`."""
PAST = ("train.optimizer.", "train.initial_weights", "train.initial_adapters", "clip_gradients")
"""What else decided the steps already taken: keys, or how they begin."""


@dataclass(frozen=True)
class Change:
    """One key whose value is another than in the steps already taken."""

    key: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.key}: {_shown(self.old)} before, {_shown(self.new)} from here on"


def options_of(job: Job, train: Train) -> dict[str, Any]:
    """Write down, flat and as JSON, what a run is trained with; what was left to a default as what it became."""
    found: dict[str, Any] = {"clip_gradients": job.clip_gradients}
    for key, value in train.model_dump(mode="json", by_alias=True, exclude={**OF_IDENTITY, "rollback": True}).items():
        if isinstance(value, dict):
            found |= {f"train.{key}.{name}": each for name, each in value.items()}
        else:
            found[f"train.{key}"] = value
    found["train.rollback"] = None if train.rollback is None else train.rollback.model_dump(mode="json")
    schedule = Schedule.of(train)
    found |= dict(zip(RATE, astuple(schedule), strict=True))
    if not job.clip_gradients:
        del found["train.optimizer.clip_norm"]  # it decides nothing
    # a key of the 4D strategy; another's jobs have none
    types = job.model_dump(mode="json", include={"communication_precision"}).get("communication_precision", {})
    found |= {f"communication_precision.{name}": value for name, value in types.items()}
    if train.initial_weights is not None:
        path = train.initial_weights
        named = is_directory_of(path)
        found["train.initial_weights"] = absolute(path, Path()) if named else str(Path(path).resolve())
    if train.initial_adapters is not None:
        found["train.initial_adapters"] = str(Path(train.initial_adapters).resolve())
    return found


def changes(before: Mapping[str, Any], now: Mapping[str, Any]) -> list[Change]:
    """Return what differs of what both know: a checkpoint of an older version knows less, or nothing."""
    return [Change(key, before[key], new) for key, new in now.items() if key in before and before[key] != new]


def check_changes(
    extra: Mapping[str, Any], now: Mapping[str, Any], done: int, origin: Path, *, accepted: bool
) -> list[Change]:
    """Return what differs from the options that `done` steps were taken with, by a checkpoint's `extra`.

    Raises DescriptionError, naming each key, if steps already taken would have been others and that is not `accepted`.
    """
    before = _known(extra.get(KEY))
    found = changes(before, now)
    bends = any(c.key in RATE for c in found) and _rates_differ(before, now, done)
    refused = [c for c in found if c.key.startswith(PAST) or (bends and c.key in RATE)] if done else []
    if not refused or accepted:
        return found
    problems = [Problem(c.key, f"was {_shown(c.old)} in the {done} steps already taken", c.new) for c in refused]
    if bends and (old := _schedule(before)) is not None and (new := _schedule(now)) is not None:
        rates = f"{new.at(done):.3g} instead of {old.at(done):.3g}"
        problems.append(Problem("", f"the learning rate would leap: step {done} would have {rates}"))
    remedy = (
        f"put the old values back; or pass --accept-changes to go on with the new ones from step {done} "
        "(so is a finished run extended); or begin anew with another --out, or --force"
    )
    raise DescriptionError([*problems, Problem("", remedy)], str(origin))


def _known(raw: Any) -> Mapping[str, Any]:
    return raw if isinstance(raw, dict) else {}


def _rates_differ(before: Mapping[str, Any], now: Mapping[str, Any], done: int) -> bool:
    old, new = _schedule(before), _schedule(now)
    if old is None or new is None:
        return True
    return any(old.at(step) != new.at(step) for step in range(done))


def _schedule(options: Mapping[str, Any]) -> Schedule | None:
    """Return the learning rate as it was written down; None if that is damaged or not all there."""
    peak, least, warmup, steps, shape, decay = (options.get(key) for key in RATE)
    shape, decay = shape or "cosine", decay or 0  # before November 2026 there was no other
    if not all(isinstance(value, int | float) for value in (peak, least, warmup, steps, decay)):
        return None
    if shape not in get_args(Shape):
        return None
    return Schedule(peak, least, warmup, steps, shape, decay)  # type: ignore[arg-type]  # checked above


def _shown(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else "none" if value is None else str(value)
