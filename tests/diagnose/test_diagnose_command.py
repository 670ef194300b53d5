"""`fourfold diagnose` on traces as they are written, and on what strangers may hand it."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from tests.diagnose.observations import MODEL
from twin.cli import application
from twin.description.problems import DescriptionError
from twin.diagnose.diagnose import diagnose_trace
from twin.engine.report import as_json, report
from twin.engine.runs import write_run
from twin.engine.simulate import simulate
from twin.strategies import load_job

ROOT = Path(__file__).resolve().parents[2]
MEASURED = ROOT / "examples" / "runs" / "testbed" / "2x2x2x1-measured"


@pytest.fixture(scope="module")
def trace(tmp_path_factory) -> Path:
    """A simulated step of all ranks, with one that is slow, told as if it had been measured."""
    raw = {
        "model": MODEL,
        "machine": "frontier",
        "ranks": 16,
        "batch": {"sequences": 64, "micro_sequences": 4},
        "grid": {"data": 2, "z": 2, "y": 2, "x": 2},
        "slowest_device": False,
    }
    slow = simulate(load_job({**raw, "stragglers": [{"rank": 9, "slowdown": 1.5}]}))
    healthy = load_job(raw)
    path = tmp_path_factory.mktemp("diagnose") / "trace"
    figures = as_json(slow, report(slow), 0.0)
    write_run(path, slow, figures, list(range(16)), overwrite=False)
    edit(path, lambda m: m.update(kind="measured", job=healthy.model_dump(mode="json", by_alias=True)))
    (path / "classes.parquet").unlink()
    return path


def edit(path: Path, change: Any) -> None:
    """Change a manifest."""
    manifest = json.loads((path / "manifest.json").read_text())
    change(manifest)
    (path / "manifest.json").write_text(json.dumps(manifest))


def run(*arguments: str) -> Any:
    return CliRunner().invoke(application(), ["diagnose", *arguments])


def test_the_slow_rank_of_a_trace_is_named(trace):
    answer = run(str(trace), "--json")
    assert answer.exit_code == 0, answer.output
    found = json.loads(answer.stdout)
    assert [(each["kind"], each["ranks"]) for each in found["findings"]] == [("device", [9])]
    assert found["findings"][0]["slowdown"] == pytest.approx(1.5, rel=0.01)
    assert found["findings"][0]["saved_share"] > 0
    assert not found["healthy"]
    assert "rank 9" in run(str(trace)).stdout


def test_the_same_trace_gives_the_same_words(trace):
    assert run(str(trace), "--json").stdout == run(str(trace), "--json").stdout


def test_a_check_fails_where_something_is_found(trace):
    assert run(str(trace), "--check").exit_code == 1
    assert run(str(MEASURED), "--check").exit_code == 0


def test_a_healthy_recording_is_let_alone():
    answer = run(str(MEASURED))
    assert answer.exit_code == 0
    assert "nothing found" in answer.stdout
    assert "times as long as the twin says" in answer.stdout, "nothing found is not all that there is to say"
    assert "assumed" in answer.stdout, "its machine was not calibrated, which limits what can be said"


@pytest.mark.full
def test_a_trace_that_is_far_too_slow_is_not_called_healthy(tmp_path: Path) -> None:
    """A NIC at a tenth of its rate; whose it is among eight hosts cannot be told, for all groups cross all of them."""
    raw = {
        "model": "gpt-5b",
        "machine": "dgx-h100",
        "ranks": 64,
        "grid": {"data": 8, "z": 8},
        "batch": {"sequences": 128, "micro_sequences": 2},
        "slowest_device": False,
    }
    simulation = simulate(load_job({**raw, "degraded": [{"node": 3, "nic": 2, "rate": 0.1}]}))
    figures = as_json(simulation, report(simulation), 0.0)
    write_run(tmp_path / "trace", simulation, figures, list(range(64)), overwrite=False)
    answer = run(str(tmp_path / "trace"), "--check")
    assert answer.exit_code == 1
    assert "not located: a step takes 3." in answer.stdout
    assert "nothing found" not in answer.stdout


def test_a_reference_must_be_of_the_same_job_and_hosts(trace, tmp_path):
    with pytest.raises(DescriptionError, match="another job"):
        diagnose_trace(trace, reference=MEASURED)
    other = tmp_path / "trace"
    shutil.copytree(trace, other)
    edit(other, lambda m: m.update(hosts={"names": ["a", "b"], "of_rank": [0] * 8 + [1] * 8}))
    with pytest.raises(DescriptionError, match="other hosts"):
        diagnose_trace(trace, reference=other)
    found, _ = diagnose_trace(trace, reference=trace)
    assert found.healthy, "nothing changed since"


def test_a_trace_that_lacks_ranks_is_refused(tmp_path):
    job = load_job(
        {
            "model": MODEL,
            "machine": "frontier",
            "ranks": 16,
            "grid": {"data": 2, "z": 2, "y": 2, "x": 2},
            "batch": {"sequences": 64, "micro_sequences": 4},
        }
    )
    simulation = simulate(job)
    write_run(tmp_path / "some", simulation, as_json(simulation, report(simulation), 0.0), [0, 3], overwrite=False)
    with pytest.raises(DescriptionError, match="2 of the job's 16 ranks"):
        diagnose_trace(tmp_path / "some")


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("hosts", 5),
        ("hosts", {"names": ["a"], "of_rank": [0] * 15}),
        ("hosts", {"names": ["a"], "of_rank": [1] * 16}),
        ("hosts", {"names": "abc", "of_rank": [0] * 16}),
        ("loading_ns", []),
        ("loading_ns", {"0": [-1] * 16}),
        ("loading_ns", {"0": ["1"] * 16}),
        ("loading_ns", {}),
        ("probe", {}),
        ("probe", {"bytes": 0, "rounds": []}),
        ("probe", {"bytes": 8, "rounds": [{"hops": 1, "seconds": [0.1]}]}),
        ("probe", {"bytes": 8, "rounds": [{"hops": 1, "seconds": [0.1, float("nan")]}]}),
        ("probe", {"bytes": 10**40, "rounds": [{"hops": 1, "seconds": [0.1, 0.1]}]}),
        ("probe", "x"),
    ],
)
def test_what_makes_no_sense_is_refused_by_name(trace, tmp_path, key, value):
    path = tmp_path / "trace"
    shutil.copytree(trace, path)
    edit(path, lambda manifest: manifest.update({key: value}))
    with pytest.raises(DescriptionError) as caught:
        diagnose_trace(path)
    assert key in str(caught.value) or "manifest" in str(caught.value)


@pytest.mark.parametrize(
    "arguments",
    [
        ("/nowhere",),
        (str(ROOT / "README.md"),),
        (str(MEASURED), "--machine", "moon"),
        (str(MEASURED), "--reference", "/nowhere"),
    ],
)
def test_bad_input_is_a_description_error(arguments):
    answer = run(*arguments)
    assert isinstance(answer.exception, DescriptionError | SystemExit)
    assert answer.exit_code != 0
