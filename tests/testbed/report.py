"""How good the predictions were: errors, ranking, cost of tracing."""

from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np

from tests.testbed.scenarios import Scenario


def write_report(scenarios: list[Scenario], predictions: dict[str, float], out: Path) -> str:
    """Write `report.json` and `report.md`; returns the text."""
    found = [_scenario(scenario, predictions, out / scenario.name) for scenario in scenarios]
    (out / "report.json").write_text(json.dumps(found, indent=1), encoding="utf-8")
    text = "\n".join(_shown(each) for each in found)
    (out / "report.md").write_text(text, encoding="utf-8")
    return text


def _scenario(scenario: Scenario, predictions: dict[str, float], results: Path) -> dict[str, Any]:
    rows = []
    for file in sorted(results.glob(f"{scenario.name}-*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        predicted, plain = predictions[result["name"]], result["plain_seconds"]
        measured = median(plain)
        rows.append({
            "grid": "x".join(str(result["grid"][axis]) for axis in ("data", "z", "y", "x")),
            "predicted_seconds": predicted, "measured_seconds": measured, "fastest_seconds": min(plain),
            "error": predicted / measured - 1,
            "spread": float(np.median(np.abs(np.array(plain) - measured))) / measured,
            "tracing": median(result["traced_seconds"]) / measured - 1 if result["traced_seconds"] else None,
        })  # fmt: skip
    predicted, measured_all = (
        [row[key] for row in rows] for key in ("predicted_seconds", "measured_seconds")
    )
    order = np.argsort(measured_all)
    best = int(np.argmin(predicted))
    return {
        "name": scenario.name, "title": scenario.title, "rows": rows,
        "mean_absolute_error": float(np.mean([abs(row["error"]) for row in rows])),
        "largest_error": float(max(abs(row["error"]) for row in rows)),
        "spearman": spearman(predicted, measured_all),
        "place_of_predicted_best": int(np.flatnonzero(order == best)[0]) + 1,
        "tracing": median(row["tracing"] or 0.0 for row in rows),
    }  # fmt: skip


def spearman(first: list[float], second: list[float]) -> float:
    """Correlation of ranks."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.corrcoef(ranks[0], ranks[1])[0, 1])


def _shown(found: dict[str, Any]) -> str:
    lines = [
        f"## {found['name']}: {found['title']}", "",
        (f"mean absolute error {found['mean_absolute_error']:.1%}, largest {found['largest_error']:.1%}, "
        f"rank correlation {found['spearman']:.3f}, the predicted best grid is number "
        f"{found['place_of_predicted_best']} of the measured ones, tracing costs {found['tracing']:.1%}"), "",
        "| grid (data×z×y×x) | predicted ms | measured ms | error | repeats differ by |", "|---|---|---|---|---|",
    ]  # fmt: skip
    lines += [
        f"| {row['grid']} | {row['predicted_seconds'] * 1e3:.1f} | {row['measured_seconds'] * 1e3:.1f} | "
        f"{row['error']:+.1%} | ±{row['spread']:.1%} |"
        for row in sorted(found["rows"], key=lambda r: r["measured_seconds"])
    ]
    return "\n".join([*lines, ""])
