"""Watching a run: sums over ranks are those of its trace, alerts come and go, training is not changed."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from dashboards.catalog import Catalog
from dashboards.training.happenings import happenings_of
from dashboards.training.record import Record
from runtime.launch.environment import Process
from runtime.parallel.mesh import Mesh
from runtime.records.console import Display
from runtime.strategies.four_d.context import FourDContext
from runtime.watch.lookout import ALERTS, LATEST, Lookout, put_together
from runtime.watch.wanted import WatchWanted
from tests.runtime import runs
from tests.tiers import makes
from twin.compare.side import read_side
from twin.diagnose.diagnose import expectation
from twin.diagnose.observed import from_side
from twin.diagnose.watch import Watcher
from twin.strategies import load_job
from twin.strategies.four_d.grid import Grid
from twin.trace.store import read_trace

GRID = {"data": 1, "z": 2, "y": 2, "x": 1}


@pytest.fixture(scope="module")
@makes("process")
def folder(tmp_path_factory) -> Path:
    """One run that is watched and traced, and the same without."""
    place = tmp_path_factory.mktemp("watch")
    job = runs.write_job(place, grid=GRID, ranks=4, train={"steps": 14})
    watched = runs.train(
        job,
        "--ranks",
        "4",
        "--out",
        str(place / "a"),
        "--watch",
        "10",
        "--trace",
        str(place / "trace"),
        "--trace-steps",
        "2-4",
    )
    assert watched.returncode == 0, watched.stderr
    plain = runs.train(job, "--ranks", "4", "--out", str(place / "b"))
    assert plain.returncode == 0, plain.stderr
    return place


def test_watching_changes_no_result(folder):
    assert runs.losses(folder / "a") == runs.losses(folder / "b")


def test_the_latest_look_is_written_for_the_dashboard(folder):
    latest = json.loads((folder / "a" / LATEST).read_text())
    assert latest["after_steps"] == 13
    assert latest["steps"] == 3
    assert len(latest["figures"]["compute_seconds"]) == 4
    assert min(latest["figures"]["compute_seconds"]) > 0
    assert {"transfer_z_seconds", "peers_y_seconds", "loading_seconds"} <= set(latest["figures"])
    assert load_job(latest["job"]).concrete_grid == Grid(**GRID)


def test_sums_of_ranks_are_those_of_the_trace(folder, pool):
    """Each rank sees only what it noted itself, by a clock of its own."""
    trace = read_trace(folder / "trace")
    rows = trace.events.to_pylist()
    answers = pool.run("tests.runtime.watch.watch_tasks:summary", 4, grid=GRID, rows=rows)
    window = put_together(answers)
    observed = from_side(read_side(folder / "trace", "trace"), load_job(trace.manifest["job"]))
    np.testing.assert_allclose(window["compute"], observed.compute, rtol=1e-9)
    np.testing.assert_allclose(window["step_seconds"], observed.step_seconds, rtol=1e-9)
    assert set(window["transfer"]) == set(observed.axes) == {"z", "y"}
    for axis in observed.axes:
        np.testing.assert_allclose(window["transfer"][axis], observed.transfer[axis], atol=2e-9 * len(rows))
    loading = [[(step + rank) * 1e-6 for rank in range(4)] for step in (2, 3, 4)]
    np.testing.assert_allclose(window["loading"], loading)


def test_a_trace_has_its_hosts_and_how_long_data_took(folder):
    manifest = read_trace(folder / "trace").manifest
    assert manifest["hosts"]["of_rank"] == [0, 0, 0, 0]
    assert set(manifest["loading_ns"]) == {"2", "3", "4"}
    assert all(len(row) == 4 and min(row) > 0 for row in manifest["loading_ns"].values())
    assert "probe" not in manifest, "one host has no links to probe"


def finding(text: str) -> dict[str, Any]:
    return {"kind": "device", "where": text, "text": text, "confidence": 0.999}


def answer(*texts: str) -> dict[str, Any]:
    return {
        "healthy": not texts,
        "findings": [finding(t) for t in texts],
        "step_seconds": 1.0,
        "expected_step_seconds": 1.0,
    }


class Said(Display):
    """Keeps what would be shown."""

    def __init__(self) -> None:
        super().__init__(shown=False, steps=1, start=0)
        self.said: list[str] = []

    def say(self, text: str) -> None:
        self.said.append(text)

    def warn(self, text: str) -> None:
        self.said.append(f"warning: {text}")


def lookout(tmp_path: Path, answers: list[Any]) -> tuple[Lookout, Said]:
    """A lookout of one rank that is answered so, one window after the other."""
    job = load_job(
        {
            "model": {"layers": 1, "hidden": 32, "heads": 4, "sequence": 16, "vocabulary": 64},
            "machine": "laptop",
            "ranks": 1,
            "grid": {},
            "batch": {"sequences": 1},
        }
    )
    left, said = iter(answers), Said()

    def ask(_window: Any) -> dict[str, Any]:
        found = next(left)
        if isinstance(found, Exception):
            raise found
        return found

    context = FourDContext.of_job(job, Mesh.alone(Grid()), torch.device("cpu"))
    return Lookout(context, Process(), tmp_path, WatchWanted(10, lambda _job: ask), said), said


def looked(watch: Lookout, windows: int) -> None:
    for step in range(10 * windows + 4):
        watch.before(step)
        watch.loaded(step)
        watch.after(step)
        if step > 10 and step % 10 == 5:
            watch.close()


def test_alerts_come_when_seen_twice_and_go_once(tmp_path):
    answers = [answer(), answer("rank 2"), answer("rank 2"), answer("rank 2"), answer(), answer("rank 1"), answer()]
    watch, said = lookout(tmp_path, answers)
    looked(watch, 7)
    watch.close()
    assert said.said == ["warning: watch: rank 2 (confidence 99.9 %)", "watch: it is over: rank 2"]
    lines = [json.loads(line) for line in (tmp_path / ALERTS).read_text().splitlines()]
    assert [(each["after_steps"], each["healthy"]) for each in lines] == [(33, False), (43, False), (53, True)]
    (tmp_path / "run.json").write_text("{}")
    catalog = Catalog(tmp_path)
    told = happenings_of(catalog, catalog.entries()[0], Record())  # the dashboard reads what is written here
    assert [(one.after_steps, one.what, one.words) for one in told] == [
        (33, "warning", "rank 2"),
        (53, "warning over", "rank 2"),
    ]


def test_steps_that_are_far_too_long_for_no_known_reason_are_an_alert(tmp_path):
    """They were written down as healthy, and the first such look became what later ones were compared with."""
    longer = {"text": "a step takes 3 times as long", "slowdown": 3.0, "seconds_per_step": 2.0, "assumed": False}
    ill, guessed = answer() | {"not_located": longer}, answer() | {"not_located": longer | {"assumed": True}}
    unknown = answer("axis z") | {"judged": False, "not_located": None}  # what it leaves is not known: nothing is over
    watch, said = lookout(tmp_path, [ill, ill, unknown, ill, guessed, guessed])
    looked(watch, 6)
    watch.close()
    assert [text.partition(": ")[2].partition(";")[0] for text in said.said] == [
        "watch: a step takes 3 times as long",
        "it is over: steps are no longer than they should be, or it is known why",
    ]
    lines = [json.loads(line) for line in (tmp_path / ALERTS).read_text().splitlines()]
    assert [each["healthy"] for each in lines] == [False, False, False, True]
    (tmp_path / "run.json").write_text("{}")
    catalog = Catalog(tmp_path)
    told = happenings_of(catalog, catalog.entries()[0], Record())
    assert [(one.what, one.words) for one in told] == [
        ("warning", "a step takes 3 times as long"),
        ("warning over", "a step takes 3 times as long"),
    ]


def test_a_look_that_is_far_too_slow_is_no_reference():
    job = load_job(
        {
            "model": {"layers": 2, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 512},
            "machine": "perlmutter",
            "ranks": 8,
            "grid": {"z": 8},
            "batch": {"sequences": 8, "micro_sequences": 1},
        }
    )
    should = expectation(job)
    window = {
        "step_seconds": [3 * should.step_seconds] * 8,
        "compute": [should.compute.tolist()] * 8,
        "transfer": {axis: [part.tolist()] * 8 for axis, part in should.transfer.items()},
        "waited": {axis: [[0.0] * 8] * 8 for axis in should.transfer},
        "loading": [[0.0] * 8] * 8,
        "steps": list(range(8)),
        "hosts": {"names": ["a", "b"], "of_rank": [0, 0, 0, 0, 1, 1, 1, 1]},
        "probe": None,
    }
    ask = Watcher(job)
    looks = [ask(window) for _ in range(3)]
    assert [look["healthy"] for look in looks] == [False] * 3
    assert all("3 times as long" in look["not_located"]["text"] for look in looks)


def test_what_was_seen_once_is_a_suspicion(tmp_path):
    watch, _ = lookout(tmp_path, [answer("rank 2")])
    looked(watch, 1)
    watch.close()  # it has answered
    latest = json.loads((tmp_path / LATEST).read_text())
    assert latest["findings"] == []
    assert latest["suspected"] == ["rank 2"]
    assert latest["healthy"]


def test_a_run_that_is_too_short_to_be_looked_at_says_so(tmp_path):
    watch, said = lookout(tmp_path, [])
    watch.before(0)
    watch.after(0)
    watch.close()
    assert "ended before there was a look" in said.said[0]


def test_an_answer_that_fails_does_not_end_training(tmp_path):
    watch, said = lookout(tmp_path, [ValueError("no such luck"), answer("rank 1"), answer("rank 1")])
    looked(watch, 3)
    watch.close()
    assert said.said[0] == "warning: watch: no diagnosis after step 13 (ValueError: no such luck)"
    assert len(said.said) == 2


def test_a_directory_that_cannot_be_written_does_not_end_training(tmp_path):
    (tmp_path / ALERTS).mkdir()
    (tmp_path / LATEST).mkdir()
    watch, said = lookout(tmp_path, [answer("rank 1"), answer("rank 1")])
    looked(watch, 2)
    watch.close()
    assert sum("cannot be written" in text for text in said.said) == 3
