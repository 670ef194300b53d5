"""Figures of sentences: energy of traced steps, shares and errors of single rows, waits for a straggler."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tools.figure_tables import Answer, percent, table

TRACED = Path(__file__).parents[1] / "examples/measured/gpt-1b-h100/manifest.json"
"""The trace of the first row of `one-h100`, with what its meter covered."""
FAR = 0.2
USUAL_TOKENS = 2048


def energy(answer: Answer) -> str:
    """Write joules of a step row by row where they were counted, and the power that is predicted."""
    rows = []
    for row in counted(answer):
        joules, seen = row["predicted_joules"], row["traced_step_joules"]
        power = f"{joules / row['predicted_seconds']:.0f}"
        rows.append(
            [row["id"], f"{joules:.0f}", f"{seen:.0f}", percent(joules / seen - 1, signed=True, digits=1), power]
        )
    return table(("energy of a step, J", "predicted", "measured", "error", "predicted mean W"), rows)


def power(answer: Answer) -> str:
    """Write the predicted mean power of the first row beside that of its trace, and what pauses can explain."""
    row = counted(answer)[0]
    seen = json.loads(TRACED.read_text(encoding="utf-8"))["energy"]
    predicted, measured = row["predicted_joules"] / row["predicted_seconds"], seen["joules"] / seen["seconds"]
    off = percent(predicted / measured - 1, signed=True, digits=1)
    covered, joules = (
        1e3 * seen["seconds"] / seen["steps"],
        percent(row["predicted_joules"] / seen["joules_per_step"] - 1),
    )
    whole = f"{seen['seconds']:.3f} s for {seen['steps']} steps of {row['id']}, {covered:.0f} ms a step"
    return f"{whole}: {predicted:.0f} W predicted, {measured:.0f} W measured ({off}, joules {joules})"


def counted(answer: Answer) -> list[dict[str, Any]]:
    """Return the rows whose joules were counted."""
    return [row for row in answer["rows"] if "predicted_joules" in row]


def error_of(row: str) -> Callable[[Answer], str]:
    """Make a writer of the error of one row."""
    return lambda answer: percent(_named(answer["rows"], "id", row)["error"], signed=True, digits=1)


def bias_of(*names: str) -> Callable[[Answer], str]:
    """Make a writer of the biases of groups whose names begin so."""

    def words(answer: Answer) -> str:
        found = [next(group for group in answer["groups"] if group["name"].startswith(name)) for name in names]
        *first, last = (percent(group["bias"], signed=True, digits=1) for group in found)
        return f"{', '.join(first)} and {last}" if first else last

    return words


def inside(answer: Answer) -> str:
    """Write the share of all rows whose measured time lies inside the interval."""
    return percent(sum(row["inside"] for row in answer["rows"]) / len(answer["rows"]), digits=1)


def far_off(answer: Answer) -> str:
    """Name the rows of FSDP iterations that are off by more than a fifth, the farthest first."""
    far = sorted((row for row in answer["rows"] if abs(row["error"]) > FAR), key=lambda row: -abs(row["error"]))
    told = []
    for row in far:
        tokens = f" with {row['sequence_length']:,.0f} tokens" if row["sequence_length"] > USUAL_TOKENS else ""
        job = f"{row['model'].upper()} on {row['gpus']:.0f} {row['group']}{tokens}"
        told.append(f"{job} {percent(row['error'], signed=True, digits=1)}")
    return "; ".join(told)


def waits(answer: Answer) -> str:
    """Write how long other ranks wait for a straggler, by axis."""
    point = _named(answer["points"], "name", "one GCD 20 % slow")
    data, y, z = (point[f"peers_{axis}_seconds"] for axis in ("data", "y", "z"))
    return f"{data:.2f} s on average for the data axis, {y:.3f} s for y and {z:.3f} s for z"


def _named(found: list[dict[str, Any]], key: str, name: str) -> dict[str, Any]:
    return next(one for one in found if one[key] == name)


DGX_CLOUD = tuple(f"dgxc-benchmarking repository, release {release}" for release in ("v25.02.01", "v24.11.1", "v25.04"))
SENTENCES: dict[str, tuple[str, Callable[[Answer], str]]] = {
    "one-h100-energy": ("one-h100", energy),
    "one-h100-power": ("one-h100", power),
    "one-h100-plain": ("one-h100", error_of("gpt-1b plain attention")),
    "one-h200-energy": ("one-h200", energy),
    "published-inside": ("published", inside),
    "dgxc-bias": ("published", bias_of(*DGX_CLOUD)),
    "nemo-long-bias": ("published", bias_of("NeMo repository docs, performance_long_sequence")),
    "offload-blocking-bias": ("offload", bias_of("polaris, blocking gradients")),
    "unseen-far": ("unseen-fsdp", far_off),
    "what-if-waits": ("what-if", waits),
}
"""Figures by name: whose answer they are made of, and how they are written."""
