"""Entries as rows of the list of runs: what each is, how long its step is, how far its prediction is off."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dashboards.catalog import Catalog, Entry
from dashboards.events import step_seconds
from dashboards.jobs import contents, elsewhere, grid_words, job_in, machine_of, model_of, partners
from dashboards.training.record import summary_of

HEADINGS = {
    "label": "run",
    "kind": "kind",
    "step": "step (s)",
    "holds": "holds",
    "model": "model",
    "machine": "machine",
    "ranks": "ranks",
    "grid": "grid",
    "error": "prediction off (%)",
    "tokens": "tokens/s",
    "peak": "MFU (%)",
    "partner": "same job",
    "changed": "written",
    "differs": "differs from the first one chosen",
    "problem": "problem",
}
NUMBERS = ("ranks", "step", "tokens", "peak", "error")


def rows_of(catalog: Catalog, entries: list[Entry], first: Entry | None) -> list[dict[str, Any]]:
    """Describe entries, each in one row of plain values: None where there is nothing to say."""
    same = partners(entries)
    return [_row(catalog, entry, first, same.get(entry.name)) for entry in entries]


def _row(catalog: Catalog, entry: Entry, first: Entry | None, partner: Entry | None) -> dict[str, Any]:
    job, step = job_in(entry), step_seconds(catalog, entry)
    figures = entry.head.get("figures")
    figures = figures if isinstance(figures, Mapping) else {}
    ranks = job.get("ranks")
    if entry.kind in ("training", "watch"):
        return _training(catalog, entry, first)
    return {
        "name": entry.name,
        "label": entry.label,
        "kind": entry.kind or "damaged",
        "model": model_of(job if job else entry.head),
        "machine": machine_of(job if job else entry.head),
        "ranks": ranks if isinstance(ranks, int) else None,
        "grid": grid_words(job),
        "step": step,
        "tokens": tokens_per_second(job, step),
        "peak": _number(figures.get("model_percent_of_peak")) if entry.kind == "predicted" else None,
        "partner": _same_job(entry, partner) if partner else "",
        "error": _error(entry, step, None if partner is None else step_seconds(catalog, partner)),
        "holds": contents(entry),
        "changed": round(entry.changed * 1e3),
        "differs": ", ".join(differences(first, entry)) if first is not None and first is not entry else "",
        "problem": entry.problem,
    }


def _training(catalog: Catalog, entry: Entry, first: Entry | None) -> dict[str, Any]:
    """Describe a training: its median step, and how far it is."""
    job = job_in(entry)
    said = summary_of(catalog, entry)
    ranks = job.get("ranks")
    return {
        "name": entry.name,
        "label": entry.label,
        "kind": entry.kind,
        "model": model_of(job),
        "machine": machine_of(job),
        "ranks": ranks if isinstance(ranks, int) else None,
        "grid": grid_words(job),
        "step": said.step_seconds,
        "tokens": said.tokens_per_second,
        "peak": said.percent_of_peak,
        "partner": "",
        "error": None,
        "holds": said.words,
        "changed": round(max(entry.changed, said.changed) * 1e3),
        "differs": ", ".join(differences(first, entry)) if first is not None and first is not entry else "",
        "problem": entry.problem,
    }


def tokens_per_second(job: Mapping[str, Any], step: float | None) -> float | None:
    """Tokens of a step over its time, as the job has them; None if it does not say."""
    batch, model = job.get("batch"), job.get("model")
    sequences = batch.get("sequences") if isinstance(batch, Mapping) else None
    sequence = model.get("sequence") if isinstance(model, Mapping) else None
    known = all(isinstance(n, int) and 0 < n < 1 << 40 for n in (sequences, sequence))
    return float(sequences * sequence) / step if known and step and sequences and sequence else None


def _same_job(entry: Entry, partner: Entry) -> str:
    """Name the other run of a pair, and what the two do not have in common."""
    predicted, measured = (entry, partner) if entry.kind == "predicted" else (partner, entry)
    apart = elsewhere(predicted, measured)
    return f"{partner.label} ({apart})" if apart else partner.label


def _error(entry: Entry, step: float | None, other: float | None) -> float | None:
    """Predicted over measured, less one, in percent; the same for both runs of a pair."""
    if not step or not other:
        return None
    predicted, measured = (step, other) if entry.kind == "predicted" else (other, step)
    return round(100 * (predicted / measured - 1), 1)


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else None


def differences(one: Entry, other: Entry, most: int = 8) -> list[str]:
    """Name the keys of two runs' jobs that differ."""
    jobs = [entry.head.get("job") for entry in (one, other)]
    if not all(isinstance(job, dict) for job in jobs):
        return []
    flat, against = map(_flat, jobs)
    keys = [k for k in sorted({*flat, *against}) if flat.get(k) != against.get(k)]
    return keys[:most] + ([f"and {len(keys) - most:,} more"] if len(keys) > most else [])


def _flat(node: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(node, dict):
        return {path: node}
    found: dict[str, Any] = {}
    for key, value in node.items():
        if path == "" and key == "train":
            continue
        found |= _flat(value, f"{path}.{key}" if path else str(key))
    return found
