"""Runs on pipelines and tensor ranks, as a user starts them: others go on, ranks die, traces are the twin's."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from runtime.parallel.collectives import CollectiveError
from runtime.strategies.megatron.pipeline import plainly
from tests.runtime import runs
from tests.runtime.asked import ask
from tests.runtime.test_fsdp_runs import MEGATRON, STRATEGIES, go_all_the_way
from tests.runtime.test_kill import killed_and_continued
from tests.tiers import full
from twin.compare.compare import compare
from twin.compare.pairing import Unpaired
from twin.engine.events import event_table
from twin.engine.simulate import simulate
from twin.strategies import load_job
from twin.trace.store import read_trace

pytestmark = pytest.mark.process

DEEP = {**runs.SMALL["model"], "layers": 4}
"""As many layers as stages of two chunks on two ranks."""
SPLIT: dict[str, Any] = {"grid": {"pipeline": 2, "tensor": 2}, "sequence_parallel": True}
GRIDS: list[dict[str, Any]] = [
    {**SPLIT, "schedule": "interleaved", "chunks": 2},
    {**SPLIT},
    {"grid": {"pipeline": 2, "data": 2}, "schedule": "zb_v", "chunks": 2},
    {"grid": {"pipeline": 4}, "schedule": "zb_h1"},
    {"grid": {"pipeline": 2, "tensor": 2}, "schedule": "dualpipe_v", "chunks": 2},
    {"grid": {"context": 2, "data": 2}},
    {"grid": {"data": 2, "tensor": 2}, "recompute": True},
]
WAYS = ["4d megatron fsdp megatron_v 4d", "megatron_v 4d megatron hsdp"]


@pytest.mark.parametrize("way", full(WAYS, WAYS[0]), ids=str)
def test_any_strategy_goes_on_from_any_other(tmp_path: Path, way: str) -> None:
    go_all_the_way(tmp_path, tuple(way.split()), DEEP)


def test_a_job_of_another_strategy_trains_under_this_one(tmp_path: Path) -> None:
    """By the flavour that trains, without a word about it; but for one that is asked for."""
    job, out = runs.write_job(tmp_path, train={"steps": 2}), tmp_path / "run"
    asked = (job, "--ranks", "2", "--strategy", "megatron", "--set", "grid.context=2", "--out", str(out))
    done = runs.train(*asked)
    assert done.returncode == 0, done.stderr
    assert len(runs.losses(out)) == 2
    refused = runs.train(*asked, "--force", "--set", "flavour=deepspeed")
    assert refused.returncode == 2
    assert "flavour: torch" in refused.stderr


@pytest.mark.parametrize("strategy", full(["megatron", "megatron_v"], "megatron"))
def test_a_killed_run_continues_bit_for_bit(tmp_path: Path, strategy: str) -> None:
    job = runs.write_job(tmp_path, **STRATEGIES[strategy], model=DEEP)
    whole = runs.train(job, "--ranks", "4", "--out", str(tmp_path / "whole"))
    assert whole.returncode == 0, whole.stderr
    found = killed_and_continued(job, tmp_path / "run", 3, kills=1, ranks=4)
    assert found == runs.losses(tmp_path / "whole")


def test_a_run_is_asked_on_ranks_that_its_schedule_does_not_suit(tmp_path: Path) -> None:
    """Of four ranks in two stages of two chunks, with uneven stages: keys that one or three ranks cannot have go."""
    batch = {"sequences": 8, "micro_sequences": 1}
    uneven = {"schedule": "interleaved", "chunks": 2, "stage_layers": [2, 1, 1, 0], "batch": batch}
    job = runs.write_job(tmp_path, **(STRATEGIES["megatron"] | uneven), model=DEEP, train={"steps": 2})
    done = runs.train(job, "--ranks", "4", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    found = {}
    for ranks in (1, 2, 3, 4):
        asked = ask("eval", tmp_path / "run", "--ranks", ranks, "--json", "--sequences", 3)
        assert asked.returncode == 0, asked.stderr
        found[ranks] = json.loads(asked.stdout)["loss"]
        left_out = "without stage_layers: [2, 1, 1, 0], schedule: interleaved, chunks: 2, which this grid cannot have"
        assert (left_out in asked.stderr) == (ranks in (1, 3)), asked.stderr
        assert bool(asked.stderr) == (ranks in (1, 3))
    assert list(found.values()) == pytest.approx([found[4]] * 4, rel=1e-5)


@pytest.mark.parametrize("options", full(GRIDS, GRIDS[0], GRIDS[-1]), ids=str)
def test_a_trace_has_the_ops_of_the_twin(tmp_path: Path, options: dict[str, Any]) -> None:
    """On every rank: names, kinds, streams, axes, groups, bytes and flops; and the two are compared."""
    batch = {"sequences": 8, "micro_sequences": 1}
    job = runs.write_job(tmp_path, **MEGATRON, ranks=4, model=DEEP, batch=batch, train={"steps": 3}, **options)
    out, trace, predicted = (tmp_path / name for name in ("run", "trace", "predicted"))
    done = runs.train(job, "--ranks", "4", "--out", str(out), "--trace", str(trace), "--trace-steps", "2")
    assert done.returncode == 0, done.stderr
    measured = read_trace(trace).events.to_pylist()  # which checks the table
    expected = event_table(simulate(load_job(job)), range(4), step=2).to_pylist()
    assert _ops(measured) == _ops(expected)
    assert (trace / "timeline.html").stat().st_size > 10_000
    assert ask("simulate", job, "--out", predicted).returncode == 0
    compared = ask("compare", predicted, trace)
    assert compared.returncode == 0, compared.stderr
    for word in ("gemm", "optimizer", *(("bubble", "critical stage") if "pipeline" in options["grid"] else ())):
        assert word in compared.stdout
    found = compare(predicted, trace)
    assert found.unpaired == Unpaired((), ())
    for stage in found.pipeline.stages if found.pipeline else ():
        assert sum(t.difference_seconds for t in stage.terms) == pytest.approx(found.difference_seconds, rel=1e-9)


COLUMNS = ("rank", "op", "kind", "stream", "axis", "group", "layer", "micro", "bytes", "flops")


def _ops(rows: list[dict[str, Any]]) -> Counter[tuple[Any, ...]]:
    return Counter(tuple(row[column] for column in COLUMNS) for row in rows)


@pytest.mark.parametrize("words", ["forward", "backward"])
def test_a_failure_in_a_pass_keeps_its_name(words: str) -> None:
    """PyTorch's pipelining wraps what is raised in a pass in an error of its own, with all tensors in it."""
    failure = CollectiveError("rank 0: micro0/B/block0/mlp_down/all_gather_tensor with rank 1 failed")
    with pytest.raises(CollectiveError, match="rank 0") as caught, plainly():
        raise RuntimeError(f"Failed to run stage {words}: Tensor(…)") from failure
    assert caught.value is failure
    assert caught.value.__suppress_context__
    with pytest.raises(RuntimeError, match="of its own"), plainly():
        raise RuntimeError("of its own")
