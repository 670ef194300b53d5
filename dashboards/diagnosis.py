"""Who is slow in a run: worked out from a trace, or what `fourfold train --watch` wrote last."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from dashboards.catalog import Catalog, Entry
from dashboards.events import grid_of
from dashboards.members import job_of
from dashboards.parts import reasons
from twin.compare.side import read_side
from twin.description.problems import DescriptionError, fail
from twin.diagnose.diagnose import diagnose_side

MAX_FINDINGS, MAX_LETTERS = 200, 500
"""Of a file that may come from a stranger: a page that shows more is not read."""
MAX_RANKS_DIAGNOSED = 1024
"""Of a trace; more take longer than a page should."""


@dataclass(frozen=True)
class Found:
    """One culprit, as the pages show it."""

    text: str
    confidence: float
    ranks: tuple[int, ...]
    evidence: str = ""


@dataclass(frozen=True)
class Shown:
    """What a diagnosis says; `why_not` if there is none."""

    findings: tuple[Found, ...] = ()
    notes: tuple[str, ...] = ()
    why_not: str = ""
    not_located: str = ""
    """How much longer a step is than it should be, where no finding explains it."""
    assumed: bool = False
    """That is by constants which are a guess."""

    @property
    def ranks(self) -> list[int]:
        """All ranks that are named."""
        return sorted({rank for each in self.findings for rank in each.ranks})


def diagnosis_of(catalog: Catalog, entry: Entry) -> Shown:
    """Return who is slow in a run. Raises DescriptionError where a watched run's file makes no sense."""
    if entry.kind == "watch":
        return read_watch(entry.head, grid_of(entry).ranks, entry.label)
    if entry.kind != "measured":
        return Shown(why_not="A prediction has no faults but those it was given.")

    def made() -> Shown:
        job = job_of(entry)
        if job is None:
            return Shown(why_not="The twin does not know this run's job.")
        if job.ranks > MAX_RANKS_DIAGNOSED:
            return Shown(why_not=f"Of more than {MAX_RANKS_DIAGNOSED:,} ranks: use fourfold diagnose.")
        catalog.check_files(entry)
        try:
            found = diagnose_side(read_side(entry.path, entry.label), job)
        except DescriptionError as error:
            return Shown(why_not=reasons(error))
        return read_watch(found.as_json(), job.ranks, entry.label)

    return catalog.kept(entry, "diagnosis", made)


def read_watch(raw: Mapping[str, Any], ranks: int, label: str) -> Shown:
    """Read findings, which may be a stranger's. Raises DescriptionError."""
    findings, notes, once = raw.get("findings"), raw.get("notes", []), raw.get("suspected", [])
    lists = all(isinstance(each, list) and len(each) <= MAX_FINDINGS for each in (findings, notes, once))
    if not lists or not isinstance(findings, list):
        raise fail(f"{label}: findings", f"expected lists of at most {MAX_FINDINGS} findings, notes and suspicions")
    told = [*(f"Seen once, may be chance: {_text(each)}" for each in once), *map(_text, notes)]
    longer = raw.get("not_located")
    if longer is not None and not isinstance(longer, dict):
        raise fail(f"{label}: findings", "expected of what was not located a text", longer)
    longer = longer or {}
    found = tuple(_found(each, ranks, label) for each in findings)
    return Shown(found, tuple(told), "", _text(longer.get("text", "")), longer.get("assumed") is True)


def _found(raw: Any, ranks: int, label: str) -> Found:
    named = raw.get("ranks") if isinstance(raw, dict) else None
    sure = raw.get("confidence") if isinstance(raw, dict) else None
    known = isinstance(named, list) and all(type(rank) is int and 0 <= rank < ranks for rank in named)
    if not known or not isinstance(sure, int | float) or not 0 <= sure <= 1:
        raise fail(f"{label}: findings", f"expected ranks of {ranks} and a confidence from 0 to 1")
    assert named is not None
    return Found(_text(raw.get("text")), float(sure), tuple(named), _text(raw.get("evidence", "")))


def _text(value: Any) -> str:
    return str(value)[:MAX_LETTERS]
