"""Traces to be diagnosed, and the alert files of watched runs, as strangers may have them."""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import strategies as st

from tests.fuzz.harness import cases, fuzz, guarded, survives
from tests.fuzz.mutations import as_json, mutated, texts
from tests.fuzz.test_fuzz_runs import tables, without_digests
from twin.diagnose.diagnose import diagnose_trace

pytest.importorskip("dash", reason="the dashboard is not installed")

import pyarrow as pa
import pyarrow.parquet as pq

from dashboards.app import content
from dashboards.catalog import Catalog
from dashboards.page import PageContext
from dashboards.pages import PAGES
from dashboards.settings import Settings
from tests.fuzz.test_fuzz_dashboard import CODE

MEASURED = Path(__file__).parents[2] / "examples/runs/testbed/2x2x2x1-measured"
PROBE = {"bytes": 1 << 20, "rounds": [{"hops": hops, "seconds": [1e-3] * 8} for hops in range(1, 8)]}


@pytest.fixture
def run(tmp_path: Path) -> Path:
    shutil.copytree(MEASURED, tmp_path / "run")
    return tmp_path / "run"


def head(run: Path) -> dict[str, Any]:
    """A manifest with all that a diagnosis reads."""
    found = without_digests(run)
    hosts = {"of_rank": list(range(8)), "names": [f"host{i}" for i in range(8)]}
    return {**found, "probe": PROBE, "hosts": found.get("hosts", hosts), "loading_ns": {"0": [1000] * 8}}


def diagnosed(trace: Path, reference: Path | None = None) -> dict[str, Any]:
    """What `fourfold diagnose --json` prints."""
    found, _ = diagnose_trace(trace, None, reference)
    return found.as_json()


@cases(10, 400)
def test_manifests(count: int, run: Path) -> None:
    def check(text: bytes) -> None:
        (run / "manifest.json").write_bytes(text)
        survives(partial(diagnosed, run))
        survives(partial(diagnosed, MEASURED, run))

    fuzz(count, texts(head(run), as_json), check)


@cases(10, 300)
def test_tables(count: int, run: Path) -> None:
    whole = pq.read_table(run / "events.parquet")
    (run / "manifest.json").write_bytes(as_json(head(run)))

    def check(changed: pa.Table) -> None:
        try:
            pq.write_table(changed, run / "events.parquet")
        except pa.ArrowException:
            return
        survives(partial(diagnosed, run))
        survives(partial(diagnosed, MEASURED, run))

    fuzz(count, tables(whole), check)


WATCH = {
    "after_steps": 100,
    "healthy": False,
    "steps": 3,
    "ranks": 8,
    "step_seconds": 0.5,
    "expected_step_seconds": 0.4,
    "notes": ["a note"],
    "findings": [
        {
            "kind": "device",
            "where": "rank 3",
            "ranks": [3],
            "axis": "z",
            "hosts": [1],
            "seconds": 0.1,
            "excess": 0.2,
            "confidence": 0.99,
            "text": "rank 3 is slow",
            "evidence": "its compute takes longer",
            "saved_share": 0.1,
        }
    ],
}


@cases(15, 400)
def test_alerts_on_the_dashboard(count: int, tmp_path: Path) -> None:
    folder = tmp_path / "runs" / "watched"
    folder.mkdir(parents=True)
    job = json.loads((MEASURED / "manifest.json").read_bytes())["job"]

    def check(case: tuple[bytes, int]) -> None:
        text, number = case
        (folder / "watch.json").write_bytes(text)
        context = PageContext(Settings(tmp_path / "runs", token=""), Catalog(tmp_path / "runs"))
        names = [entry.name for entry in context.catalog.entries()]
        query = dict.fromkeys(("run", "other"), names[0]) if names else {}
        with guarded(readable=(tmp_path / "runs", *CODE)):
            for page in (PAGES[0], PAGES[number]):
                content(page, context, query)

    heads = st.one_of(texts({**WATCH, "job": job}, as_json), mutated({**WATCH, "job": job}, 1).map(as_json))
    fuzz(count, st.tuples(heads, st.integers(0, len(PAGES) - 1)), check)
