"""Tables of figures that documents show: how numbers are written, and what the memorisation studies found."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Answer = dict[str, Any]


def percent(value: float, *, signed: bool = False, digits: int = 0) -> str:
    """Write a share as the documents do."""
    return f"{100 * value:{'+' if signed else ''}.{digits}f} %".replace("-", "−")


def table(head: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Write a table on lines of its own."""
    lines = [list(head), ["---"] * len(list(head)), *map(list, rows)]
    return "\n\n" + "".join(f"| {' | '.join(line)} |\n" for line in lines) + "\n"


def memorized(answer: Answer) -> str:
    """Write what was learnt by heart by each mask and k, and of the control."""
    rows = []
    controls = {(row["model"], row["mask"], row["k"]): row for row in answer["rows"] if not row["repeats"]}
    for row in answer["rows"]:
        if row["repeats"]:
            exact, beside = row["exact"], controls[row["model"], row["mask"], row["k"]]
            drops = row["errors_at_drops"]
            rows.append(
                [
                    f"{row['mask']}, {row['model']}" if row["model"] else row["mask"],
                    "∞" if row["k"] is None else str(row["k"]),
                    f"{exact['mean']:.3f} ({exact['least']:.2f}–{exact['most']:.2f})",
                    f"{row['accuracy']['mean']:.3f}",
                    f"{row['subsequence']['mean']:.3f}",
                    f"{row['right_before_error']['mean']:.1f}",
                    "" if row["right_before_drop"] is None else f"{row['right_before_drop']:.1f}",
                    "" if drops is None else f"{drops:.2f}",
                    f"{beside['exact']['mean']:.0f} / {beside['accuracy']['mean']:.3f}",
                ]
            )
    head = (
        "mask",
        "k",
        "exact match",
        "tokens right",
        "common subsequence",
        "right before error",
        "tokens before drop",
    )
    return table((*head, "first errors at drops", "control: exact / tokens"), rows)


def repeated(answer: Answer) -> str:
    """Write the share of texts that are repeated, a line for each model and mask, against how often they came."""
    lines = dict[tuple[str, str], list[str]]()
    times = sorted({row["repeats"] for row in answer["rows"]})
    for row in sorted(answer["rows"], key=lambda row: (row["k"] is not None, row["repeats"])):
        exact, tokens = row["exact"], row["accuracy"]["mean"]
        line = lines.setdefault((row["model"], "∞" if row["k"] is None else f"{row['k']}, {row['mask']}"), [])
        line.append(f"{exact['mean']:.3f} ({exact['least']:.2f}–{exact['most']:.2f}), {tokens:.3f}")
    head = ("model", "k", *(f"{n} times" if n else "control" for n in times))
    return table(head, [[model, k, *cells] for (model, k), cells in lines.items()])


def largest(answer: Answer) -> str:
    """Say which is the largest model of a study that trains, and how."""
    point = max(_done(answer), key=lambda point: (point["parameters"], -point["step_seconds"]))
    share = percent(point["hardware_percent_of_peak"] / 100)
    return f"{point['parameters'] / 1e9:.0f}e9 parameters of those shapes, {point['offload']}, at {share} of the peak"


def fastest(answer: Answer) -> str:
    """Say how the smallest model of a study trains fastest, and what the slowest of its places is to that."""
    least = min(point["parameters"] for point in _done(answer))
    best: dict[str, float] = {}
    for point in _done(answer):
        if point["parameters"] == least:
            best[point["offload"]] = min(point["step_seconds"], best.get(point["offload"], float("inf")))
    first, last = min(best, key=best.__getitem__), max(best, key=best.__getitem__)
    return (
        f"{first} ({least / 1e9:.1f}e9 parameters, {best[first]:.1f} s a step), "
        f"{best[last] / best[first]:.1f} times as fast as {last}"
    )


def _done(answer: Answer) -> list[Answer]:
    return [point for point in answer["points"] if point["status"] == "done"]
