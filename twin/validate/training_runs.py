"""Published training runs in a YAML file: `machines`, `models` and `rows`, one row a run.

A row names its `source`, its `model` (a key of `models`, or sizes of its own), its `machine`, the degrees
of parallelism, the batch, the options, and one measured time or throughput. Text where a degree or batch would
be ("not stated") means that the source does not say it; the row is then left out, and counted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from twin.description.problems import DescriptionError, Problem, did_you_mean
from twin.validate.iterations import Iteration
from twin.validate.printed_time import TIMES, Printed, printed_time
from twin.validate.published_job import VOCABULARY, assumptions, job_keys, refusal
from twin.validate.published_pieces import is_piece, piece_problems
from twin.validate.published_run import Run

SIZES = ("layers", "layers_override", "hidden", "heads", "kv_heads", "ffn", "seq")
"""Whole numbers of a model, in `models` or in a row."""
DEGREES = (
    "gpus",
    "tp",
    "pp",
    "cp",
    "dp",
    "dp_shard",
    "micro_batch",
    "local_batch",
    "global_batch",
    "num_microbatches",
    "grad_accumulation",
    "vocab",
)
"""Whole numbers, or text where the source does not say them."""
LARGEST = 1e15
PROBLEMS_SHOWN = 20


Rows = list[tuple[Mapping[str, Any], Mapping[str, Any]]]
"""Each row with its model."""


def published_rows(data: Mapping[str, Any], origin: str) -> Rows:
    """Return the rows of a file of published training runs; raises DescriptionError for what cannot be one."""
    problems = list(_problems(data))
    if problems:
        raise DescriptionError(problems[:PROBLEMS_SHOWN], origin)
    return [(row, data["models"].get(row.get("model"), {})) for row in data["rows"]]


def training_runs(rows: Rows) -> list[Iteration]:
    """Make jobs of rows that are iterations; those of other kinds are `published_pieces`' business."""
    return [training_run(row, model) for row, model in rows if not is_piece(row)]


def training_run(row: Mapping[str, Any], model: Mapping[str, Any]) -> Iteration:
    """Read one row: its job and measured time, or why it is left out."""
    run = Run(row, model)
    if reason := refusal(run):
        return Iteration(row, row["source"], 0.0, reason)
    keys = job_keys(run)
    shape = keys["model"]
    vocabulary = run.shape("vocab")
    printed = Printed(
        shape["layers"],
        shape["hidden"],
        shape["sequence"],
        vocabulary if isinstance(vocabulary, int) else VOCABULARY,
        keys["batch"]["sequences"],
        keys["recompute"],
        shape.get("kv_heads", shape["heads"]) / shape["heads"],
        shape.get("mlp_width", 0),
        shape["activation"] == "swiglu",
    )
    time = printed_time(row, printed, run.ranks)
    if time is None:
        return Iteration(row, row["source"], 0.0, "no iteration time, and no throughput that gives it")
    seconds, basis = time
    return Iteration(row, row["source"], seconds, keys, {"measured_from": basis, "assumed": assumptions(run)})


def _problems(data: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what makes a file no file of training runs."""
    models, rows = data.get("models"), data.get("rows")
    if not isinstance(rows, list) or not rows:
        yield Problem("rows", "missing" if rows is None else "must be a list of runs, each with keys of its own")
    if not isinstance(models, dict):
        yield Problem("models", "missing" if models is None else "must be models by name")
    if not isinstance(rows, list) or not isinstance(models, dict):
        return
    for name, model in models.items():
        yield from _bad_model(f"models.{name}", model)
    for number, row in enumerate(rows):
        if isinstance(row, dict):
            yield from _bad_row(f"rows.{number}" + (f" ({row['id']})" if "id" in row else ""), row, models)
        else:
            yield Problem(f"rows.{number}", "must be the keys of a run", row)


def _bad_model(path: str, model: Any) -> Iterator[Problem]:
    if not isinstance(model, dict):
        yield Problem(path, "must be the keys of a model", model)
        return
    for key in ("layers", "hidden", "heads"):
        if key not in model:
            yield Problem(f"{path}.{key}", "missing")
    yield from _bad_numbers(path, model)


def _bad_row(path: str, row: Mapping[str, Any], models: Mapping[str, Any]) -> Iterator[Problem]:
    if not isinstance(row.get("source"), str) or not row["source"].strip():
        yield Problem(f"{path}.source", "missing; say where the row was published", row.get("source"))
    if "model" in row and not (isinstance(row["model"], str) and row["model"] in models):
        yield Problem(f"{path}.model", did_you_mean(str(row["model"]), list(models)), row["model"])
    if "machine" in row and not isinstance(row["machine"], str):
        yield Problem(f"{path}.machine", "must be a name", row["machine"])
    yield from _bad_numbers(path, row)
    yield from (Problem(f"{path}.{key}", remedy, row.get(key)) for key, remedy in piece_problems(row))
    for key in TIMES:
        if key in row and not _measured(row[key]):
            yield Problem(f"{path}.{key}", "must be a number above 0", row[key])


def _bad_numbers(path: str, part: Mapping[str, Any]) -> Iterator[Problem]:
    for key in SIZES:
        if key in part and not _whole(part[key]):
            yield Problem(f"{path}.{key}", "must be a whole number above 0", part[key])
    for key in DEGREES:
        if key in part and not isinstance(part[key], str) and not _whole(part[key]):
            yield Problem(f"{path}.{key}", "must be a whole number above 0, or say that it is not stated", part[key])


def _measured(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return bool(number and 1 / LARGEST <= value <= LARGEST)


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and 0 < value <= LARGEST
