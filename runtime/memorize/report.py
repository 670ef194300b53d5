"""What a study found: files, one page, and a table on the terminal."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from runtime.memorize.directory import TABLES
from runtime.memorize.figures import pictures
from runtime.memorize.run import StudyRun
from runtime.memorize.study import RANDOM, prefix_of
from runtime.memorize.summary import Row, Spread, rows_of
from twin.description.files import write_whole
from twin.pages.shell import filled

HEAD = (
    "mask",
    "k",
    "repeats",
    "exact match",
    "tokens right",
    "common subsequence",
    "right before error",
    "before drop",
    "errors at drops",
    "loss",
)
"""Columns of the table; the model stands before them if there are several."""
DEFINITIONS = (
    ("exact match", "share of texts whose suffix the model writes without an error"),
    ("tokens right", "share of the suffix's tokens at their place"),
    ("common subsequence", "longest common subsequence of tokens over the suffix (RougeL on tokens)"),
    ("right before error", "mean number of right tokens before the first error"),
    ("before drop", "mean number of tokens before the first that never counted; in brackets by a closed form"),
    ("errors at drops", "share of first errors at a token that never counted in training"),
)


@dataclass(frozen=True)
class Report:
    """A study, ready to be shown."""

    run: StudyRun
    rows: Sequence[Row]
    seconds: float

    @property
    def facts(self) -> list[tuple[str, str]]:
        """What a reader must know: (what, value)."""
        study = self.run.loaded.study
        jobs = self.run.jobs
        texts = study.texts
        sequence = next(iter(jobs.values())).model.sequence
        shift = f", every other time {texts.shift} tokens later" if texts.shift else ""
        names = [f"{name} ({job.model.parameters / 1e6:.2f} M)".strip() for name, job in jobs.items()]
        if list(jobs) == [""]:
            names = [f"{job.model.parameters / 1e6:.2f} M parameters" for job in jobs.values()]
        job = next(iter(jobs.values()))
        return [
            ("model", ", ".join(names)),
            ("text", f"{texts.source}, {'drawn from the seed' if texts.source == RANDOM else texts.tokenizer}"),
            ("asked", f"{prefix_of(texts, sequence)} tokens given, {texts.suffix} to be written, greedily"),
            ("texts", ", ".join(f"{n} × {times} times" for times, n in sorted(texts.repeats.items())) + shift),
            (
                "steps",
                f"{job.train.steps} of {job.batch.sequences} sequences, {texts.background_steps} of other text first",
            ),
            ("h", str(study.h)),
            ("seeds", str(study.seeds)),
        ]

    def as_json(self) -> dict[str, Any]:
        """Return what `--json` prints and results.json holds."""
        return {
            "title": self.run.loaded.title,
            "directory": str(self.run.directory),
            "facts": dict(self.facts),
            "definitions": dict(DEFINITIONS),
            "trainings": len(self.run.cells),
            "trained": self.run.trained,
            "rows": [row.as_json() for row in self.rows],
        }


def report_of(run: StudyRun, seconds: float) -> Report:
    """Judge a study."""
    return Report(run, rows_of(run.cells, run.done, run.loaded.study.texts.suffix), seconds)


def write(report: Report, directory: Path) -> None:
    """Write results, tables and the page, each whole."""
    results, cells, texts, page = TABLES
    write_whole(directory / results, json.dumps(report.as_json(), indent=1, ensure_ascii=False, allow_nan=False) + "\n")
    write_whole(directory / cells, _csv([_flat(row) for row in report.rows]))
    write_whole(
        directory / texts, _csv([line for _, one in sorted(report.run.done.items()) for line in _of_texts(one)])
    )
    write_whole(directory / page, _page(report))


def show(report: Report, *, as_json: bool) -> None:
    """Print the table, or one JSON object."""
    if as_json:
        print(json.dumps(report.as_json(), indent=2, ensure_ascii=False, allow_nan=False))  # noqa: T201
        return
    run = report.run
    console = Console(width=None if sys.stdout.isatty() else 140, highlight=False)
    console.print(f"[bold]{escape(run.loaded.title)}[/]")
    for name, value in report.facts:
        console.print(f"[dim]{name}:[/] {escape(value)}", soft_wrap=True)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    for name in head(report):
        table.add_column(name, justify="left" if name in {"model", "mask"} else "right")
    for row in report.rows:
        table.add_row(*map(escape, cells_of_row(report, row)), style="" if row.repeats else "dim")
    console.print("")
    console.print(table)
    earlier = len(run.cells) - run.trained
    before = f", {earlier} were there" if earlier else ""
    console.print(
        f"\n{run.trained} trainings{before}, {report.seconds:.1f} s. {escape(str(run.directory))}: {', '.join(TABLES)}",
        soft_wrap=True,
    )


def head(report: Report) -> list[str]:
    """Return the titles of the columns."""
    return [*(["model"] if len(report.run.jobs) > 1 else []), *HEAD]


def cells_of_row(report: Report, row: Row) -> list[str]:
    """Return a row's cells, for people."""
    expected = "" if row.expected_before_error is None else f" ({row.expected_before_error:.1f})"
    return [
        *([row.setting.model] if len(report.run.jobs) > 1 else []),
        row.setting.mask_name,
        row.setting.k_name,
        str(row.repeats) if row.repeats else "control",
        _spread(row.exact),
        f"{row.accuracy.mean:.3f}",
        f"{row.subsequence.mean:.3f}",
        f"{row.right_before_error.mean:.1f}",
        "" if row.right_before_drop is None else f"{row.right_before_drop:.1f}{expected}",
        "" if row.errors_at_drops is None else f"{row.errors_at_drops:.3f}",
        f"{row.loss:.4f}",
    ]


def _spread(value: Spread) -> str:
    return (
        f"{value.mean:.3f}" if value.least == value.most else f"{value.mean:.3f} [{value.least:.2f}–{value.most:.2f}]"
    )


def _flat(row: Row) -> dict[str, Any]:
    """Put a row into one line: the spread of a figure becomes three."""
    flat: dict[str, Any] = {}
    for key, value in row.as_json().items():
        flat |= {f"{key}_{name}": each for name, each in value.items()} if isinstance(value, Mapping) else {key: value}
    return flat


def _of_texts(training: Mapping[str, Any]) -> list[dict[str, Any]]:
    of_all = {key: training[key] for key in ("model", "mask", "k", "seed")}
    return [{**of_all, **text} for text in training["texts"]]


def _csv(lines: Sequence[Mapping[str, Any]]) -> str:
    text = io.StringIO()
    writer = csv.DictWriter(text, list(lines[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(lines)
    return text.getvalue()


def _page(report: Report) -> str:
    drawn = pictures(report.rows, report.run.loaded.study.texts.suffix)
    counted = {f"{row.setting.mask_name} {row.setting.k_name}": row.supervised_tokens for row in report.rows}
    shown = ", ".join(f"{name}: {tokens:,.0f}" for name, tokens in counted.items())
    return filled(
        "runtime.memorize",
        "page.html",
        title=report.run.loaded.title,
        facts=[*report.facts, ("targets that counted", shown)],
        data=[{"data": picture.data, "layout": picture.layout} for picture in drawn],
        plotly=True,
        drawn=drawn,
        definitions=DEFINITIONS,
        head=head(report),
        rows=[cells_of_row(report, row) for row in report.rows],
    )
