"""Runs of one's own in a YAML file: `jobs` by name, and `rows`, each a job, what was changed of it, what was measured.

A job has the keys of a job file, its paths relative to this file; `set` of a row has changes as `--set` takes them.
`step_seconds` is what a step took (the median of steps that nothing traced, say), `peak_memory_bytes` the most that a
rank's allocator had given out, `traced_step_joules` what all devices drew for a step while steps were traced.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from twin.cost.memory import memory_use
from twin.description.load import apply_override, resolve_names
from twin.description.problems import DescriptionError, Problem, did_you_mean, fail
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.strategies import load_job
from twin.validate.groups import Piece, is_measure
from twin.validate.iterations import Iteration

Row = Mapping[str, Any]
NUMBERS = ("step_seconds", "peak_memory_bytes", "traced_step_joules")
PROBLEMS_SHOWN = 20


def own_runs(data: Mapping[str, Any], origin: str) -> list[Iteration]:
    """Read the rows of such a file; raises DescriptionError for what cannot be one."""
    if problems := list(_problems(data)):
        raise DescriptionError(problems[:PROBLEMS_SHOWN], origin)
    return [_iteration(row, data["jobs"][row["job"]], origin) for row in data["rows"]]


def peak_memory(runs: Sequence[Iteration]) -> list[Piece]:
    """Compare the memory of those that say it."""
    return [
        Piece(
            id=str(run.row["id"]),
            source=run.group,
            kind="peak memory",
            what="of a rank, bytes",
            predicted=memory_use(load_job(dict(run.job))).per_rank_bytes,
            measured=run.row["peak_memory_bytes"],
        )
        for run in runs
        if "peak_memory_bytes" in run.row and not isinstance(run.job, str)
    ]


def _iteration(row: Row, job: Mapping[str, Any], origin: str) -> Iteration:
    keys = {"name": row["id"], **job}
    try:
        for change in row.get("set", []):
            keys = apply_override(keys, change)
        keys = resolve_names(keys, Path(origin).parent)
        told = load_job(keys)
        if not told.is_concrete:
            raise fail("grid, batch.micro_sequences", "auto is what a search finds; say what was run")
    except DescriptionError as error:
        problems = [Problem(f"{row['id']}: {each.path}", each.message, each.value) for each in error.problems]
        raise DescriptionError(problems[:PROBLEMS_SHOWN], origin) from None
    joules = {"predicted_joules": report(simulate(told)).energy_joules} if "traced_step_joules" in row else {}
    return Iteration(row, row["source"], row["step_seconds"], keys, joules)


def _problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    jobs, rows = data.get("jobs"), data.get("rows")
    if not isinstance(jobs, dict) or not all(isinstance(job, dict) for job in jobs.values()):
        yield Problem("jobs", "must be jobs by name, each with the keys of a job file", jobs)
        return
    if not isinstance(rows, list) or not rows:
        yield Problem("rows", "missing" if rows is None else "must be a list of runs, each with keys of its own")
        return
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            yield Problem(f"rows.{number}", "must be the keys of a run", row)
            continue
        path = f"rows.{number}" + (f" ({row['id']})" if "id" in row else "")
        for key in ("id", "source"):
            if not isinstance(row.get(key), str) or not row[key].strip():
                yield Problem(f"{path}.{key}", "missing", row.get(key))
        if not isinstance(name := row.get("job"), str) or name not in jobs:
            yield Problem(f"{path}.job", did_you_mean(str(name), [str(job) for job in jobs]), name)
        for key in NUMBERS:
            if (key in row or key == "step_seconds") and not is_measure(row.get(key)):
                yield Problem(f"{path}.{key}", "must be a number above 0", row.get(key))
        changes = row.get("set", [])
        if not isinstance(changes, list) or not all(isinstance(change, str) for change in changes):
            yield Problem(f"{path}.set", "must be a list of changes such as recompute=true", changes)
