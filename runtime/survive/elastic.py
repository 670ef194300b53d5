"""The best grid for the ranks that are there, where a job has another number of them.

Rank 0 chooses and tells all. The global batch stays, and with it the loss of every step to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from itertools import product
from typing import Any

from runtime.launch.board import Board
from runtime.launch.disagreement import DisagreementError
from runtime.plan.plan import Plan
from twin.description.job import Job
from twin.description.problems import DescriptionError, fail
from twin.strategies import loosened, of_its_grid, said_of, strategy_of, without_keys

Resolve = Callable[[Job], Job]
"""Settles what is `auto` in a job by simulation; raises DescriptionError if nothing will do."""


def fit(plan: Plan, board: Board, resolve: Resolve | None) -> tuple[Plan, str]:
    """Return the plan for the ranks that are there, and a line that says what was chosen and why.

    That is the plan itself, and no line, if they are as many as the job wants, or if it is not elastic.
    Every rank must call it. Raises DescriptionError on every rank if no number of ranks will do.
    """
    world = board.process.ranks
    if not plan.options.elastic or world == plan.job.ranks or resolve is None:
        return plan, ""
    told = board.tell(lambda: _choose(plan.job, world, resolve))
    if "problem" in told:
        raise DisagreementError([str(fail("ranks", told["problem"], world))])
    return replace(plan, job=_placed(plan.job, told)), str(told["why"])


def _choose(job: Job, world: int, resolve: Resolve) -> dict[str, Any]:
    """Choose for as many of the ranks as possible; the job's own keys and micro-batch if some grid takes them."""
    given = job.batch.micro_sequences
    reason = ""
    for ranks in range(world, 0, -1):
        for (kept, left_out), micro in product(loosened(job), dict.fromkeys((given, "auto"))):
            batch = job.batch.model_copy(update={"micro_sequences": micro})
            wanted = kept.model_copy(update={"ranks": ranks, "grid": "auto", "batch": batch})
            try:
                best = resolve(wanted)
            except DescriptionError as error:
                reason = reason or str(error)
                continue
            return {
                "ranks": ranks,
                "grid": best.concrete_grid.model_dump(),
                "micro_sequences": best.concrete_micro_sequences,
                "keys": of_its_grid(best),
                "why": _why(job, best, world, said_of(left_out)),
            }
    return {"problem": f"are there, but the job is trained by none of 1 to {world} ranks: {reason}"}


def _why(job: Job, best: Job, world: int, without: str) -> str:
    there = f"{world} rank{'s are' if world > 1 else ' is'} there instead of {job.ranks}"
    micro = best.concrete_micro_sequences
    spare = world - best.ranks
    rest = f"; {spare} wait{'s' if spare == 1 else ''}, for no grid takes more" if spare else ""
    return (
        f"{there}: training on {best.concrete_grid}, {micro} sequences at a time, the fastest of the grids of "
        f"{best.ranks} by simulation{without and ', '}{without}{rest}"
    )


def _placed(job: Job, told: dict[str, Any]) -> Job:
    batch = job.batch.model_copy(update={"micro_sequences": told["micro_sequences"]})
    changes = {"ranks": told["ranks"], "grid": strategy_of(job).grid(**told["grid"]), "batch": batch}
    keys = {key: tuple(value) if isinstance(value, list) else value for key, value in told["keys"].items()}
    return without_keys(job, of_its_grid(job)).model_copy(update=keys | changes)
