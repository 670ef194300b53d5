"""How good the predictions were: errors, ranking, single ops, cost of tracing; numbers, text and a picture."""

from __future__ import annotations

import json
import platform
import time
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import plotly.graph_objects as go

from tests.testbed.beyond import BeyondScenario
from tests.testbed.scenarios import Scenario
from tests.testbed.strategies import STRATEGIES, WAYS, StrategyScenario
from tests.testbed.worker import PRODUCT
from twin.compare.compare import compare

SIZE = (PRODUCT.m, PRODUCT.n, PRODUCT.k)
MIN_MS, MAX_MS = 0.8, 1.25
"""Margins of the picture around the measured times."""
SYMBOLS = ("circle", "circle-open", "square", "diamond", "diamond-open", "triangle-up", "cross", "x")
"""Of the ways to cut a model; grids of 4D are circles."""
TICKS = [step * 10**power for power in range(5) for step in (1, 2, 5)]


def write_report(scenarios: list[Scenario | StrategyScenario], predictions: dict[str, float], out: Path) -> str:
    """Write `report.json`, `report.md` and `report.html`; returns the text."""
    found = [_scenario(scenario, predictions, out / scenario.name) for scenario in scenarios]
    about = {"date": time.strftime("%Y-%m-%d"), "host": f"{platform.machine()}, {platform.release()}"}
    compared = {scenario.name: scenario for scenario in scenarios if isinstance(scenario, BeyondScenario)}
    gains = {each["name"]: compared[each["name"]].gains(each["rows"]) for each in found if each["name"] in compared}
    told = {**about, "scenarios": found, **({"gains": gains} if gains else {})}
    (out / "report.json").write_text(json.dumps(told, indent=1), encoding="utf-8")
    text = "\n".join(_shown(each) for each in found)
    text += "".join(map(_gains, gains.values()))
    if together := [each for each in found if each["name"] in {scenario.name for scenario in STRATEGIES}]:
        text += _together([row for each in together for row in each["rows"]])
    (out / "report.md").write_text(text, encoding="utf-8")
    _picture(found).write_html(out / "report.html", include_plotlyjs=True, config={"displayModeBar": False})
    return text


def _scenario(scenario: Scenario | StrategyScenario, predictions: dict[str, float], results: Path) -> dict[str, Any]:
    rows, calibrated = [], calibrated_product_seconds(results)
    for file in sorted(results.glob(f"{scenario.name}-*.json")):
        result = json.loads(file.read_text(encoding="utf-8"))
        predicted, plain = predictions[result["name"]], result["plain_seconds"]
        measured = median(plain)
        pair = compare(results / f"{result['name']}-predicted", results / f"{result['name']}-trace")
        gemm = pair.error("compute", "kind", "gemm")
        collective = pair.error("collective", "all", "all")
        assert gemm is not None
        assert collective is not None
        left = pair.difference_seconds - sum(term.difference_seconds for term in pair.terms)
        rows.append(
            {
                "grid": result["label"],
                "predicted_seconds": predicted,
                "measured_seconds": measured,
                "fastest_seconds": min(plain),
                "error": predicted / measured - 1,
                "spread": float(np.median(np.abs(np.array(plain) - measured))) / measured,
                "tracing": median(result["traced_seconds"]) / measured - 1,
                "gemm_error": gemm.median_error,
                "collective_error": collective.median_error,
                "waterfall_leaves_seconds": abs(left),
                "slower_cores": _slower(result.get("product_seconds"), calibrated),
            }
        )
    predicted, measured_all = ([row[key] for row in rows] for key in ("predicted_seconds", "measured_seconds"))
    order = np.argsort(measured_all)
    best = int(np.argmin(predicted))
    return {
        "name": scenario.name,
        "title": scenario.title,
        "rows": rows,
        "mean_absolute_error": float(np.mean([abs(row["error"]) for row in rows])),
        "largest_error": float(max(abs(row["error"]) for row in rows)),
        "spearman": spearman(predicted, measured_all),
        "place_of_predicted_best": int(np.flatnonzero(order == best)[0]) + 1,
        "regret": measured_all[best] / min(measured_all) - 1,
        "tracing": median(row["tracing"] for row in rows),
        "gemm_error": median(row["gemm_error"] for row in rows),
        "collective_error": median(row["collective_error"] for row in rows),
        "waterfall_leaves_seconds": max(row["waterfall_leaves_seconds"] for row in rows),
        "slower_cores": None if rows[0]["slower_cores"] is None else median(row["slower_cores"] for row in rows),
    }


def _slower(now: float | None, calibrated: float | None) -> float | None:
    return None if now is None or calibrated is None else now / calibrated - 1


def calibrated_product_seconds(results: Path) -> float | None:
    """Return what the workers' product took of a core, all ranks at work, in the calibration there or above."""
    for file in (folder / "testbed-measurements.json" for folder in (results, results.parent)):
        if file.is_file():
            rows = json.loads(file.read_text(encoding="utf-8"))["gemm"]
            same = [row for row in rows if (row["pass"], row["m"], row["n"], row["k"]) == (PRODUCT.pass_, *SIZE)]
            return float(max(same, key=lambda row: int(row["busy"]))["seconds"]) if same else None
    return None


