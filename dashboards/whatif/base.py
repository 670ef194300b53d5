"""The job that a visitor changes: that of a predicted run, or an example."""

from __future__ import annotations

from typing import Any

import yaml

from dashboards.candidates import SavedCandidate, candidates_of, job_of_candidate
from dashboards.catalog import Catalog, Entry
from twin.description.job import Job
from twin.description.load import load_machine, names
from twin.description.presets import presets
from twin.description.problems import DescriptionError, fail
from twin.description.strangers import refuse_paths
from twin.description.train import without_training
from twin.strategies import load_job

EXAMPLE = {
    "name": "gpt-320b-frontier-32768",
    "model": "gpt-320b",
    "machine": "frontier",
    "ranks": 32768,
    "grid": {"data": 32, "z": 32, "y": 4, "x": 8},
    "batch": {"sequences": 8192, "micro_sequences": 8},
}
"""GPT-320B on 32,768 GCDs of Frontier."""


def base_of(catalog: Catalog, name: str | None, candidate: str = "") -> tuple[Job, str]:
    """Return the job to start from, and what it is called; of a search a candidate, the first if none is named.

    Raises DescriptionError.
    """
    if not name:
        return load_job(EXAMPLE), "the example, GPT-320B on 32,768 GCDs of Frontier"
    entry = catalog.entry(name)
    if entry.kind == "search":
        found = candidates_of(catalog, entry)
        chosen = found[int(candidate)] if candidate.isdecimal() and int(candidate[:9]) < len(found) else found[0]
        words = f"candidate {chosen.name} of {entry.label}"
        return catalog.kept(entry, f"what-if {chosen.number}", lambda: _candidate(catalog, entry, chosen)), words
    return catalog.kept(entry, "what-if", lambda: _job(entry)), entry.label


def _candidate(catalog: Catalog, entry: Entry, chosen: SavedCandidate) -> Job:
    """Return the job of a candidate, which opens no file that it names. Raises DescriptionError."""
    made = job_of_candidate(catalog, entry, chosen)
    raw = without_training(made)
    refuse_paths(entry.label, raw)
    return _settled(raw, entry.label)


def _job(entry: Entry) -> Job:
    described = entry.head.get("job")
    if not isinstance(described, dict):
        raise fail(entry.label, f"is a {entry.kind} and holds no job; choose a run on the page Runs")
    raw = without_training(described)
    refuse_paths(entry.label, raw)
    return _settled(raw, entry.label)


def _settled(raw: dict[str, Any], label: str) -> Job:
    try:
        job = load_job(raw)
    except DescriptionError as error:
        raise DescriptionError(error.problems, label) from None
    if job.grid == "auto" or job.batch.micro_sequences == "auto":
        raise fail(label, "its job leaves the grid or the micro-batch open; choose a predicted run")
    return job


def job_file(raw: dict[str, Any]) -> str:
    """Write a job as a file; machine and model by name where they are as they come with Fourfold."""
    short = {key: value for key, value in without_training(raw).items() if value is not None}
    machine, model = short["machine"], short["model"]
    if machine["name"] in names() and load_machine(machine["name"]).model_dump(mode="json", by_alias=True) == machine:
        short["machine"] = machine["name"]
    known = presets().get(model["name"])
    if known is not None and known.model_dump(mode="json", by_alias=True) == model:
        short["model"] = model["name"]
    return "# A job of the what-if page; `fourfold simulate` takes it.\n" + yaml.safe_dump(
        short, sort_keys=False, allow_unicode=True
    )
