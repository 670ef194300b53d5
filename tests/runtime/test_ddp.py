"""Plain data parallelism on PyTorch's DDP: equal to the serial model; recorded equals generated."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.recorder import record
from tests.profiles import part
from tests.runtime import parity
from tests.runtime.ddp_tasks import describe
from tests.runtime.equal import TOLERANCE, assemble, serial_of
from tests.runtime.runs import environment
from tests.runtime.test_families import SLOWER as SLOWER_OF
from tests.runtime.test_parity import VARIANTS as OF_FOUR_D
from tests.tiers import full, quick
from twin.description.problems import DescriptionError
from twin.schedule.difference import difference
from twin.schedule.ops import Start
from twin.strategies import generated, load_job

SMALL = {"bucket": "2 KiB"}
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "buckets": SMALL,
    "one_micro_step": {"micro_steps": 1, **SMALL},
    "goldfish": {"goldfish": True, **SMALL},
    "no_biases": {"model": {**parity.MODEL, "biases": False}, **SMALL},
    "llama": {"model": {**parity.MODEL, "activation": "swiglu", "positions": "rotary", "biases": False}, **SMALL},
    "no_clip": {"clip_gradients": False},
    "loss_by_tokens": {"loss_rows": 5, **SMALL},
}
RMS = {**parity.MODEL, "activation": "swiglu", "positions": "rotary", "biases": False, "norm": "rms"}
FAMILIES: dict[str, dict[str, Any]] = {
    "grouped": {**RMS, "kv_heads": 4, "norm_epsilon": 1e-6},
    "qwen2": {**RMS, "kv_heads": 4, "biases": "qkv", "rotary_base": 1e6},
    "wide heads": {**RMS, "kv_heads": 2, "head_width": 12, "rotary_share": 0.5, "max_positions": 64},
    "layer norm, exact gelu": {**parity.MODEL, "activation": "gelu_exact", "kv_heads": 2, "norm_epsilon": 1e-3},
    "biases beside rms": {**RMS, "biases": True, "rotary_scaling": {"kind": "llama3", "factor": 8.0}},
}
VARIANTS |= {name: {"model": model, **SMALL} for name, model in FAMILIES.items()}
SERIAL = {"buckets": "plain", "loss_by_tokens": "plain"}
"""Which variant of the serial model has the same numbers, where it has another name."""
SLOWER = {"biases beside rms": SLOWER_OF["llama3"]}
CASES = [(ranks, name) for ranks in (1, 2, 4) for name in VARIANTS]


@pytest.mark.process
@pytest.mark.parametrize(("ranks", "variant"), quick(CASES, (4, "buckets"), (2, "qwen2")))
def test_it_trains_as_the_serial_model_does(pool: Any, ranks: int, variant: str) -> None:
    grid = {"data": ranks, "z": 1, "y": 1, "x": 1}
    answers = pool.run("tests.runtime.ddp_tasks:run", ranks, grid=grid, dtype="float64", **VARIANTS[variant])
    if variant in FAMILIES:
        serial = serial_of({"model": FAMILIES[variant]}, "float64", parity.STEPS, SLOWER.get(variant))
    else:
        serial = serial_of(OF_FOUR_D[SERIAL.get(variant, variant)], "float64")
    losses, norms, parameters = serial
    for loss, norm, _ in answers:
        np.testing.assert_allclose(loss, losses, rtol=TOLERANCE["float64"])
        np.testing.assert_allclose(norm, norms, rtol=TOLERANCE["float64"])
    full = assemble([pieces for _, _, pieces in answers])
    assert full.keys() == parameters.keys()
    for name, expected in parameters.items():
        np.testing.assert_allclose(full[name], expected, rtol=1e-9, atol=1e-12, err_msg=name)


@pytest.mark.parametrize("ranks", full([1, 2, 4, 8], 2, 8))
@pytest.mark.parametrize("variant", [name for name in VARIANTS if name != "goldfish"])
@pytest.mark.parametrize("precision", full(["fp32", "bf16"], "fp32"))
def test_recorded_and_generated_schedules_are_equal(ranks: int, variant: str, precision: str) -> None:
    job = describe(ranks, **VARIANTS[variant], precision=precision)
    for rank in part(sorted({0, ranks - 1}), 1):
        recorded = record(job, rank).schedule
        assert not (found := difference(recorded, generated(job, rank))), found
        for (ours, op), (theirs, other) in zip(recorded.named(), generated(job, rank).named(), strict=True):
            assert ours == theirs
            assert type(op) is type(other)


def test_every_gradient_is_in_one_bucket() -> None:
    """Buckets carry all parameters once, in compute precision; the loss goes by itself."""
    for size in ("1 KiB", "20 KiB", "25 MiB"):
        job = describe(4, bucket=size)
        sent = [op for op, _ in generated(job).flat() if isinstance(op, Start)]
        assert {op.kind for op in sent} == {"all_reduce"}
        *buckets, loss = sent
        assert sum(op.bytes for op in buckets) == job.model.parameters * job.element_bytes
        assert loss.bytes == 4
        assert all(op.bytes >= job.bucket_bytes for op in buckets[:-1])
    assert not [op for op, _ in generated(describe(1)).flat() if isinstance(op, Start)]


@pytest.mark.parametrize(
    ("key", "value"), [("dropout", 0.1), ("attention", "plain"), ("fused_elementwise", True), ("recompute", True)]
)
def test_what_it_does_not_have_is_refused(key: str, value: Any) -> None:
    with pytest.raises(DescriptionError, match=key):
        describe(2, **{key: value})


def run_command(*arguments: object) -> str:
    """Run a command of Fourfold; returns all it says."""
    done = subprocess.run(
        [sys.executable, "-m", "twin", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=environment(),
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout + done.stderr


@pytest.mark.process
@pytest.mark.full
@pytest.mark.parametrize(
    "shape", ["", ", norm: rms, activation: swiglu, positions: rotary, biases: qkv, kv_heads: 2"], ids=["gpt", "qwen2"]
)
def test_a_job_trains_is_traced_and_compared_and_another_strategy_goes_on(tmp_path: Path, shape: str) -> None:
    """One job file: train with ddp, hold the trace against the twin, go on from its checkpoint in 4D."""
    text = f"""
strategy: ddp
model: {{layers: 2, hidden: 64, heads: 4, sequence: 32, vocabulary: 256{shape}}}
machine: laptop
ranks: 2
batch: {{sequences: 8, micro_sequences: 2}}
grid: {{data: 2}}
precision: fp32
train:
  {{steps: 6, device: cpu, learning_rate: {{warmup_steps: 0}}, evaluation: {{sequences: 4}}, sample: {{tokens: 5}}}}
"""
    path = tmp_path / "job.yaml"
    path.write_text(text)
    out, trace, predicted = (tmp_path / name for name in ("run", "trace", "predicted"))
    run_command("train", path, "--ranks", "2", "--out", out, "--trace", trace, "--trace-steps", "3-4")
    run_command("simulate", path, "--out", predicted)
    said = run_command("compare", predicted, trace)
    assert "ranks compared" in said
    path.write_text(text.replace("strategy: ddp\n", "recompute: false\n").replace("grid: {data: 2}", "grid: {z: 2}"))
    load_job(path)
    more = run_command("train", path, "--ranks", "2", "--out", out, "--set", "train.steps=8", "--accept-changes")
    assert "after step 6" in more
