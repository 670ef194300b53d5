"""`fourfold sample` and `fourfold eval`: what the serial model says with the weights of the run, on every grid."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

from runtime.data.build import default_dataset
from runtime.plan.sources import cache_directory
from tests.runtime import asked, reference, runs
from tests.tiers import makes, quick

GRIDS = {
    "one": ["--ranks", "1"],
    "own": ["--ranks", "2"],
    "x": ["--ranks", "2", "--set", "grid={x: 2}"],
    "auto": ["--ranks", "3"],
}
"""The run's own is over z; three ranks get what Fourfold chooses."""
PROMPTS = ["def ", "import numpy a", "é"]
TEXTS = ["def f(x):\n    return x\n", "", "short", "x" * (2 * asked.SEQUENCE), "y"]
MADE = 24
"""More than the model sees at once."""


class Asked(NamedTuple):
    run: Path
    model: reference.SerialGPT
    before: dict[str, str]
    last_loss: float


@pytest.fixture(scope="module")
@makes("process")
def trained(undisturbed: runs.Undisturbed, tmp_path_factory: pytest.TempPathFactory) -> Asked:
    """A run of twelve steps on z=2, and the serial model with its weights."""
    out = undisturbed(12).out
    model = asked.serial_model(out, tmp_path_factory.mktemp("asked") / "model.safetensors")
    last = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
    return Asked(out, model, asked.files(out), last["validation_loss"])


def said(*arguments: object) -> str:
    done = asked.ask(*arguments)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


def written(path: Path, key: str, texts: list[str]) -> Path:
    path.write_text("".join(json.dumps({key: text, "id": i}) + "\n\n" for i, text in enumerate(texts)))
    return path


@pytest.mark.parametrize("grid", quick(GRIDS, "one"))
def test_the_likeliest_text_is_the_serial_models(trained, capsys, tmp_path, grid):
    prompts = written(tmp_path / "prompts.jsonl", "prompt", PROMPTS)
    question = ("sample", trained.run, "--prompts", prompts, "--tokens", MADE, "--temperature", 0, *GRIDS[grid])
    # one rank is this process
    lines = (asked.ask_here(capsys, *question)[0] if grid == "one" else said(*question)).splitlines()
    for number, (line, prompt) in enumerate(zip(map(json.loads, lines), PROMPTS, strict=True)):
        expected = asked.greedy(trained.model, prompt.encode(), MADE)
        text = bytes(expected).decode("utf-8", "replace")
        assert line == {"id": number, "prompt": prompt, "completion": text, "tokens": expected}
    assert asked.files(trained.run) == trained.before


@pytest.mark.parametrize("grid", GRIDS)
def test_loss_of_documents_is_the_serial_models(trained, tmp_path, grid):
    """Each by itself: the mean over all tokens, whatever shares a pass with what, and padding weighs nothing."""
    text = written(tmp_path / "texts.jsonl", "text", TEXTS)
    found = json.loads(said("eval", trained.run, "--data", text, "--json", *GRIDS[grid]))
    each: list[float] = []
    for one in filter(None, TEXTS):
        each += asked.losses_of(trained.model, np.array([asked.SEPARATOR, *one.encode()]))
    assert found["loss"] == pytest.approx(np.mean(each), rel=1e-6)
    assert found["perplexity"] == pytest.approx(math.exp(np.mean(each)), rel=1e-5)
    assert found["tokens"] == len(each) == sum(map(len, TEXTS))
    assert (found["documents"], found["sequences"], found["padded_sequences"]) == (4, 6, 3)
    assert found["step"] == 12
    assert asked.files(trained.run) == trained.before


@pytest.mark.parametrize("grid", ["own", "auto"])
def test_loss_on_held_out_text_is_what_training_said(trained, grid):
    found = json.loads(said("eval", trained.run, "--json", *GRIDS[grid]))
    held_out = np.fromfile(default_dataset(cache_directory()) / "validation.bin", dtype="<u2")
    sequences = runs.SMALL["train"]["evaluation"]["sequences"]
    each = asked.losses_of(trained.model, held_out[: sequences * asked.SEQUENCE + 1])
    assert found["tokens"] == len(each)
    assert found["loss"] == pytest.approx(np.mean(each), rel=1e-6)
    assert found["loss"] == pytest.approx(trained.last_loss, rel=1e-6)


