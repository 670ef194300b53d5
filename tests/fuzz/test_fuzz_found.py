"""What fuzzing has found, each once by hand: it was a traceback, or a message that nobody could read."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.compare.compare_traces import by_hand_measured, by_hand_predicted, table, write
from twin.compare.compare import compare
from twin.description.problems import DescriptionError
from twin.description.strict_yaml import parse_yaml
from twin.schedule.recording import read_recording
from twin.strategies import load_job

JOB = {"model": "gpt2", "machine": "perlmutter", "ranks": 1, "batch": {"sequences": 1}}


def refused(job: dict[str, Any]) -> str:
    with pytest.raises(DescriptionError) as caught:
        load_job(job)
    return str(caught.value)


@pytest.mark.parametrize(
    "text", ["x: !!int ''", "x: !!float '.'", "x: !!bool y", "!!map {a: 1}", "x: !own 5", "! a: 1"]
)
def test_tags_are_refused(text: str) -> None:
    """PyYAML's own constructors raise IndexError, KeyError and more for what a tag announces."""
    with pytest.raises(DescriptionError, match="tags such as"):
        parse_yaml(text, "file")


@pytest.mark.parametrize("text", [r'x: "\ud800"', r'"\udfff": 1', r'x: ["\ud83d\ude00"]'])
def test_half_characters_are_refused(text: str) -> None:
    """JSON writes an emoji as two escapes, which in YAML are two halves that no file can hold."""
    with pytest.raises(DescriptionError, match="half a character"):
        parse_yaml(text, "file")


@pytest.mark.parametrize("text", [r'x: "\U00110000"', r'x: "\U80000000"', r'x: ["\Uffffffff"]'])
def test_escapes_of_no_character_are_refused(text: str) -> None:
    """Python's `chr` raises one error above the last character, and another above what C's int holds."""
    with pytest.raises(DescriptionError, match="not valid YAML"):
        parse_yaml(text, "file")


@pytest.mark.parametrize("key", ["A", "int", "x-y", "a[0]"])
def test_unknown_keys_are_named_whatever_they_look_like(key: str) -> None:
    """They looked like the names that pydantic gives to branches of a union."""
    assert f"{key} = 1: unknown key" in refused({**JOB, key: 1})


def test_messages_stay_short() -> None:
    long = refused({**JOB, "machine": {"extends": "frontier", "nic": {"bandwidth": "y" * 100_000}}})
    assert "machine.nic.bandwidth" in long
    assert len(long) < 3000
    many = refused({**JOB, **{f"key{i}": i for i in range(10_000)}})
    assert "9,800 more" in many
    assert len(many) < 200_000
    assert len(refused({**JOB, "k" * 100_000: 1})) < 3000


@pytest.mark.parametrize("kind", [["measured"], {}, {"a": 1}, 1, None])
def test_a_kind_that_is_no_word_is_refused(tmp_path: Path, kind: Any) -> None:
    predicted = write(tmp_path / "predicted", "predicted", table(by_hand_predicted()))
    measured = write(tmp_path / "measured", "measured", table(by_hand_measured()))
    manifest = json.loads((measured / "manifest.json").read_text())
    (measured / "manifest.json").write_text(json.dumps({**manifest, "kind": kind}))
    with pytest.raises(DescriptionError, match="kind is neither"):
        compare(predicted, measured)


@pytest.mark.parametrize("size", ["sequences", "sequence_length", "heads", "head_size"])
def test_attention_of_nothing_is_refused(tmp_path: Path, size: str) -> None:
    kernel = {
        "type": "attention",
        "sequences": 1,
        "sequence_length": 8,
        "heads": 2,
        "head_size": 8,
        "form": "flash",
        "dropout": False,
        "backward": False,
        "element_bytes": 2,
    }
    op = {"op": "compute", "name": "a", "phase": "fwd", "kernel": {**kernel, size: 0}}
    recording = {
        "format": "fourfold-schedule",
        "schema_version": 2,
        "rank": 0,
        "grid": {"data": 1, "z": 1, "y": 1, "x": 1},
        "job": None,
        "ops": [op],
    }
    (tmp_path / "a.json").write_text(json.dumps(recording))
    with pytest.raises(DescriptionError, match=size):
        read_recording(tmp_path / "a.json")


def test_scripts_that_there_are_not_are_no_error_of_the_server(tmp_path: Path) -> None:
    pytest.importorskip("dash", reason="the dashboard is not installed")
    from dashboards.app import create_app
    from dashboards.settings import Settings

    server = create_app(Settings(tmp_path, token="")).server
    with server.test_client() as client:
        for path in ("../..", "x/y.js", "dash/none.js", "os/path.py"):
            answer = client.get(f"/_dash-component-suites/{path}", base_url="http://127.0.0.1")
            assert answer.status_code == 404
            assert answer.headers["x-content-type-options"] == "nosniff"
