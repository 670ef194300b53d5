"""Runs with FSDP2, as a user starts them: other strategies go on, ranks die, traces are held against the twin."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import yaml

from tests.runtime import runs
from tests.runtime.asked import ask
from tests.runtime.test_kill import killed_and_continued
from tests.tiers import full

pytestmark = pytest.mark.process

FSDP: dict[str, Any] = {"strategy": "fsdp", "grid": {"weights": 2}}
MEGATRON: dict[str, Any] = {"strategy": "megatron", "flavour": "torch"}
STRATEGIES: dict[str, dict[str, Any]] = {
    "4d": {},
    "fsdp": FSDP,
    "ddp": {"strategy": "ddp", "grid": {"data": 2}},
    "hsdp": {**FSDP, "grid": {"data": 2, "weights": 2}, "ranks": 4, "batch": {"sequences": 8, "micro_sequences": 1}},
    "megatron": {**MEGATRON, "grid": {"pipeline": 2, "tensor": 2}, "ranks": 4, "sequence_parallel": True},
    "megatron_v": {
        **MEGATRON,
        "grid": {"pipeline": 2, "data": 2},
        "ranks": 4,
        "batch": {"sequences": 8, "micro_sequences": 1},
        "schedule": "zb_v",
        "chunks": 2,
    },
}
TIED = {**runs.SMALL["model"], "tied_embeddings": True}


def go_on(folder: Path, strategy: str, steps: int, **changes: Any) -> str:
    """Train up to so many steps with a strategy, in one directory; returns what is said."""
    options = {**STRATEGIES[strategy], **changes, "train": {"steps": steps, "learning_rate": {"warmup_steps": 0}}}
    job = runs.write_job(folder, **options)
    ranks = str(options.get("ranks", 2))
    done = runs.train(job, "--ranks", ranks, "--out", str(folder / "run"), "--accept-changes")
    assert done.returncode == 0, done.stderr
    return done.stdout


def go_all_the_way(tmp_path: Path, way: tuple[str, ...], model: dict[str, Any]) -> None:
    """Train three steps with each strategy in turn; losses must be those of a run that stays with one."""
    for folder in ("moving", "staying"):
        (tmp_path / folder).mkdir()
    for leg, strategy in enumerate(way):
        said = go_on(tmp_path / "moving", strategy, 3 * leg + 3, model=model)
        assert leg == 0 or f"after step {3 * leg}" in said
        go_on(tmp_path / "staying", "4d", 3 * leg + 3, model=model)
    moving, staying = (runs.losses(tmp_path / folder / "run") for folder in ("moving", "staying"))
    assert list(moving) == list(staying) == list(range(3 * len(way)))
    np.testing.assert_allclose(list(moving.values()), list(staying.values()), rtol=1e-5)


@pytest.mark.parametrize(
    ("way", "model"),
    full(
        [
            (("4d", "fsdp", "ddp", "4d"), runs.SMALL["model"]),
            (("fsdp", "4d", "hsdp", "fsdp"), TIED),
            (("hsdp", "ddp", "fsdp", "4d"), {**runs.SMALL["model"], "vocabulary": 259}),
        ],
        (("4d", "fsdp", "ddp", "4d"), runs.SMALL["model"]),
    ),
    ids=str,
)
def test_any_strategy_goes_on_from_any_other(tmp_path: Path, way: tuple[str, ...], model: dict[str, Any]) -> None:
    go_all_the_way(tmp_path, way, model)


@pytest.mark.parametrize("grid", full([FSDP["grid"], {"data": 2, "weights": 2}], FSDP["grid"]), ids=str)
def test_a_killed_run_continues_bit_for_bit(tmp_path: Path, grid: dict[str, int]) -> None:
    ranks = grid.get("data", 1) * grid["weights"]
    changes = {"ranks": ranks, "grid": grid, "batch": {"sequences": 8, "micro_sequences": 2}}
    job = runs.write_job(tmp_path, strategy="fsdp", **changes)
    whole = runs.train(job, "--ranks", str(ranks), "--out", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    found = killed_and_continued(job, tmp_path / "run", 3, kills=1, ranks=ranks)
    assert found == runs.losses(tmp_path / "whole")


def test_a_run_is_traced_compared_asked_and_exported(tmp_path: Path) -> None:
    changes = {"steps": 6, "evaluation": {"sequences": 4, "every": 3}}
    job = runs.write_job(tmp_path, **FSDP, train=changes)
    out, trace, predicted, file = (tmp_path / name for name in ("run", "trace", "predicted", "model.safetensors"))
    done = runs.train(job, "--ranks", "2", "--out", str(out), "--trace", str(trace), "--trace-steps", "3-4")
    assert done.returncode == 0, done.stderr
    assert "Warning" not in done.stderr
    assert ask("simulate", job, "--out", predicted).returncode == 0
    compared = ask("compare", predicted, trace)
    assert compared.returncode == 0, compared.stderr
    for op in ("all_gather", "reduce_scatter", "gemm", "optimizer"):
        assert op in compared.stdout
    sampled = {ask("sample", out, "--ranks", str(ranks)).stdout for ranks in (1, 2)}
    assert len(sampled) == 1
    # rows do not divide by three: FSDP2 pads what a rank has fewer of
    asked = [ask("eval", out, "--ranks", str(ranks)).stdout.splitlines()[-1] for ranks in (1, 2, 3)]
    assert asked[0] == asked[1] == asked[2]
    assert ask("export", out / "checkpoints", file).returncode == 0
    other = yaml.safe_load(runs.write_job(tmp_path, train={"steps": 1, "initial_weights": str(file)}).read_text())
    assert "strategy" not in other
    started = runs.train(tmp_path / "job.yaml", "--ranks", "2", "--out", str(tmp_path / "other"))
    assert started.returncode == 0, started.stderr


@pytest.mark.parametrize(
    ("key", "remedy"),
    [
        ("grid={gradients: 2}", "use grid {weights: 2}"),
        ("flavour=deepspeed", "the runtime trains with PyTorch's fsdp2"),
        ("grid={weights: 3}", "ranks"),
    ],
)
def test_what_does_not_train_is_said_before_anything_is_written(tmp_path: Path, key: str, remedy: str) -> None:
    job = runs.write_job(tmp_path, **FSDP)
    done = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "run"), "--set", key)
    assert done.returncode == 2
    assert remedy in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "run").exists()
