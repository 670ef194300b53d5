"""Wrong input to `fourfold sample` and `fourfold eval`: exit code 2, a message with key and remedy, no traceback."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.data.build import build_dataset
from tests.runtime import asked


def refused(capsys: pytest.CaptureFixture[str], *arguments: object) -> str:
    out, err = asked.ask_here(capsys, *arguments, code=2)
    assert out == ""
    assert "Traceback" not in err
    assert err.startswith("fourfold: ")
    return err


@pytest.fixture
def run(tmp_path: Path) -> Path:
    return asked.make_run(tmp_path)


COMMANDS = ("sample", "eval")


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--step", "7"], ["--step = 7", "choose from 4", "train.checkpoints.keep"]),
        (["--set", "model.layerz=3"], ["model.layerz", "did you mean 'layers'?"]),
        (["--set", "strategy=wizard"], ["strategy = 'wizard'", "choose from auto, ddp, four_d"]),
        (["--set", "grid={x: 3}", "--ranks", "3"], ["grid.x = 3", "must divide hidden 32"]),
        (["--set", "grid={x: 2}"], ["grid", "has 2 ranks", "but ranks is 1"]),
        (["--set", "grid.x=2", "--ranks", "3"], ["grid", "has 2 ranks", "but ranks is 3"]),
        (["--set", "ranks=4"], ["ranks = 4", "--ranks 4"]),
        (["--set", "nonsense"], ["--set = 'nonsense'", "KEY.KEY=VALUE"]),
        (["--ranks", "5000"], ["ranks = 5000", "use at most that many"]),
        (["--set", "precision=fp16"], ["precision = 'fp16'"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_wrong_options_are_named(run, capsys, command, options, words):
    before = asked.files(run)
    said = refused(capsys, command, run, *options)
    assert not [word for word in words if word not in said], said
    assert asked.files(run) == before


@pytest.mark.parametrize("command", COMMANDS)
def test_what_is_no_run(tmp_path, capsys, command):
    assert "nowhere: no such run" in refused(capsys, command, tmp_path / "nowhere")
    assert "run.json is missing" in refused(capsys, command, tmp_path)
    run = asked.make_run(tmp_path)
    other = run / "checkpoints" / "best"
    other.mkdir()
    assert "is no checkpoint" in refused(capsys, command, other)
    (run / "checkpoints" / "step-00000004").rmdir()
    assert "holds no complete checkpoint" in refused(capsys, command, run)
    assert sorted(path.name for path in run.iterdir()) == ["checkpoints", "run.json"]


@pytest.mark.parametrize("command", COMMANDS)
@pytest.mark.parametrize(
    ("described", "words"),
    [
        ("{", "is damaged"),
        ("[" * 100_000, "is damaged"),
        ("[]", "is damaged"),
        ("{}", "in runs of earlier versions"),
        ('{"job": []}', "is damaged"),
        ('{"job": {}}', "model: missing"),
        ('{"job": {"strategy": ["four_d"]}}', "strategy"),
        ('{"job": {"batch": 3, "ranks": "2"}}', "batch"),
    ],
)
def test_a_run_that_says_nonsense_about_itself(run, capsys, command, described, words):
    (run / "run.json").write_text(described)
    said = refused(capsys, command, run)
    assert words in said
    assert "run.json" in said


def test_a_checkpoint_that_is_none(run, capsys):
    """The one of `make_run` has no file in it."""
    (run / "text.txt").write_text("some text")
    said = refused(capsys, "eval", run, "--data", run / "text.txt")
    assert "checkpoint.json" in said
    assert "restore one from a copy" in said


PROMPTS = [
    ("", "no prompt"),
    ("\n\n", "no prompt"),
    ('{"prompt": "a"}\n{"prompt": "b"', ":2: is not JSON"),
    ('\n["a"]', ":2 = ['a']: expected an object"),
    ('{"promt": "a"}', ":1: has no key 'prompt'; did you mean 'promt'?"),
    ('{"prompt": 3}', ":1: prompt = 3: expected text"),
    ('{"prompt": "a"}\n{"prompt": ""}', ":2: prompt = '': is empty"),
    ('{"prompt": "a", "id": [1]}', ":1: id = [1]: expected text or a whole number"),
    (json.dumps({"prompt": "a" * 17}), "has 17 tokens, but the model sees 16"),
]


@pytest.mark.parametrize(("lines", "words"), PROMPTS)
def test_prompts_that_cannot_be_continued(run, capsys, tmp_path, lines, words):
    file = tmp_path / "prompts.jsonl"
    file.write_text(lines)
    said = refused(capsys, "sample", run, "--prompts", file)
    assert words in said
    assert str(file) in said


def test_every_bad_prompt_is_told_at_once(run, capsys, tmp_path):
    file = tmp_path / "prompts.jsonl"
    file.write_text('{"prompt": ""}\n{"prompt": "good"}\n' + json.dumps({"prompt": "a" * 40}))
    said = refused(capsys, "sample", run, "--prompts", file)
    assert "2 problems" in said
    assert ":1: prompt" in said
    assert ":3: prompt" in said


def test_one_prompt_that_cannot_be_continued(tmp_path, capsys):
    model = {"layers": 2, "hidden": 32, "heads": 4, "sequence": 16, "vocabulary": 128}
    run = asked.make_run(tmp_path, model=model)
    assert "--prompt = '': is empty" in refused(capsys, "sample", run, "--prompt", "")
    said = refused(capsys, "sample", run, "--prompt", "é")
    assert "--prompt = 'é': has token 195, beyond the model's vocabulary of 128" in said
    assert "has 17 tokens" in refused(capsys, "sample", run, "--prompt", "a" * 17)
    assert "give one of them" in refused(capsys, "sample", run, "--prompt", "a", "--prompts", "b")
    assert "no such file" in refused(capsys, "sample", run, "--prompts", tmp_path / "nowhere")
    text = tmp_path / "text.txt"
    text.write_text("é")
    assert "document 1 has token 195" in refused(capsys, "eval", run, "--data", text)


TEXTS = [
    ('{"text": "a"}\n{"text"', ["texts.jsonl:2: is not JSON"]),
    ('{"content": "a"}', ["texts.jsonl:1: has no key 'text' (--key)"]),
    ('{"text": null}', ["texts.jsonl:1: text: expected text"]),
    ('{"text": ""}', ["texts.jsonl: holds no text"]),
    ("", ["texts.jsonl: holds no text"]),
]


@pytest.mark.parametrize(("lines", "words"), TEXTS)
def test_text_that_cannot_be_scored(run, capsys, tmp_path, lines, words):
    file = tmp_path / "texts.jsonl"
    file.write_text(lines)
    said = refused(capsys, "eval", run, "--data", file)
    assert not [word for word in words if word not in said], said


def test_data_sets_that_cannot_be_scored(run, capsys, tmp_path):
    assert "no such data set or file" in refused(capsys, "eval", run, "--data", tmp_path / "nowhere")
    assert "is not a data set" in refused(capsys, "eval", run, "--data", run)
    build_dataset(tmp_path / "data", (f"document {i} " * 20 for i in range(300)))
    changed(tmp_path / "data" / "dataset.json", separator=1)
    assert "has separator 1, but the run was trained with 0" in refused(
        capsys, "eval", run, "--data", tmp_path / "data"
    )
    said = refused(capsys, "eval", run, "--set", f"train.data={tmp_path / 'away'}")
    assert "away: the data set of the run is not there any more" in said
    changed(tmp_path / "data" / "dataset.json", separator=0)
    said = refused(capsys, "eval", run, "--set", f"train.data={tmp_path / 'data'}")
    assert "is not any more what the run was trained on" in said


def changed(path: Path, **changes: Any) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


@pytest.mark.parametrize(
    "option", [["--tokens", "0"], ["--temperature", "-1"], ["--temperature", "1e7"], ["--top-k", "0"], ["--seed", "-1"]]
)
def test_numbers_out_of_range(run, capsys, option):
    _, err = asked.ask_here(capsys, "sample", run, "--prompt", "a", *option, code=2)
    assert option[0] in err


def test_nan_is_no_temperature(run, capsys):
    """It was said to be above the limit."""
    _, err = asked.ask_here(capsys, "sample", run, "--prompt", "a", "--temperature", "nan", code=2)
    assert "--temperature = nan: expected a number from 0 to 1,000,000" in err


def test_ranks_beside_a_launcher(run, capsys, monkeypatch):
    for key, value in {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "1"}.items():
        monkeypatch.setenv(key, value)
    assert "started by torchrun already" in refused(capsys, "sample", run, "--ranks", "2")
