"""What a training's page need be told when a file grew: the new points of its curves, where that is all that is new.

A page that is drawn anew every few seconds costs a browser half a second each time, on the processor that trains.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

from dashboards.figures.training import MAX_POINTS, PANELS, Curve, along, panel

MAX_GROWN = MAX_POINTS // 2
"""Points added to a curve before it is drawn, and thinned, anew."""


@dataclass(frozen=True)
class Seen:
    """What a page shows: it is kept by the browser, and comes back with each look."""

    files: str = ""
    """Names, sizes and times of what was read."""
    curves: tuple[tuple[str, int, str, str], ...] = ()
    """Of each training its name, its steps, what its curves are drawn with, and what stands on that of its loss."""
    grown: int = field(default=0)
    """Points that were added since all was drawn."""

    @classmethod
    def of_data(cls, data: Any) -> Seen:
        """Read what a browser sends; nothing of what makes no sense."""
        try:
            curves = tuple((str(a), int(b), str(c), str(d)) for a, b, c, d in data["curves"])
            found = cls(str(data["files"]), curves, int(data["grown"]))
        except (TypeError, KeyError, ValueError, OverflowError):
            return cls()
        return found if all(steps >= 0 for _, steps, _, _ in curves) else cls(found.files)

    def as_data(self) -> dict[str, Any]:
        """Return what a browser keeps."""
        return {"files": self.files, "curves": [list(one) for one in self.curves], "grown": self.grown}

    def after(self, before: Seen) -> Seen:
        """Count the points that were added to what was drawn before."""
        steps = (now[1] - old[1] for now, old in zip(self.curves, before.curves, strict=True))
        return replace(self, grown=before.grown + max(steps, default=0))


def seen_of(files: str, curves: Sequence[Curve]) -> Seen:
    """Note what is drawn of these trainings."""
    return Seen(files, tuple((one.name, len(one.record), _drawn_with(one), _marked_with(one)) for one in curves))


def _drawn_with(curve: Curve) -> str:
    """Say what changes when more than points is new: which figures there are, what the page lists, which file it is."""
    record = curve.record
    known = [name for name, column in record.columns.items() if _any_known(np.frombuffer(column))]
    rest = (known, curve.predicted_rate, curve.predicted_for, curve.happenings, curve.ended)
    return _digest((record.inode, record.back, record.bad_lines, *rest))


def _any_known(values: Any) -> bool:
    return bool(len(values)) and not (np.isnan(values[0]) and np.isnan(values).all())


def _marked_with(curve: Curve) -> str:
    return _digest((curve.checkpoints, curve.record.validation))


def _digest(what: Any) -> str:
    return f"{zlib.crc32(repr(what).encode(errors='replace')):08x}"


def grown(before: Seen, now: Seen, curves: Sequence[Curve], by: str) -> dict[str, Any] | None:
    """Return the points since, by figure: (number of the training, along, values); None if all has to be drawn anew.

    Where a checkpoint or a held-out loss is new, the figure of the loss comes whole.
    """
    if [one[0] for one in before.curves] != [one[0] for one in now.curves] or not now.curves:
        return None
    if _by(before.files) != _by(now.files) or now.after(before).grown > MAX_GROWN:
        return None
    if any(old[2] != new[2] or old[1] > new[1] for old, new in zip(before.curves, now.curves, strict=True)):
        return None
    marked = any(old[3] != new[3] for old, new in zip(before.curves, now.curves, strict=True))
    points: dict[str, list[list[Any]]] = {}
    for number, (curve, old) in enumerate(zip(curves, before.curves, strict=True)):
        x = along(curve.record, by)[old[1] :]
        for name in PANELS:
            y = np.frombuffer(curve.record.columns[name])[old[1] :]
            there = ~np.isnan(y)
            if there.any() and not (marked and name == "loss"):
                points.setdefault(name, []).append([number, x[there].tolist(), y[there].tolist()])
    figure = panel(curves, "loss", by) if marked else None
    figures: Mapping[str, Any] = {} if figure is None else {"loss": figure.to_plotly_json()}
    return {"points": points, "figures": figures}


def _by(files: str) -> str:
    return files.partition("|")[0]
