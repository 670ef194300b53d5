"""Ask and tell: a space of jobs to be measured, in the order in which the twin expects them to be fast.

    trials = trials_of_study("examples/studies/ornl-175b.yaml", log="measured.jsonl")
    while trials.hopeful and (trial := trials.ask()):
        trials.tell(trial, seconds=my_measurement(trial.job))

The twin has simulated every point and knows which cannot run, so that a machine measures its best ones first. The same
object serves an optimizer of one's own: `choices` are the values of its factors, `at` answers for any of them.
"""

from __future__ import annotations

import json
import math
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twin.description.problems import fail
from twin.studies.description import canonical
from twin.studies.objective import ObjectiveName, at_seconds, is_rate, penalty


@dataclass(frozen=True)
class Trial:
    """One job of the space."""

    number: int
    """From 1, in the order of the study or of the search."""
    values: Mapping[str, Any]
    """Its factors' values, of which no two trials have all the same."""
    job: Mapping[str, Any]
    """Its job, ready for `load_job` or to be written as a job file."""
    predicted_seconds: float | None
    """The twin's step; None for what it could not simulate."""
    predicted: float | None
    """The objective of that step."""
    reason: str = ""
    """Why it cannot run, by the twin; empty if it can."""

    @property
    def feasible(self) -> bool:
        """True if it breaks no rule and fits into memory, by the twin."""
        return not self.reason


@dataclass(frozen=True)
class Told:
    """What became of a trial: the seconds of its step, or why there are none."""

    trial: Trial
    seconds: float | None
    failure: str = ""