def here(capsys: pytest.CaptureFixture[str], *arguments: object) -> Any:
    return json.loads(asked.ask_here(capsys, *arguments, "--json")[0])


def test_by_chance_the_seed_alone_decides(trained, capsys):
    def text(*options: object) -> Any:
        return here(capsys, "sample", trained.run, "--prompt", "def ", "--tokens", MADE, *options)["tokens"]

    first = text("--temperature", 2)
    assert first == text("--temperature", 2) == text("--temperature", 2, "--seed", 0)
    assert len({tuple(text("--temperature", 2, "--seed", seed)) for seed in range(5)}) == 5
    likeliest = asked.greedy(trained.model, b"def ", MADE)
    assert text("--temperature", 2, "--top-k", 1) == text("--temperature", 0) == likeliest != first
    elsewhere = said("sample", trained.run, "--prompt=def ", "--tokens", MADE, "--temperature=2", "--ranks=2", "--json")
    assert json.loads(elsewhere)["tokens"] == first


def test_an_earlier_checkpoint_and_more_sequences(trained, capsys, tmp_path):
    run = trained.run
    found = here(capsys, "eval", run, "--step", 8, "--sequences", 7)
    model = asked.serial_model(run / "checkpoints" / "step-00000008", tmp_path / "model.safetensors")
    held_out = np.fromfile(default_dataset(cache_directory()) / "validation.bin", dtype="<u2")
    assert found["loss"] == pytest.approx(np.mean(asked.losses_of(model, held_out[: 7 * asked.SEQUENCE + 1])), rel=1e-6)
    assert found == here(capsys, "eval", run / "checkpoints" / "step-00000008", "--sequences", 7)


def test_what_people_read(trained, capsys, tmp_path):
    """As training's own sample: its prompt, its number of tokens, its temperature, its seed."""
    out, err = asked.ask_here(capsys, "sample", trained.run)
    assert err == ""
    done = asked.ask("train", trained.run.parent / "job.yaml", "--ranks", 2, "--out", tmp_path / "again")
    assert out == done.stdout.partition("sample:\n")[2]
    out, _ = asked.ask_here(capsys, "eval", trained.run)
    assert f"loss {trained.last_loss:.4f} nats per token" in out
    assert "after step 12" in out


def copied(run: Path, folder: Path) -> Path:
    return Path(shutil.copytree(run, folder / "run"))


def test_a_newer_checkpoint_that_is_damaged_is_passed_over(trained, capsys, tmp_path):
    """And one that is being written is left alone."""
    copy = copied(trained.run, tmp_path)
    (copy / "checkpoints" / "step-00000012" / "rank-00001.safetensors").write_bytes(b"rubbish")
    unfinished = copy / "checkpoints" / ".step-00000014.0123abcd"
    unfinished.mkdir()
    out, err = asked.ask_here(capsys, "eval", copy, "--json")
    assert json.loads(out)["step"] == 10
    assert "step-00000012 is passed over" in err
    assert unfinished.is_dir()


def test_a_run_of_an_earlier_version_is_mended_by_its_own_command(trained, capsys, tmp_path):
    """As the message says: the finished run is not trained on, and its job is known afterwards."""
    copy = copied(trained.run, tmp_path)
    described = json.loads((copy / "run.json").read_text())
    del described["job"]
    (copy / "run.json").write_text(json.dumps(described))
    asked.ask_here(capsys, "eval", copy, code=2)
    done = runs.train(trained.run.parent / "job.yaml", "--ranks", "2", "--out", str(copy))
    assert done.returncode == 0, done.stderr
    assert here(capsys, "eval", copy)["loss"] == pytest.approx(trained.last_loss, rel=1e-6)


@pytest.mark.process
def test_another_strategy_is_asked_too(capsys, tmp_path):
    """A run of plain data parallelism, alone and on two ranks."""
    job = runs.write_job(tmp_path, strategy="ddp", grid={"data": 2}, train={"steps": 2})
    done = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    expected = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])["validation_loss"]
    assert here(capsys, "eval", tmp_path / "run")["loss"] == pytest.approx(expected, rel=1e-6)
    model = asked.serial_model(tmp_path / "run", tmp_path / "model.safetensors")
    line = json.loads(
        said("sample", tmp_path / "run", "--prompt=d", "--tokens=8", "--temperature=0", "--ranks=2", "--json")
    )
    assert line["tokens"] == asked.greedy(model, b"d", 8)
