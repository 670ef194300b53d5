"""A search as a directory: candidates.parquet, ranking.json, search.html, best.yaml."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pyarrow.parquet as pq

from twin.search.across import Across, across_json
from twin.search.best import Given, job_text
from twin.search.fleet import Fleet, fleet_json, fleet_table
from twin.search.page import page, page_across
from twin.search.tables import entry_json, flat_table
from twin.trace.directory import written_whole

TABLE, RANKING, PAGE, BEST = "candidates.parquet", "ranking.json", "search.html", "best.yaml"


@contextmanager
def search_directory(directory: Path | None, *, overwrite: bool) -> Iterator[Path | None]:
    """Give a temporary place that becomes the directory at the end, whole or not at all.

    A place that cannot be written is refused before anything is searched; only a directory of a
    search is replaced. Without a directory there is nothing to write.
    """
    if directory is None:
        yield None
        return
    with written_whole(directory, RANKING, "search of Fourfold", overwrite=overwrite) as temporary:
        yield temporary


def write_across(directory: Path, found: Across, given: Given) -> None:
    """Write what a search over strategies found: its table and ranking, a page, and the winner's job."""
    answer = across_json(found)
    rows = [{"strategy": name} | entry_json(entry) for name, one in found.searches.items() for entry in one.entries]
    # options of one name may be of different kinds
    apart = [row | {"options": {row["strategy"]: row["options"]}} for row in rows]
    pq.write_table(flat_table(apart), directory / TABLE, compression="zstd")
    text = json.dumps(answer | {"ranking": rows}, indent=1, allow_nan=False, ensure_ascii=False)
    (directory / RANKING).write_text(text + "\n", encoding="utf-8")
    (directory / PAGE).write_text(page_across(found), encoding="utf-8")
    (directory / BEST).write_text(job_text(given, found.best.best.job), encoding="utf-8")


def write_fleet(directory: Path, fleet: Fleet, given: Given) -> None:
    """Write what a search found; the job is that of the number of ranks that is chosen."""
    chosen = fleet.chosen.found
    assert chosen is not None
    pq.write_table(fleet_table(fleet), directory / TABLE, compression="zstd")
    answer = fleet_json(fleet) | {"strategy": chosen.job.strategy, "left_open": list(given.fixed)}
    text = json.dumps(answer, indent=1, allow_nan=False, ensure_ascii=False)
    (directory / RANKING).write_text(text + "\n", encoding="utf-8")
    (directory / PAGE).write_text(page(fleet), encoding="utf-8")
    (directory / BEST).write_text(job_text(given, chosen.best.job), encoding="utf-8")