def _together(rows: list[dict[str, Any]]) -> str:
    """Of all strategies and models at once."""
    times = [[row[key] for row in rows] for key in ("predicted_seconds", "measured_seconds")]
    mean = float(np.mean([abs(row["error"]) for row in rows]))
    return f"All {len(rows)} of these: mean absolute error {mean:.1%}, rank correlation {spearman(*times):.3f}.\n"


def _gains(found: list[tuple[str, float, float]]) -> str:
    """Show how many times faster a step is beyond the published algorithm."""
    lines = [
        "| grid (others are 1), activations | predicted gain | measured gain | apart, points |",
        "|---|---|---|---|",
        *(f"| {pair} | {said:.2f} × | {seen:.2f} × | {100 * (said - seen):+.0f} |" for pair, said, seen in found),
    ]
    mean = [float(np.mean([each[i] for each in found])) for i in (1, 2)]
    apart = max(abs(said - seen) for _, said, seen in found)
    text = f"Mean gain {mean[0]:.2f} × predicted, {mean[1]:.2f} × measured; at most {100 * apart:.0f} points apart.\n"
    return "\n".join([*lines, "", text])


def spearman(first: list[float], second: list[float]) -> float:
    """Correlation of ranks.

    >>> spearman([1.0, 2.0, 3.0], [10.0, 30.0, 20.0])
    0.5
    """
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return round(float(np.corrcoef(ranks[0], ranks[1])[0, 1]), 6)


def _shown(found: dict[str, Any]) -> str:
    lines = [
        f"## {found['name']}: {found['title']}",
        "",
        (
            f"Mean absolute error {found['mean_absolute_error']:.1%}, largest {found['largest_error']:.1%}, "
            f"rank correlation {found['spearman']:.3f}; the predicted best is number "
            f"{found['place_of_predicted_best']} of the measured ones, {found['regret']:.1%} slower than the first. "
            "Single ops, median error: products "
            f"{found['gemm_error']:.1%}, collectives {found['collective_error']:.1%}. Tracing costs "
            f"{found['tracing']:.1%}. The waterfall leaves {found['waterfall_leaves_seconds']:.0e} s."
            f"{_said_of_cores(found['slower_cores'])}"
        ),
        "",
        "| grid (data×z×y×x), or strategy | predicted ms | measured ms | error | repeats differ by |",
        "|---|---|---|---|---|",
    ]
    lines += [
        f"| {row['grid']} | {row['predicted_seconds'] * 1e3:.1f} | {row['measured_seconds'] * 1e3:.1f} | "
        f"{row['error']:+.1%} | ±{row['spread']:.1%} |"
        for row in sorted(found["rows"], key=lambda r: r["measured_seconds"])
    ]
    return "\n".join([*lines, ""])


def _said_of_cores(slower: float | None) -> str:
    return (
        ""
        if slower is None
        else f" A product took {1 + slower:.2f} times what it had taken of a core in the calibration."
    )


def _picture(found: list[dict[str, Any]]) -> go.Figure:
    """Predicted against measured, a point for each grid."""
    times = [row["measured_seconds"] * 1e3 for each in found for row in each["rows"]]
    ends = [MIN_MS * min(times), MAX_MS * max(times)]
    figure = go.Figure()
    for width, name in ((0.1, "±10 %"), (0.0, "equal")):
        for sign in (1, -1) if width else (1,):
            figure.add_scatter(
                x=ends,
                y=[(1 + sign * width) * end for end in ends],
                mode="lines",
                name=name,
                showlegend=sign == 1,
                line={"color": "#999", "width": 1, "dash": "dot" if width else "solid"},
            )
    for each in found:
        rows = each["rows"]
        symbols = [SYMBOLS[list(WAYS).index(row["grid"])] if row["grid"] in WAYS else SYMBOLS[0] for row in rows]
        figure.add_scatter(
            x=[row["measured_seconds"] * 1e3 for row in rows],
            y=[row["predicted_seconds"] * 1e3 for row in rows],
            text=[row["grid"] for row in rows],
            mode="markers",
            marker={"symbol": symbols, "size": 8},
            name=f"{each['name']}: {each['mean_absolute_error']:.1%}",
        )
    if any(row["grid"] in WAYS for each in found for row in each["rows"]):
        for label, symbol in zip(WAYS, SYMBOLS, strict=True):
            marker = {"symbol": symbol, "size": 8, "color": "#666"}
            figure.add_scatter(x=[None], y=[None], mode="markers", marker=marker, name=label, legend="legend2")
    figure.update_layout(
        template="simple_white",
        width=760,
        height=520,
        margin={"l": 60, "r": 20, "t": 40, "b": 50},
        title={"text": "A training step: predicted from microbenchmarks, then run", "font": {"size": 16}},
        xaxis={"type": "log", "title": "measured ms", "tickvals": TICKS},
        yaxis={"type": "log", "title": "predicted ms", "tickvals": TICKS},
        legend={"x": 0.02, "y": 0.98, "title": {"text": "mean absolute error"}},
        legend2={"x": 0.98, "xanchor": "right", "y": 0.02, "yanchor": "bottom"},
    )
    return figure
