"""`strategy: auto` of a run: chosen once, handed to every rank, kept with the run.

The twin searches (`Search`, which the command line hands over); here is said what it may choose, who asks it, and what
becomes of the answer. Who starts ranks on this host chooses before that and hands the choice on in their environment.
Under torchrun or srun rank 0 chooses when all have met, and tells them. A run that is there goes on with what was
chosen when it began, which `run.json` holds.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from runtime.launch.disagreement import DisagreementError
from runtime.launch.environment import Process
from runtime.plan.computed import check_computed
from runtime.records.run_directory import CHOICE, RUN, examine_run
from runtime.strategies import names, refuse, trained_with
from twin.description.job import Job
from twin.description.problems import DescriptionError, Problem, fail
from twin.strategies import AUTO, Chosen, load_job

if TYPE_CHECKING:
    from runtime.launch.board import Board
    from runtime.plan.plan import Plan

Search = Callable[[Path, Sequence[str], Mapping[str, Mapping[str, Any]], Callable[[Job], str]], Chosen]
"""Finds the fastest way to run a job file with overrides, under these strategies with these keys of theirs where the
file has none, but for what is refused."""
ANEW = "choose another --out, or --force to begin anew"
HANDED = "FOURFOLD_CHOICE"
"""Environment: what the launcher of `fourfold train --ranks` has chosen, for its ranks."""


@dataclass(frozen=True)
class Open:
    """A job file, with overrides, that is trained under whichever strategy is the fastest."""

    file: Path
    overrides: tuple[str, ...]
    ranks: int
    search: Search

    def chosen(self) -> Chosen:
        """Search among what trains; raises DescriptionError with the reason of each strategy if nothing does."""
        try:
            keys = {name: trained_with(name) for name in names()}
            return self.search(self.file, self.overrides, keys, refusal)
        except DescriptionError as error:
            remedy = f"nothing that trains can run; the runtime trains {', '.join(names())}"
            raise DescriptionError([*fail("strategy", remedy, AUTO).problems, *error.problems], error.origin) from None

    def chosen_for(self, out: Path, *, force: bool) -> Chosen:
        """Return what the run in a directory was begun with, if there is one and it goes on; else search."""
        found = None if force else kept(out, self.ranks)
        if found is None:
            return self.chosen()
        try:
            self.job(found)
        except DescriptionError as error:
            remedy = f"so was chosen when {out} was begun; put back what the job had then, or {ANEW}"
            raise DescriptionError([*error.problems, Problem("", remedy)], error.origin) from None
        return found

    def job(self, chosen: Chosen) -> Job:
        """Return the job as it was chosen."""
        return load_job(self.file, [*self.overrides, *chosen.overrides], strategy=chosen.strategy)


def refusal(job: Job) -> str:
    """Say why the runtime does not train a job; nothing if it does."""
    try:
        refuse(job)
        check_computed(job)
    except DescriptionError as error:
        return "; ".join(map(str, error.problems))
    return ""


def kept(out: Path, ranks: int) -> Chosen | None:
    """Return what was chosen when the run in a directory began; None if there is none, or it chose nothing.

    Raises DescriptionError if that was for another number of ranks, or cannot be read.
    """
    if not (out / RUN).exists():
        return None
    raw = examine_run(out, ANEW).get(CHOICE)
    if raw is None:
        return None
    found = _read(raw, str(out / RUN), ANEW)
    if found.ranks != ranks:
        raise fail("ranks", f"the strategy of {out} was chosen for {found.ranks} ranks; {ANEW}", ranks)
    how = ", ".join(found.overrides)
    words = f"strategy: auto, chosen when {out} was begun: {how}; another --out, or --force, chooses anew"
    return replace(found, words=words)


def as_json(chosen: Chosen) -> dict[str, Any]:
    """Return what is kept of a choice."""
    return {key: value for key, value in asdict(chosen).items() if key != "words"}


def handed(environment: Mapping[str, str], process: Process) -> Chosen | None:
    """Return what the launcher of this rank has chosen; None if it has not."""
    text = environment.get(HANDED)
    if text is None or process.launcher != "fourfold":
        return None
    try:
        raw = json.loads(text)
    except ValueError:
        raw = None
    return _read(raw, HANDED, "start the ranks with fourfold train --ranks")


def hand_over(chosen: Chosen) -> dict[str, str]:
    """Return what `handed` reads."""
    return {HANDED: json.dumps(as_json(chosen))}


def settle(plan: Plan, left_open: Open | None, board: Board) -> tuple[Plan, str]:
    """Return the plan as rank 0 has chosen it, and what was compared; the plan itself if nothing is open.

    Every rank must call it. Raises DescriptionError on every rank if nothing that trains can run.
    """
    if left_open is None:
        return plan, ""
    told = board.tell(lambda: _told(plan, left_open))
    if "problem" in told:
        raise DisagreementError([told["problem"]])
    chosen = _read(told, "strategy", "start the run again")
    return replace(plan, job=left_open.job(chosen), chosen=chosen), str(told["words"])


def _told(plan: Plan, left_open: Open) -> dict[str, Any]:
    try:
        chosen = left_open.chosen_for(plan.out, force=plan.force)
    except DescriptionError as error:
        return {"problem": str(error)}
    return asdict(chosen)


def _read(raw: Any, origin: str, remedy: str) -> Chosen:
    """Read what `as_json` wrote, of a file that anybody may have changed."""
    found = raw if isinstance(raw, dict) else {}
    strategy, overrides, ranks = (found.get(key) for key in ("strategy", "overrides", "ranks"))
    texts = [text for text in overrides if isinstance(text, str)] if isinstance(overrides, list) else []
    if not (isinstance(strategy, str) and strategy != AUTO and type(ranks) is int and texts and texts == overrides):
        raise fail(f"{origin}: {CHOICE}", f"is damaged; {remedy}")
    return Chosen(strategy, tuple(texts), ranks)