class Trials:
    """A space of trials, and what has been told of them.

    `ask` gives the feasible trial that the twin expects to be the best of those not asked for yet. With `explore`, a
    share of the answers is drawn at random instead, by `seed`: the same calls give the same answers. With `log`, a
    file of JSON lines, what is told outlives the process: who opens the same space with it goes on from there.
    """

    def __init__(
        self,
        space: Iterable[Trial],
        objective: ObjectiveName = "step_seconds",
        *,
        seed: int = 0,
        explore: float = 0.0,
        log: str | Path | None = None,
    ) -> None:
        if not 0.0 <= explore <= 1.0:
            raise fail("explore", "is a share of the answers; choose one from 0 to 1", explore)
        self.objective: ObjectiveName = objective
        self.space = tuple(space)
        self._by_values = {canonical(dict(trial.values)): trial for trial in self.space}
        able = [trial for trial in self.space if trial.predicted is not None and trial.feasible]
        sign = -1.0 if is_rate(objective) else 1.0
        able.sort(key=lambda trial: (sign * (trial.predicted or 0.0), trial.number))
        self._waiting = {trial.number: trial for trial in able}
        self._told: dict[int, Told] = {}
        self._random, self._explore = random.Random(seed), explore
        self._log = None if log is None else Path(log)
        if self._log is not None and self._log.exists():
            self._read(self._log)

    def ask(self) -> Trial | None:
        """Return the next trial to measure; None when every feasible one has been asked for or told."""
        left = list(self._waiting.values())
        if not left:
            return None
        draw = self._explore > 0.0 and self._random.random() < self._explore
        trial = left[self._random.randrange(len(left))] if draw else left[0]
        del self._waiting[trial.number]
        return trial

    def tell(self, trial: Trial | Mapping[str, Any], seconds: float | None = None, *, failure: str = "") -> Told:
        """Take the seconds of a trial's step, or why it has none (out of memory, a time limit).

        A mapping of values names a trial too. Raises DescriptionError for what is not in the space, has been told
        before, or is no time.
        """
        told = self._checked(self._found(trial), seconds, failure)
        if self._log is not None:
            line = {"values": dict(told.trial.values), "seconds": told.seconds, "failure": told.failure}
            with self._log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line, ensure_ascii=False) + "\n")
        self._keep(told)
        return told

    def at(self, values: Mapping[str, Any]) -> Trial:
        """Return the trial with these values of the factors; raises DescriptionError if there is none."""
        if (trial := self._by_values.get(canonical(dict(values)))) is None:
            raise fail("values", f"are none of the space; its factors are {', '.join(self.choices)}", dict(values))
        return trial

    @property
    def choices(self) -> dict[str, list[Any]]:
        """Every factor's values, in the order of the space: what an optimizer may choose from."""
        found: dict[str, dict[str, Any]] = {}
        for trial in self.space:
            for key, value in trial.values.items():
                found.setdefault(key, {}).setdefault(canonical(value), value)
        return {key: list(values.values()) for key, values in found.items()}

    @property
    def told(self) -> tuple[Told, ...]:
        """Everything told so far, in that order."""
        return tuple(self._told.values())

    @property
    def left(self) -> tuple[Trial, ...]:
        """Feasible trials neither asked for nor told, the twin's best first."""
        return tuple(self._waiting.values())

    @property
    def best(self) -> Told | None:
        """The best of those that were told with a time."""
        done = [told for told in self._told.values() if told.seconds is not None]
        sign = -1.0 if is_rate(self.objective) else 1.0
        return min(done, key=lambda told: sign * self.value(told), default=None)

    @property
    def hopeful(self) -> tuple[Trial, ...]:
        """Those left that beat the best told if the twin errs on them as far in their favour as it did on any told.

        No proof: the twin may err more on another. All that are left, as long as no time was told.
        """
        best = self.best
        ratios = [
            told.seconds / told.trial.predicted_seconds
            for told in self._told.values()
            if told.seconds is not None and told.trial.predicted_seconds
        ]
        if best is None or not ratios:
            return self.left
        reached, shortest = self.value(best), min(ratios)
        found = []
        for trial in self.left:
            assert trial.predicted_seconds is not None
            value = self._objective(trial, shortest * trial.predicted_seconds)
            if value > reached if is_rate(self.objective) else value < reached:
                found.append(trial)
        return tuple(found)

    def value(self, told: Told) -> float:
        """Return the objective of what was told: of a failure the worst of all times told so far, as a penalty.

        Infinitely bad as long as there is no time.
        """
        if told.seconds is not None:
            return self._objective(told.trial, told.seconds)
        done = [self._objective(one.trial, one.seconds) for one in self._told.values() if one.seconds is not None]
        if not done:
            return 0.0 if is_rate(self.objective) else math.inf
        return penalty(done, self.objective)

    def _objective(self, trial: Trial, seconds: float) -> float:
        if trial.predicted is None or trial.predicted_seconds is None:
            return seconds
        return at_seconds(trial.predicted, trial.predicted_seconds, seconds, self.objective)

    def _found(self, trial: Trial | Mapping[str, Any]) -> Trial:
        return self.at(trial.values if isinstance(trial, Trial) else trial)

    def _checked(self, trial: Trial, seconds: float | None, failure: str) -> Told:
        if trial.number in self._told:
            raise fail("trial", "has been told already; ask for another", dict(trial.values))
        if (seconds is None) == (not failure):
            raise fail("tell", "needs either seconds or failure", seconds)
        if seconds is not None and not (math.isfinite(seconds) and seconds > 0):
            raise fail("seconds", "must be a time; tell what has none as failure", seconds)
        if seconds is not None and trial.predicted is None and is_rate(self.objective):
            remedy = (
                f"the twin has no figures of this point ({trial.reason}), so that its {self.objective} is not known"
            )
            raise fail("seconds", f"{remedy}; use objective: step_seconds", seconds)
        return Told(trial, None if seconds is None else float(seconds), failure)

    def _keep(self, told: Told) -> None:
        self._told[told.trial.number] = told
        self._waiting.pop(told.trial.number, None)

    def _read(self, path: Path) -> None:
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            try:
                one = json.loads(line)
                values, seconds, failure = one["values"], one["seconds"], one["failure"]
            except (ValueError, KeyError, TypeError):
                raise fail(f"{path}, line {number}", "is none that was told; mend or remove it", line) from None
            self._keep(self._checked(self.at(values), seconds, failure))
