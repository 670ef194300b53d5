"""`fourfold validate`: every published figure beside the twin's prediction."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from twin.engine.parallel import in_parallel
from twin.validate import published
from twin.validate.groups import Group, summary
from twin.validate.measurements import validate_file
from twin.validate.published import Comparison

COLLECTIVES = Path(__file__).parent / "data" / "collectives.csv"


@dataclass(frozen=True)
class PublishedValidation:
    """Published runs and measured collectives, compared."""

    weak_scaling: list[Comparison]
    other_grids: list[Comparison]
    ablation: list[Comparison]
    kernel_tuning: list[Comparison]
    collectives: list[Group]

    @property
    def summary(self) -> Group:
        """Errors of the weak scaling points."""
        return summary("weak scaling", [c.error for c in self.weak_scaling])


def validate_published(
    *, workers: int = 1, progress: Callable[[int, int], None] = lambda _d, _a: None
) -> PublishedValidation:
    """Simulate every published run the way its authors chose their configuration."""
    data = published.runs()
    tasks: list[tuple[str, dict[str, Any]]] = [
        *(("weak_scaling", run) for run in reversed(data["weak_scaling"])),
        *(("other_grids", run) for run in data["other_grids"]),
        ("ablation", data["ablation"]),
        ("kernel_tuning", data["kernel_tuning"]),
    ]
    answers = in_parallel(_task, tasks, workers, progress)
    of_kind: dict[str, list[Comparison]] = {}
    for (kind, _), answer in zip(tasks, answers, strict=True):
        of_kind.setdefault(kind, []).extend(answer)
    return PublishedValidation(
        weak_scaling=of_kind["weak_scaling"][::-1],
        other_grids=of_kind["other_grids"],
        ablation=of_kind["ablation"],
        kernel_tuning=of_kind["kernel_tuning"],
        collectives=validate_file(COLLECTIVES).groups,
    )


def _task(task: tuple[str, dict[str, Any]]) -> list[Comparison]:
    kind, run = task
    if kind in {"weak_scaling", "other_grids"}:
        return [published.weak_scaling(run)]
    return list(published.ablation(run) if kind == "ablation" else published.kernel_tuning(run))
