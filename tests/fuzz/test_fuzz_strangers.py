"""Runs, searches and studies that strangers put under the dashboard's directory."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.fuzz.harness import cases, fuzz, guarded, survives
from tests.fuzz.mutations import as_json, damaged, mutated, texts

pytest.importorskip("dash", reason="the dashboard is not installed")

from dashboards.app import content
from dashboards.catalog import Catalog
from dashboards.page import Page, PageContext
from dashboards.pages import PAGES
from dashboards.settings import Settings
from dashboards.whatif.base import EXAMPLE, base_of
from tests.fuzz.test_fuzz_dashboard import CODE, EXAMPLES

ANY_PAGE = st.sampled_from(PAGES)
HEADS = [("gpt-5b-search", "ranking.json"), ("weak-scaling", "study.json"), ("gpt-320b-frontier", "manifest.json")]
TABLES = [
    ("gpt-5b-search", "candidates.parquet"),
    ("weak-scaling", "points.parquet"),
    ("gpt-320b-frontier", "classes.parquet"),
]


def show_some(place: Path, page: Page) -> None:
    """Open the list of runs, and a page for the one entry under a directory."""
    context = PageContext(Settings(place, token=""), Catalog(place))
    entries = context.catalog.entries()
    query = {key: entry.name for entry in entries[:1] for key in ("run", "other")}
    with guarded(readable=(place, *CODE)):
        for one in (PAGES[0], page):
            content(one, context, query)


@cases(30, 800)
def test_heads_of_strangers(count: int, tmp_path: Path) -> None:
    originals = [json.loads((EXAMPLES / folder / name).read_bytes()) for folder, name in HEADS]
    originals[2].pop("sha256", None)
    for folder, _ in HEADS:
        (tmp_path / folder).mkdir()
        shutil.copytree(EXAMPLES / folder, tmp_path / folder / "it")

    def check(case: tuple[int, bytes, Page]) -> None:
        which, text, page = case
        folder, name = HEADS[which]
        (tmp_path / folder / "it" / name).write_bytes(text)
        show_some(tmp_path / folder, page)

    fuzz(
        count, st.integers(0, 2).flatmap(lambda n: st.tuples(st.just(n), texts(originals[n], as_json), ANY_PAGE)), check
    )


@cases(20, 500)
def test_tables_of_strangers(count: int, tmp_path: Path) -> None:
    for folder, _ in TABLES:
        (tmp_path / folder).mkdir()
        shutil.copytree(EXAMPLES / folder, tmp_path / folder / "it")
    manifest = tmp_path / "gpt-320b-frontier" / "it" / "manifest.json"
    manifest.write_text(json.dumps({k: v for k, v in json.loads(manifest.read_bytes()).items() if k != "sha256"}))

    def check(case: tuple[int, bytes, Page]) -> None:
        which, content_of, page = case
        folder, name = TABLES[which]
        (tmp_path / folder / "it" / name).write_bytes(content_of)
        show_some(tmp_path / folder, page)

    whole = [(EXAMPLES / folder / name).read_bytes() for folder, name in TABLES]
    fuzz(count, st.integers(0, 2).flatmap(lambda n: st.tuples(st.just(n), damaged(whole[n]), ANY_PAGE)), check)


@cases(10, 200)
def test_jobs_of_strangers_open_no_file(count: int, tmp_path: Path) -> None:
    """A run whose job names files: none of them is opened."""
    bait = tmp_path / "bait.yaml"
    bait.write_text("extends: frontier\n")
    run = tmp_path / "runs" / "it"
    shutil.copytree(EXAMPLES / "gpt-320b-frontier", run)
    head = {k: v for k, v in json.loads((run / "manifest.json").read_bytes()).items() if k != "sha256"}
    machines = st.sampled_from(
        [
            str(bait),
            {"extends": str(bait)},
            "../../bait.yaml",
            {"extends": "frontier", "device": str(bait)},
            {"extends": "frontier", "libraries": {"rccl": str(bait)}},
            {"extends": {"extends": str(bait)}},
            [str(bait)],
        ]
    )
    allowed = tuple(p for p in CODE if not tmp_path.is_relative_to(p))

    def check(job: Any) -> None:
        (run / "manifest.json").write_text(json.dumps({**head, "job": job}))
        context = PageContext(Settings(tmp_path / "runs", token=""), Catalog(tmp_path / "runs"))
        name = context.catalog.entries()[0].name
        survives(lambda: base_of(context.catalog, name), readable=(tmp_path / "runs", *allowed))

    jobs = st.builds(
        lambda machine, job: {**job, "machine": machine} if isinstance(job, dict) else job,
        machines,
        st.one_of(st.just(EXAMPLE), mutated(EXAMPLE)),
    )
    fuzz(count, jobs, check)
    assert bait.exists()
