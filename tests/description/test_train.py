"""The `train:` part of a job is checked where the job is read, by every command and without torch."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from twin.cli import main
from twin.description.problems import DescriptionError
from twin.description.spec import yaml_key
from twin.description.train import Train
from twin.strategies import load_job
from twin.strategies.schema import job_schema

ROOT = Path(__file__).parents[2]
JOB: dict[str, Any] = {
    "model": "gpt2",
    "machine": "laptop",
    "ranks": 1,
    "grid": {},
    "batch": {"sequences": 1, "micro_sequences": 1},
}


def problems(*overrides: str, **train: Any) -> str:
    with pytest.raises(DescriptionError) as raised:
        load_job({**JOB, "train": train}, overrides)
    return str(raised.value)


WRONG: dict[str, tuple[dict[str, Any], list[str]]] = {
    "unknown key": ({"stpes": 5}, ["train.stpes = 5", "did you mean 'steps'?"]),
    "unknown key below": ({"learning_rate": {"peek": 1e-3}}, ["train.learning_rate.peek = 0.001", "'peak'"]),
    "no steps": ({"steps": 0}, ["train.steps = 0", "greater than 0"]),
    "steps as text": ({"steps": "many"}, ["train.steps = 'many'"]),
    "no unit of time": ({"timeout": "5 GB"}, ["train.timeout", "5 GB"]),
    "a mapping for a number": ({"log_every": {}}, ["train.log_every"]),
    "least above peak": (
        {"learning_rate": {"peak": 1e-4, "least": 1e-3}},
        ["train.learning_rate.least = 0.001", "must not exceed peak 0.0001"],
    ),
    "more tokens than a hash takes": ({"goldfish": {"k": 4, "h": 10**20}}, ["train.goldfish.h = 1000"]),
    "one of more targets than there are": ({"goldfish": {"k": 10**20}}, ["train.goldfish.k = 1000"]),
    "hotter than hot": ({"sample": {"temperature": 1e300}}, ["train.sample.temperature = 1e+300"]),
    "nothing to go back to": (
        {"rollback": {}, "checkpoints": {"keep": 1}},
        ["train.checkpoints.keep = 1", "at least 2 with train.rollback"],
    ),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_options_are_refused_with_key_value_and_remedy(name):
    train, needles = WRONG[name]
    text = problems(**train)
    for needle in needles:
        assert needle in text


def test_every_problem_of_a_job_is_told_at_once():
    text = problems("ranks=-1", stpes=5, steps=-1)
    for needle in ("train.stpes = 5", "train.steps = -1", "ranks = -1"):
        assert needle in text


@pytest.mark.parametrize("command", ["simulate", "train", "search", "goodput"])
def test_every_command_that_reads_a_job_refuses_a_misspelt_option(capsys, command):
    with pytest.raises(SystemExit) as ended:
        main([command, str(ROOT / "examples/tiny-gpt.yaml"), "--set", "train.stpes=5"])
    assert ended.value.code == 2
    said = capsys.readouterr().err
    assert "train.stpes = 5" in said
    assert "did you mean 'steps'?" in said


def test_a_job_is_written_with_the_options_that_were_given():
    assert load_job(JOB).model_dump(mode="json", by_alias=True)["train"] == {}
    given = {"steps": 7, "timeout": "2 min", "checkpoints": {"every": 3}}
    job = load_job({**JOB, "train": given})
    written = job.model_dump(mode="json", by_alias=True)["train"]
    assert written == {"steps": 7, "timeout": 120.0, "checkpoints": {"every": 3}}
    assert load_job({**JOB, "train": written}) == job
    assert job.train == Train(steps=7, timeout_seconds=120.0, checkpoints={"every": 3})


@pytest.mark.parametrize("path", sorted(ROOT.glob("examples/runs/**/manifest.json")), ids=lambda p: p.parent.name)
def test_jobs_of_earlier_runs_can_be_read(path):
    job = load_job(json.loads(path.read_text(encoding="utf-8"))["job"])
    assert isinstance(job.train, Train)


def test_the_page_on_training_has_a_row_for_each_option():
    page = (ROOT / "docs/howto/training.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`.+?) \|", page.split("## Keys below `train:`")[1], re.MULTILINE)
    assert {key for row in rows for key in re.findall(r"`(\w+)`", row)} == {yaml_key(n) for n in Train.model_fields}


def test_the_schema_shows_the_options():
    schema = job_schema("four_d")
    validator = jsonschema.Draft202012Validator(schema)
    assert set(schema["$defs"]["Train"]["properties"]) == {yaml_key(n) for n in Train.model_fields}
    assert not list(validator.iter_errors({**JOB, "train": {"steps": 5, "timeout": "5 s", "rollback": {}}}))
    assert list(validator.iter_errors({**JOB, "train": {"stpes": 5}}))
