"""A training on a mixture: what it says, what it writes down, and that it goes on where it was on another grid."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest

from runtime.data.build import build_dataset
from tests.runtime import asked, runs

ARGUMENTS = ("--ranks", "2")


def job_of(folder: Path, *weights: float) -> Path:
    for number, name in enumerate("ab"):
        if not (folder / name).exists():
            noise = np.random.default_rng(number).integers(97, 123, (40, 90)).astype(np.uint8)
            build_dataset(folder / name, [bytes(row).decode() for row in noise], validation_fraction=0.3)
    parts = [{"path": name, "weight": weight} for name, weight in zip("ab", weights, strict=True)]
    train = {"data": parts, "steps": 6, "checkpoints": {"every": 3}, "evaluation": {"every": 3, "sequences": 8}}
    return runs.write_job(folder, train=train)


@pytest.mark.process
def test_a_mixture_is_trained_on_and_continued(tmp_path, capsys):
    job, out = job_of(tmp_path, 0.75, 0.25), tmp_path / "run"
    done = runs.train(job, *ARGUMENTS, "--out", str(out))
    assert done.returncode == 0, done.stderr
    assert f"75.0% of the samples (3 of 4) from {tmp_path / 'a'}: " in done.stdout
    assert f"25.0% of the samples (1 of 4) from {tmp_path / 'b'}: " in done.stdout
    data = json.loads((out / "run.json").read_text())["data"]
    assert [part["weight"] for part in data["mixture"]] == [3, 1]
    assert data["tokenizer"] == "bytes"
    # half of it on another grid, and on: the same losses but for rounding
    other = tmp_path / "other"
    halved = ("--set", "train.learning_rate.least=1e-3")
    whole = runs.train(job, *ARGUMENTS, "--out", str(other), *halved, "--set", "train.steps=6")
    again = tmp_path / "again"
    first = runs.train(job, *ARGUMENTS, "--out", str(again), *halved, "--set", "train.steps=3", "--set", "grid={x: 2}")
    rest = runs.train(job, *ARGUMENTS, "--out", str(again), *halved, "--set", "train.steps=6")
    for each in (whole, first, rest):
        assert each.returncode == 0, each.stderr
    np.testing.assert_allclose(list(runs.losses(again).values()), list(runs.losses(other).values()), rtol=1e-5)
    # its loss afterwards is the mixture's validation loss; a mixture with other weights is another run
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    last = [line["validation_loss"] for line in lines if "validation_loss" in line][-1]
    said, _ = asked.ask_here(capsys, "eval", out, "--json")
    assert json.loads(said)["loss"] == pytest.approx(last, rel=1e-6)
    model = asked.serial_model(out / "checkpoints" / "step-00000006", tmp_path / "full.safetensors")
    a, b = (np.fromfile(tmp_path / name / "validation.bin", dtype="<u2") for name in "ab")
    s = asked.SEQUENCE
    expected = asked.losses_of(model, a[: 6 * s + 1]) + asked.losses_of(model, b[: 2 * s + 1])
    assert last == pytest.approx(np.mean(expected), rel=1e-5)
    refused = runs.train(job_of(tmp_path, 0.5, 0.5), *ARGUMENTS, "--out", str(out))
    assert (refused.returncode, "holds a run with another data" in refused.stderr) == (2, True)
