"""Several sets of evaluation: each one's loss is the serial model's; what is wrong with one is said before a step."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from runtime.data.build import build_dataset
from runtime.data.tokenizer import JsonTokenizer
from runtime.plan.continued import options_of
from runtime.plan.options import located
from runtime.plan.sources import open_sources
from tests.runtime import asked, runs
from twin.description.problems import DescriptionError
from twin.search.best import Given, job_text
from twin.strategies import load_job

LETTERS = {"data": 97, "code": 33, "prose": 65}
"""Each set has its own."""


def data_sets(folder: Path) -> dict[str, Path]:
    for number, (name, first) in enumerate(LETTERS.items()):
        noise = np.random.default_rng(number).integers(first, first + 26, (40, 90)).astype(np.uint8)
        build_dataset(folder / name, [bytes(row).decode() for row in noise], validation_fraction=0.3)
    return {name: folder / name for name in LETTERS}


def job_of(folder: Path, sets: dict[str, Path | str], **evaluation: object) -> Path:
    named = {name: str(path) for name, path in sets.items()}
    train = {"data": "data", "steps": 4, "evaluation": {"every": 2, "sequences": 3, "sets": named, **evaluation}}
    return runs.write_job(folder, train={**train, "sample": {"tokens": 0}})


@pytest.mark.process
def test_losses_of_all_sets_are_those_of_the_serial_model(tmp_path, capsys):
    data_sets(tmp_path)
    job = job_of(tmp_path, {"code": "code", "prose": "./prose"})  # from the job file on
    out = tmp_path / "run"
    done = runs.train(job, "--ranks", "2", "--out", str(out))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    looks = [line for line in lines if "after_steps" in line]
    assert [look["after_steps"] for look in looks] == [0, 2, 4]
    names = {"data": "validation_loss", "code": "validation_loss/code", "prose": "validation_loss/prose"}
    assert all(look.keys() == {"after_steps", *names.values()} for look in looks)
    last = looks[-1]
    assert f"; code {last['validation_loss/code']:.4f}; prose {last['validation_loss/prose']:.4f}" in done.stdout
    model = asked.serial_model(out / "checkpoints" / "step-00000004", tmp_path / "full.safetensors")
    for name, metric in names.items():
        tokens = np.fromfile(tmp_path / name / "validation.bin", dtype="<u2")[: 3 * asked.SEQUENCE + 1]
        assert last[metric] == pytest.approx(np.mean(asked.losses_of(model, tokens)), rel=1e-5)
    assert last["validation_loss"] < last["validation_loss/code"]
    # asked by name afterwards, from elsewhere
    said, _ = asked.ask_here(capsys, "eval", out, "--data", "code", "--json")
    assert json.loads(said)["loss"] == pytest.approx(last["validation_loss/code"], rel=1e-6)
    _, refused = asked.ask_here(capsys, "eval", out, "--data", "cod", code=2)
    assert "cod: no such data set or file (--data); the run's own sets by name are code, prose" in refused
    # other sets are another run, the same ones elsewhere are not
    (tmp_path / "prose").rename(tmp_path / "moved")
    arguments = ("--ranks", "2", "--out", str(out))
    again = runs.train(job_of(tmp_path, {"code": "code", "prose": "moved"}), *arguments)
    assert again.returncode == 0, again.stderr
    refused = runs.train(job_of(tmp_path, {"code": "moved"}), *arguments)
    assert (refused.returncode, "holds a run with another evaluation_sets" in refused.stderr) == (2, True)


def test_a_run_without_sets_is_what_it_was(tmp_path):
    data_sets(tmp_path)
    job = load_job(job_of(tmp_path, {}))
    found = open_sources(job, located(job.train, tmp_path)).identity()
    assert found["evaluation_sets"] is None
    assert found["data"] == json.loads((tmp_path / "data" / "dataset.json").read_text())
    assert not any("sets" in key for key in options_of(job, job.train))


def test_everything_wrong_with_sets_is_said_at_once(tmp_path):
    data_sets(tmp_path)
    (tmp_path / "prose" / "validation.bin").write_bytes(b"")
    job = load_job(job_of(tmp_path, {"code": "nowhere", "prose": "prose"}))
    with pytest.raises(DescriptionError) as refused:
        open_sources(job, located(job.train, tmp_path))
    first, second = map(str, refused.value.problems)
    assert "train.evaluation.sets.code" in first
    assert "no such data set; build one with" in first
    assert "train.evaluation.sets.prose" in second
    assert "has 0 bytes, but" in second


def test_a_set_of_another_tokenizer_is_refused(tmp_path):
    library = pytest.importorskip("tokenizers")
    data_sets(tmp_path)
    words = library.Tokenizer(library.models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="c"))
    words.pre_tokenizer = library.pre_tokenizers.Whitespace()
    for name, more in (("words", []), ("other", ["d"])):
        words.add_tokens(more)
        words.save(str(tmp_path / f"{name}.json"))
        texts = (f"a b {'c ' * (20 + number)}" for number in range(60))
        build_dataset(tmp_path / name, texts, JsonTokenizer(tmp_path / f"{name}.json"), 0.3)
    job = load_job(job_of(tmp_path, {"code": "words"}))
    with pytest.raises(DescriptionError, match=r"sets\.code.*: has tokenizer tokenizer\.json, but .*data has bytes"):
        open_sources(job, located(job.train, tmp_path))
    job = load_job(job_of(tmp_path, {"code": "other"}), ["train.data=words"])
    with pytest.raises(DescriptionError, match=r"code.*: has tokenizer\.json of sha256 [0-9a-f]{64}, but .*words has"):
        open_sources(job, located(job.train, tmp_path))


@pytest.mark.parametrize(
    ("evaluation", "words"),
    [
        ({"sets": {"Code": "x"}}, "train.evaluation.sets = 'Code': is no name"),
        ({"sets": {"a/b": "x"}}, "train.evaluation.sets = 'a/b': is no name"),
        ({"sets": {"code": ""}}, "train.evaluation.sets.code = '': is empty"),
        ({"sets": {"code": 3}}, "train.evaluation.sets.code = 3"),
        ({"sets": "code"}, "train.evaluation.sets = 'code'"),
        ({"sets": {"code": "x"}, "sequences": 0}, "train.evaluation.sequences = 0: is 0, so that no set"),
    ],
)
def test_sets_that_are_none(tmp_path, evaluation, words):
    with pytest.raises(DescriptionError) as refused:
        load_job(runs.write_job(tmp_path, train={"evaluation": evaluation}))
    assert words in str(refused.value)


def test_the_best_job_of_a_search_knows_where_sets_are(tmp_path):
    data_sets(tmp_path)
    path = job_of(tmp_path, {"code": "code"})
    written = job_text(Given(path, []), load_job(path))
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "elsewhere" / "best.yaml").write_text(written)
    assert load_job(tmp_path / "elsewhere" / "best.yaml").train.evaluation.sets == {"code": str(tmp_path / "code")}
