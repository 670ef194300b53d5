"""`fourfold simulate --engine ranks` from the command line."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from tests.test_cli import PROMISED, STEP_PARTS, Cli, cli
from twin.trace.store import read_trace
from twin.trace.table import check_table

__all__ = ["cli"]


def test_figures_are_complete_and_add_up(cli: Cli) -> None:
    got = cli.simulate("--engine", "ranks")
    assert set(got) >= {*PROMISED, "peers_by_axis"}
    assert got["engine"] == "ranks"
    assert got["classes"] == got["ranks"] == 16
    assert sum(got[part] for part in STEP_PARTS) == pytest.approx(got["step_seconds"], rel=1e-9)


@pytest.mark.process
def test_seeds_give_percentiles_of_the_single_runs(cli: Cli) -> None:
    steps = [cli.simulate("--engine=ranks", seed=7 + n)["step_seconds"] for n in range(5)]
    got = cli.simulate("--engine=ranks", "--seeds=5", seed=7)
    assert got["step_seconds"] == steps[0]
    assert got["seeds"]["count"] == 5
    expected = {f"p{p}": float(np.percentile(steps, p)) for p in (10, 50, 90)}
    assert got["seeds"]["step_seconds"] == pytest.approx(expected, rel=1e-12)


def test_the_terminal_says_what_was_drawn(cli: Cli) -> None:
    out = cli("simulate", cli.job, "--engine=ranks", "--seeds=4")[0]
    for words in ("seed 0", "folded engine", "4 seeds", "p10", "each of 16 ranks"):
        assert words in " ".join(out.split())


def test_a_run_is_written_with_every_rank(cli: Cli, tmp_path: Path) -> None:
    for name in ("one", "two"):
        cli.simulate("--engine=ranks", "--out", str(tmp_path / name), "--ranks", "3,11")
    trace = read_trace(tmp_path / "one")
    assert check_table(trace.events) == []
    assert set(trace.events.column("rank").to_pylist()) == {3, 11}
    ranks = pq.read_table(tmp_path / "one" / "ranks.parquet")
    assert ranks.num_rows == 16
    last = max(trace.events.column("end_ns").to_pylist())
    assert last <= round(max(ranks.column("end_seconds").to_pylist()) * 1e9)
    for name in ("events.parquet", "ranks.parquet", "job.yaml", "timeline.html"):
        first, second = ((tmp_path / run / name).read_bytes() for run in ("one", "two"))
        assert first == second, name


def test_a_pipeline_of_several_ranks_a_stage(cli: Cli) -> None:
    """Of the replicas of the pipeline, which all are kept, the one with the slowest device is looked at."""
    job = {"strategy": "megatron", "ranks": 4, "grid": {"pipeline": 2, "tensor": 2}, "schedule": "1f1b"}
    batch = {"sequences": 8, "micro_sequences": 1}
    path = Path(cli.job).with_name("pipeline.json")
    path.write_text(json.dumps({**job, "model": "gpt-10b", "machine": "dgx-a100", "batch": batch}))
    got = cli.json("simulate", str(path), "--engine=ranks")
    assert got["pipeline"]["stages"] == 2
    assert {stage["rank"] for stage in got["pipeline"]["by_stage"]} in ({0, 2}, {1, 3})


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--seeds=3"], ["--seeds", "--engine ranks"]),
        (["--engine=ranks", "--interval"], ["--interval", "--seeds"]),
        (["--engine=ranks", "--ranks=16"], ["--ranks", "0 to 15"]),
    ],
)
def test_what_makes_no_sense_is_refused(cli: Cli, arguments: list[str], words: list[str]) -> None:
    message = cli.refused("simulate", cli.job, *arguments)
    for word in words:
        assert word in message
