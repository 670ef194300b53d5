"""A continued run is one that could have had its options from the first step on, or is told so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from runtime.plan.continued import KEY, changes, check_changes, options_of
from runtime.plan.plan import identity_of
from tests.runtime import runs
from twin.description.presets import presets
from twin.description.problems import DescriptionError
from twin.strategies import load_job

RATE = {"peak": 1.0e-3, "least": 1.0e-3, "warmup_steps": 2}
"""Constant after the warm-up."""
ORIGIN = Path("run/checkpoints/step-00000008")


def options(tmp_path: Path, *overrides: str, **train: Any) -> dict[str, Any]:
    job = load_job(runs.write_job(tmp_path, train=train), overrides)
    return json.loads(json.dumps(options_of(job, job.train)))


def check(before: dict[str, Any], now: dict[str, Any], done: int = 8, *, accepted: bool = False) -> list[str]:
    return [str(c) for c in check_changes({KEY: before}, now, done, ORIGIN, accepted=accepted)]


BENDS = {
    "more steps": ("train.steps=24", "train.steps = 24: was 12 in the 8 steps already taken"),
    "peak": ("train.learning_rate.peak=2.0e-3", "train.learning_rate.peak = 0.002: was 0.001"),
    "least": ("train.learning_rate.least=0", "train.learning_rate.least = 0"),
    "warm-up": ("train.learning_rate.warmup_steps=5", "train.learning_rate.warmup_steps = 5: was 1"),
    "schedule": ("train.learning_rate.schedule=linear", "train.learning_rate.schedule = 'linear': was cosine"),
    "weight decay": ("train.optimizer.weight_decay=0", "train.optimizer.weight_decay = 0.0: was 0.1"),
    "beta": ("train.optimizer.beta2=0.99", "train.optimizer.beta2 = 0.99: was 0.95"),
    "clipping norm": ("train.optimizer.clip_norm=2", "train.optimizer.clip_norm = 2.0: was 1"),
    "clipping": ("clip_gradients=false", "clip_gradients = False: was True"),
    "first weights": ("train.initial_weights=other.safetensors", "was none in the 8 steps"),
}


@pytest.mark.parametrize("name", BENDS)
def test_what_decided_the_steps_already_taken_is_refused(tmp_path, name):
    override, needle = BENDS[name]
    before, now = options(tmp_path), options(tmp_path, override)
    with pytest.raises(DescriptionError) as refused:
        check(before, now)
    for words in (str(ORIGIN), needle, "--accept-changes", "--force"):
        assert words in str(refused.value)
    key = override.partition("=")[0]
    assert any(text.startswith(f"{key}: ") for text in check(before, now, accepted=True))
    assert check(before, now, done=0)  # said, but nothing has been done yet


def test_the_error_says_how_far_the_learning_rate_would_leap(tmp_path):
    with pytest.raises(DescriptionError, match="the learning rate would leap: step 8 would have") as refused:
        check(options(tmp_path), options(tmp_path, "train.steps=24"))
    assert "so is a finished run extended" in str(refused.value)


HARMLESS = [
    "train.evaluation.every=3",
    "train.checkpoints={every: 5, keep: 9, memory_every: 1}",
    "train.sample.tokens=0",
    "train.elastic=true",
    "train.rollback={}",
    "train.log_every=4",
    "train.timeout=5 s",
    "train.threads=2",
    "train.compile=true",
    "train.tensorboard=true",
]


@pytest.mark.parametrize("override", HARMLESS)
def test_what_decides_nothing_of_the_past_is_said_and_done(tmp_path, override):
    found = check(options(tmp_path), options(tmp_path, override))
    assert found
    assert all(text.startswith(override.partition("=")[0]) for text in found)


@pytest.mark.parametrize(
    "override", ["batch.micro_sequences=1", "gather_unit=block", "name=other", "overlap.all_gather=false"]
)
def test_the_grid_and_the_order_of_sums_are_no_change(tmp_path, override):
    assert check(options(tmp_path), options(tmp_path, override)) == []


def test_with_a_constant_rate_more_steps_change_none_of_the_past(tmp_path):
    before, now = options(tmp_path, learning_rate=RATE), options(tmp_path, "train.steps=24", learning_rate=RATE)
    assert check(before, now) == ["train.steps: 12 before, 24 from here on"]


def test_more_steps_within_an_equal_warm_up_change_none_of_the_past(tmp_path):
    rate = {"peak": 1.0e-3, "warmup_steps": 4}
    before, now = options(tmp_path, learning_rate=rate), options(tmp_path, "train.steps=24", learning_rate=rate)
    assert check(before, now, done=4)
    with pytest.raises(DescriptionError):
        check(before, now, done=6)


def test_a_checkpoint_of_an_older_version_says_nothing(tmp_path):
    now = options(tmp_path)
    assert changes({"of a later version": 1}, now) == []
    for before in (None, [], {}, {"of a later version": 1}):
        assert check_changes({KEY: before}, now, 8, ORIGIN, accepted=False) == []
    assert check_changes({}, now, 8, ORIGIN, accepted=False) == []


def test_options_that_a_checkpoint_holds_damaged_are_no_crash(tmp_path):
    now = options(tmp_path)
    with pytest.raises(DescriptionError):
        check({**now, "train.steps": "twelve"}, now)


def test_clipping_that_is_off_has_no_norm(tmp_path):
    off = "clip_gradients=false"
    assert check(options(tmp_path, off), options(tmp_path, off, "train.optimizer.clip_norm=2")) == []


@pytest.mark.process
def test_a_run_is_refused_accepted_and_then_goes_on_as_it_is(tmp_path):
    """From the command line, on two ranks."""
    job, out = runs.write_job(tmp_path, train={"steps": 4, "evaluation": {"sequences": 0}}), tmp_path / "run"
    assert runs.train(job, "--ranks", "2", "--out", str(out)).returncode == 0
    arguments = ("--ranks", "2", "--out", str(out), "--set", "train.steps=6", "--set", "train.log_every=2")
    refused = runs.train(job, *arguments)
    assert refused.returncode == 2, refused.stderr
    assert "train.steps = 6: was 4 in the 4 steps already taken" in refused.stderr
    assert refused.stderr.count("--accept-changes") == 1  # one rank speaks for all
    assert "Traceback" not in refused.stderr
    done = runs.train(job, *arguments, "--accept-changes")
    assert done.returncode == 0, done.stderr
    assert "fourfold: train.steps: 4 before, 6 from here on" in done.stderr
    assert "fourfold: train.log_every: 1 before, 2 from here on" in done.stderr
    assert max(runs.losses(out)) == 5
    again = runs.train(job, *arguments)
    assert (again.returncode, again.stderr) == (0, "")


def test_in_which_type_gradients_are_summed_is_said(tmp_path):
    before, now = options(tmp_path), options(tmp_path, "communication_precision.scatters=fp32")
    assert check(before, now) == ["communication_precision.scatters: compute before, fp32 from here on"]


OLD_KEYS = {
    *("layers", "hidden", "heads", "sequence", "vocabulary", "mlp_ratio", "mlp_width", "activation", "positions"),
    "biases",
}
"""All that runs before November 2026 wrote down of a model."""


def test_a_run_of_an_older_version_is_the_same_run():
    assert set(identity_of(presets()["gpt2"])) == OLD_KEYS
    other = identity_of(presets()["qwen3-0.6b"])
    assert set(other) - OLD_KEYS == {
        *("kv_heads", "head_width", "norm", "norm_epsilon", "qk_norm", "rotary_base", "tied_embeddings")
    }
