"""What a smoke test saw, as a table or as JSON."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from rich.table import Table

from runtime.smoke.run import Seen


def table(found: Sequence[Seen]) -> Table:
    """Draw a row for each case."""
    drawn = Table(box=None, pad_edge=False)
    for title in ("path", "steps", "loss", "ms a step", "of it host", "peak MB", "predicted MB", "attention", ""):
        drawn.add_column(title, justify="left" if title in ("path", "attention", "") else "right")
    for one in found:
        if one.skipped or not one.steps:
            drawn.add_row(
                one.name, "", "", "", "", "", "", "", f"{'left out' if one.skipped else 'FAILED'}: {one.error}"
            )
            continue
        drawn.add_row(
            one.name,
            str(one.steps),
            f"{one.first_loss:.3f} → {one.last_loss:.3f}",
            f"{1e3 * one.step_seconds:.1f}",
            "" if one.host_seconds is None else f"{1e3 * one.host_seconds:.1f}",
            "" if one.peak_bytes is None else f"{one.peak_bytes / 1e6:,.0f}",
            f"{one.predicted_bytes / 1e6:,.0f}",
            one.attention,
            f"FAILED: {one.error}" if one.error else "ok",
        )
    return drawn


def as_json(found: Sequence[Seen], place: str) -> dict[str, Any]:
    """Return all of it; what was not seen is null."""
    rows = [{key: _known(value) for key, value in asdict(one).items()} for one in found]
    return {"place": place, "failed": sum(bool(one.error) and not one.skipped for one in found), "cases": rows}


def _known(value: Any) -> Any:
    return None if isinstance(value, float) and not math.isfinite(value) else value
