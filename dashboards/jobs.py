"""What a run's job says of it in a few words, and which prediction and measurement are of the same job."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from dashboards.catalog import Entry
from twin.compare.jobs import work_of
from twin.description.problems import DescriptionError

Key = tuple[str, ...]
SLOWS = ("library", "stragglers", "slowest_device")
"""Keys that decide how fast the same ops are on one machine."""
MAX_WORDS = 80
"""Letters of a name that may come from a stranger."""


def job_in(entry: Entry) -> Mapping[str, Any]:
    """Return what an entry says of its job; empty if nothing."""
    job = entry.head.get("job")
    return job if isinstance(job, dict) else {}


def model_of(job: Mapping[str, Any]) -> str:
    """Name a job's model; one without a name of its own by its size.

    >>> model_of({"model": {"name": "custom", "layers": 96, "hidden": 12288}}), model_of({"model": "gpt-5b"})
    ('96 layers × 12,288', 'gpt-5b')
    """
    model = job.get("model")
    if not isinstance(model, dict):
        return str(model or "")[:MAX_WORDS]
    name = str(model.get("name") or "custom")
    if name != "custom":
        return name[:MAX_WORDS]
    return f"{_plain(model.get('layers'))} layers × {_plain(model.get('hidden'))}"[:MAX_WORDS]


def machine_of(job: Mapping[str, Any]) -> str:
    """Name a job's machine."""
    machine = job.get("machine")
    return str(machine.get("name", "") if isinstance(machine, dict) else machine or "")[:MAX_WORDS]


def grid_words(job: Mapping[str, Any]) -> str:
    """Write the sizes of a grid's axes, or what stands in its place."""
    grid = job.get("grid")
    return " × ".join(str(size) for size in grid.values()) if isinstance(grid, dict) else str(grid or "")


def key_of(entry: Entry) -> Key:
    """Return what a prediction and a measurement of one job have in common; empty if there is no job."""
    job = job_in(entry)
    if not job:
        return ()
    grid, batch = job.get("grid"), job.get("batch")
    sizes = [f"{axis} {size}" for axis, size in grid.items() if size != 1] if isinstance(grid, dict) else [str(grid)]
    sequences = batch.get("sequences") if isinstance(batch, dict) else None
    return (str(job.get("name")), str(job.get("ranks")), str(sequences), *map(str, sizes))


def work_key(entry: Entry) -> Key:
    """Return what a run's ranks do, beside `key_of`: runs of which it differs have no verdict.

    Empty where the job is not one that can be read.
    """
    try:
        keys = work_of(entry.head, entry.label).keys
    except DescriptionError:
        return ()
    return tuple(f"{key} {value!r}" for key, value in sorted(keys.items()) if key != "job.model.name")


def place_of(entry: Entry) -> dict[str, Any]:
    """Return where a run's ranks work: its machine by name, and what slows devices or does their work.

    A pair need not have it in common: a job may be predicted for a machine that was calibrated after it was measured,
    or for one that nobody has. Numbers of a machine may be corrected; one that `--set` changes has another name.
    """
    job = job_in(entry)
    train = job.get("train")
    library = train.get("gemm_library") if isinstance(train, dict) else None
    return {"machine": machine_of(job), **{key: job.get(key) for key in SLOWS}, "train.gemm_library": library}


def nearest_first(entry: Entry, others: Iterable[Entry]) -> list[Entry]:
    """Return other runs of the same work: those of the same place first, the newest of each first."""
    place = place_of(entry)
    return sorted(others, key=lambda other: (place_of(other) != place, -other.changed))


def elsewhere(predicted: Entry, measured: Entry) -> str:
    """Say what the places of a prediction and a measurement have not in common; else nothing."""
    there, here = place_of(predicted), place_of(measured)
    if there["machine"] != here["machine"]:
        return f"predicted for {there['machine']}, measured on {here['machine']}"
    apart = [key for key in there if there[key] != here[key]]
    return f"predicted with other {', '.join(apart)}" if apart else ""


def partners(entries: Iterable[Entry]) -> dict[str, Entry]:
    """Return for each predicted run the nearest measured one of the same job, and the other way round, by name."""
    newest: dict[tuple[Key, str, str], Entry] = {}
    """By work, kind and place; by work and kind where that is empty."""
    keys: dict[str, tuple[Key, str]] = {}
    known = [entry for entry in entries if entry.kind in ("predicted", "measured")]
    for entry in sorted(known, key=lambda e: e.changed):
        if key := key_of(entry):
            work, place = key + work_key(entry), repr(place_of(entry))
            keys[entry.name] = work, place
            for where in (place, ""):
                newest[work, str(entry.kind), where] = entry
    found = {}
    for entry in known:
        if entry.name not in keys:
            continue
        (work, place), kind = keys[entry.name], "measured" if entry.kind == "predicted" else "predicted"
        if other := newest.get((work, kind, place)) or newest.get((work, kind, "")):
            found[entry.name] = other
    return found


def contents(entry: Entry) -> str:
    """Say what a search or a study holds; nothing of a run."""
    head = entry.head
    if entry.kind == "search":
        best, under = head.get("best"), head.get("strategies")
        grid = grid_words(best) if isinstance(best, dict) else ""
        several = [one for one in under if isinstance(one, dict)] if isinstance(under, list) else []
        known, able = (_total(several or [head], key) for key in ("candidates", "feasible"))
        winner = f"{head.get('strategy')} " if len(several) > 1 else ""
        return f"{known} candidates, {able} can run; best {winner}{grid}"[:MAX_WORDS]
    if entry.kind == "study":
        words = str(head.get("study", "")).replace("_", " ")
        return f"{words}, {_count(head, 'points')} points: {head.get('title') or ''}"[: 2 * MAX_WORDS]
    return ""


def _total(parts: list[Any], key: str) -> str:
    """Add up what the parts of a search hold: one of each strategy."""
    counts = [part.get(key) for part in parts]
    return f"{sum(counts):,}" if all(isinstance(count, int) for count in counts) else "?"


def _count(head: Mapping[str, Any], key: str) -> str:
    return _plain(head.get(key))


def _plain(value: Any) -> str:
    return f"{value:,}" if isinstance(value, int) else "?"
