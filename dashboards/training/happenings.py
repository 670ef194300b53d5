"""What happened to a training: when it was started again, went back to a checkpoint, was warned of, was stopped.

From what `fourfold train` writes: `run.json` (starts), `metrics.jsonl` (times that it went back), `alerts.jsonl`
(of `--watch`), `stopped.json`. All are a stranger's files: what makes no sense is left out.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from dashboards.catalog import RUN, Catalog, Entry, read_json
from dashboards.training.record import MAX_EVENTS, MAX_LINE, MAX_WORDS, Record, whole
from twin.description.problems import DescriptionError

ALERTS, STOPPED, STARTS = "alerts.jsonl", "stopped.json", "starts"
FILES = ("metrics.jsonl", ALERTS, STOPPED, RUN)
"""What is looked at for anything new."""
MAX_ALERT_BYTES = 4 << 20
What = Literal["started again", "went back", "warning", "warning over", "stopped"]


@dataclass(frozen=True)
class Happening:
    """One of these."""

    after_steps: int
    """So many steps were done; of a time that it went back those that were done before."""
    what: What
    words: str
    time: str = ""
    """As it was written; empty where it was not."""


def run_of(catalog: Catalog, entry: Entry) -> Mapping[str, Any]:
    """Return what `run.json` says; empty if it cannot be read. A training that is watched has a file before it."""
    if entry.kind == "training":
        return entry.head
    try:
        path = catalog.file(entry, RUN)
        return catalog.noted(entry, f"run {path.stat().st_mtime_ns}", lambda: read_json(path))
    except (DescriptionError, OSError):
        return {}


def happenings_of(catalog: Catalog, entry: Entry, record: Record) -> tuple[Happening, ...]:
    """Return what happened, in the order of steps. Raises DescriptionError if a file leads out of the root."""
    found = [
        *_starts(run_of(catalog, entry).get(STARTS)),
        *(
            Happening(since, "went back", f"to step {to:,}{f': {why}' if why else ''}")
            for (since, to), why in zip(record.back, record.why, strict=True)
        ),
        *_alerts(catalog, entry),
        *_stopped(catalog, entry),
    ]
    return tuple(sorted(found, key=lambda one: one.after_steps))


def _starts(raw: Any) -> Iterator[Happening]:
    """All starts but the first, which is where the curve begins."""
    for one in (raw if isinstance(raw, list) else [])[1:][-MAX_EVENTS:]:
        try:
            ranks = whole(one["ranks"])
            words = f"on {ranks:,} rank{'s' if ranks != 1 else ''}"
            yield Happening(whole(one["after_steps"]), "started again", words, _text(one.get("time"), 40))
        except (TypeError, KeyError, AttributeError):
            continue


def _alerts(catalog: Catalog, entry: Entry) -> Iterator[Happening]:
    """Each warning once, when it came and when it was over: `--watch` repeats it at every look."""
    path = catalog.file(entry, ALERTS)
    if not path.is_file():
        return
    with path.open("rb") as file:
        lines = file.read(MAX_ALERT_BYTES).split(b"\n")[:-1][:MAX_EVENTS]
    known: dict[str, str] = {}
    for text in lines:
        try:
            line = json.loads(text)
            after, time = whole(line["after_steps"]), _text(line.get("time"), 40)
            now = {_key(each): _text(each["text"], MAX_WORDS) for each in line["findings"]}
            if line.get("not_located"):
                now["not located"] = _text(line["not_located"]["text"], MAX_WORDS)
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
            continue
        yield from (Happening(after, "warning", words, time) for key, words in now.items() if key not in known)
        yield from (Happening(after, "warning over", words, time) for key, words in known.items() if key not in now)
        known = now


def _key(finding: Mapping[str, Any]) -> str:
    """Return what tells a finding from others while its figures change."""
    return f"{finding.get('where')} {finding.get('kind')}"[:MAX_WORDS]


def _stopped(catalog: Catalog, entry: Entry) -> Iterator[Happening]:
    path = catalog.file(entry, STOPPED)
    if not path.is_file() or path.stat().st_size > MAX_LINE:
        return
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        yield Happening(whole(found["after_steps"]), "stopped", f"by {_text(found.get('signal', 'a signal'), 40)}")
    except (ValueError, OSError, TypeError, KeyError, AttributeError, RecursionError):
        return


def _text(value: Any, most: int) -> str:
    return str(value or "")[:most]
