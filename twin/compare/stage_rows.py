"""Stages of a compared pipeline in words and rows, for pages and terminals."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from twin.compare.bubbles import MESSAGE, is_bubble
from twin.compare.compare import Comparison
from twin.compare.errors import OpError
from twin.compare.kinds import COMPUTE_KINDS

PARTS: Mapping[str, Callable[[str], bool]] = MappingProxyType(
    {
        "compute": lambda term: term in COMPUTE_KINDS,
        "collectives": lambda term: term.startswith(("skew_", "transfer_")),
        "messages": lambda term: term.startswith(f"{MESSAGE}_"),
        "bubble": is_bubble,
    }
)
"""What a stage's step is made of, in few words, and which terms are in it: exposed, as all terms are."""
REST = "host and ends"
"""All other terms."""


@dataclass(frozen=True)
class StageRow:
    """One stage; `parts` (title, predicted and measured seconds) sum to the steps."""

    name: str
    critical: bool
    """Whether it decides the measured step."""
    parts: tuple[tuple[str, float, float], ...]


def stage_rows(found: Comparison) -> list[StageRow]:
    """Return the stages from first to last; none if there is no pipeline."""
    rows = []
    for stage in found.pipeline.stages if found.pipeline else ():
        sums = {title: [0.0, 0.0] for title in (*PARTS, REST)}
        for term in stage.terms:
            title = next((title for title, holds in PARTS.items() if holds(term.name)), REST)
            sums[title][0] += term.predicted_seconds
            sums[title][1] += term.measured_seconds
        critical = found.pipeline is not None and stage.name == found.pipeline.critical
        rows.append(StageRow(stage.name, critical, tuple((title, a, b) for title, (a, b) in sums.items())))
    return rows


def pipeline_facts(found: Comparison) -> list[tuple[str, str]]:
    """Name the stage that decides each step, and how much of the step its own time is: (what, value)."""
    if found.pipeline is None:
        return []
    stages = found.pipeline
    before, after = stages.stage(stages.predicted_critical), stages.stage(stages.critical)
    return [
        ("critical stage", _share(after.name, after.measured_bubble_seconds, found.measured_seconds)),
        ("critical stage as predicted", _share(before.name, before.predicted_bubble_seconds, found.predicted_seconds)),
    ]


def _share(name: str, bubble_seconds: float, step_seconds: float) -> str:
    share = bubble_seconds / step_seconds if step_seconds else 0.0
    return f"{name}: {100 * (1 - share):.1f} % its own time, {100 * share:.1f} % bubble"


def subject_of(found: Comparison) -> str:
    """Say over which ranks terms are means."""
    return "mean over ranks" + (f" of {found.pipeline.critical}" if found.pipeline else "")


def op_of(error: OpError) -> str:
    """Name an op, and its stage where there are several."""
    return f"{error.op} ({error.stage})" if error.stage else error.op
