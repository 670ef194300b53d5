"""Figures that `fourfold validate` prints of measured rows: errors by source, and what no strategy expresses."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from statistics import fmean, median
from typing import Any

from tools.figure_tables import Answer, percent, table

MIB, GB = 2**20, 1e9
FEW_ROWS = 3
"""A source with fewer is not weighed."""
UNKNOWN = re.compile(r"machine '([^']+)' is not known")


def iterations(answer: Answer) -> str:
    """Write the errors of a table of iterations; a constant chosen from one row says nothing."""
    short = short_names([group["name"] for group in answer["groups"]])
    rows = [
        [
            "64 and 256 GPUs" if group["name"] == "multi-node" else short[group["name"]],
            str(group["count"]),
            percent(group["mean"], digits=1),
            percent(group["median"], digits=1),
            percent(group["p90"], digits=1),
            percent(group["bias"], signed=True, digits=1),
            percent(group["inside"]),
            percent(group["constant_mfu_mean"], digits=1) if group["count"] > 1 else "",
        ]
        for group in answer["groups"]
    ]
    head = ("rows", "count", "mean error", "median", "90 % below", "bias", "in interval", "mean error of one MFU")
    return table(head, rows)


def short_names(names: Sequence[str]) -> dict[str, str]:
    """Leave out what is in parentheses and behind them, but where names are alike without it: of these what differs."""
    alike: dict[str, list[str]] = {}
    for name in names:
        alike.setdefault(name.split(" (")[0], []).append(name)
    found = {}
    for short, several in alike.items():
        parts = [name.removeprefix(short).removeprefix(" (").partition(")") for name in several]
        same = len({inside for inside, _, _ in parts}) == 1
        told = [behind.lstrip(",; ").split(" and ")[0] if same else inside for inside, _, behind in parts]
        if len(several) == 1:
            found[several[0]] = short
        elif all(told) and len(set(told)) == len(told):
            found.update((name, f"{short}: {more}") for name, more in zip(several, told, strict=True))
        else:
            found.update((name, name) for name in several)
    return found


def memory(answer: Answer) -> str:
    """Write peaks of memory, the twin's beside an allocator's, in GB."""
    return _beside("peak memory, GB", answer["pieces"], lambda size: f"{size / GB:.2f}")


def steps(answer: Answer) -> str:
    """Write steps row by row, in milliseconds."""
    return _beside("step, ms", answer["rows"], lambda seconds: f"{1e3 * seconds:.0f}")


def _beside(heading: str, entries: list[dict[str, Any]], written: Callable[[float], str]) -> str:
    rows = []
    for each in entries:
        both = (written(each[which]) for which in ("predicted", "measured"))
        rows.append([each["id"], *both, percent(each["error"], signed=True, digits=1)])
    return table((heading, "predicted", "measured", "error"), rows)


def first_mean(answer: Answer) -> str:
    """Write the mean error of the first group."""
    return percent(answer["groups"][0]["mean"], digits=1)


def calibrated_mean(answer: Answer) -> str:
    """Write the mean error on a machine that was measured by itself."""
    (group,) = (group for group in answer["groups"] if "calibrated" in group["name"])
    return percent(group["mean"], digits=1)


def largest_of_memory(answer: Answer) -> str:
    """Write the largest error of peaks of memory."""
    return percent(max(abs(piece["error"]) for piece in answer["pieces"]), digits=1)


def collectives(answer: Answer) -> str:
    """Write the errors of measured collectives, by table, kind and size."""
    rows = []
    for group in sorted(answer["groups"], key=lambda group: str(group["name"])):
        where, span, size = group["name"].split(", ")
        machine, kind, library = where.split()
        errors = (percent(group[key]) for key in ("median", "p90"))
        bias = percent(group["bias"], signed=True)
        rows.append([machine, f"{kind}, {library}, {span}", size, str(group["count"]), *errors, bias])
    return table(("table", "collective", "message", "rows", "median error", "90 % below", "bias"), rows)


def collectives_kept(answer: Answer) -> str:
    """Write how many pairs of machine and kind keep what was wanted: the median from 4 MiB on, the bias from 64 MiB."""
    pairs = dict[str, list[tuple[float, float]]]()
    for row in answer["rows"]:
        if row["bytes"] >= 4 * MIB:
            pairs.setdefault(row["group"].rpartition(", ")[0], []).append((row["bytes"], row["error"]))
    medians = [median(abs(error) for _, error in found) for found in pairs.values()]
    large = [[error for size, error in found if size >= 64 * MIB] for found in pairs.values()]
    biases = [abs(fmean(errors)) for errors in large if errors]
    near, even = sum(m <= 0.15 for m in medians), sum(b <= 0.05 for b in biases)
    return (
        f"Of {len(medians)} pairs of machine and kind, inside a node and between nodes, {near} have a median error of "
        f"15 % or less from 4 MiB on, and {even} of {len(biases)} a bias within ±5 % from 64 MiB on."
    )


def over_rows(answer: Answer) -> str:
    """Write the mean error of all rows, and their bias."""
    errors = [row["error"] for row in answer["rows"]]
    bias = percent(fmean(errors), signed=True, digits=1)
    return f"{percent(fmean(map(abs, errors)), digits=1)} (bias {bias})"


def by_source(answer: Answer) -> str:
    """Write the mean error over sources of three rows or more, each weighed once."""
    means = [group["mean"] for group in answer["groups"] if group["count"] >= FEW_ROWS]
    return percent(sum(means) / len(means), digits=1)


def unseen(answer: Answer) -> str:
    """Write how many rows of each device there are, and their mean errors."""
    words = [f"{group['count']} on {group['name']}: {percent(group['mean'], digits=1)}" for group in answer["groups"]]
    return ", ".join(words)


def pieces(answer: Answer) -> str:
    """Write the errors of figures that are no iteration's time, by kind and source."""
    errors = dict[tuple[str, str], list[float]]()
    for piece in answer["pieces"]:
        errors.setdefault((piece["kind"], piece["source"]), []).append(piece["error"])
    rows = []
    for (kind, source), found in errors.items():
        sizes = sorted(map(abs, found))
        mean, bias = sum(sizes) / len(sizes), sum(found) / len(found)
        shown = (percent(mean, digits=1), percent(sizes[-1], digits=1), percent(bias, signed=True, digits=1))
        rows.append([kind.replace("_", " "), source, str(len(found)), *shown])
    return table(("of", "source", "rows", "mean error", "largest", "bias"), rows)


def left_out(answer: Answer) -> str:
    """Write how many rows are told apart, and why the others are not, most frequent first."""
    reasons = sorted(answer["skipped"].items(), key=lambda one: -one[1])
    count = sum(answer["skipped"].values())
    if not count:
        return f"all {len(answer['rows'])} rows expressed"
    machines = [(found[1], number) for reason, number in reasons if (found := UNKNOWN.match(reason))]
    said = [f"{reason} ({number})" for reason, number in reasons if not UNKNOWN.match(reason)]
    if machines:
        said.append("machines that are not described: " + ", ".join(f"{name} ({number})" for name, number in machines))
    told = f"{count + len(answer['rows'])} rows, {len(answer['rows'])} of them expressed; not the others: "
    return told + "; ".join(said)
