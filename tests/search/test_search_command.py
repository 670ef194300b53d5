"""`fourfold search`: what it prints and writes, and what it refuses."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow.parquet as pq
import pytest
import yaml

from twin.cli import main
from twin.strategies import load_job

JOB = """\
# a comment of the user's own
model: {preset: gpt2, layers: 2}
machine: perlmutter
ranks: 8
grid: {data: 8}
batch: {sequences: 32, micro_sequences: 1}
train: {data: texts/corpus, steps: 7}
"""


@pytest.fixture
def job(tmp_path: Path) -> Path:
    path = tmp_path / "mine.yaml"
    path.write_text(JOB)
    return path


@pytest.fixture
def run(capsys):
    def call(*arguments: object, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["search", *map(str, arguments)])
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == code, err
        return out, err

    return call


def test_what_is_printed(run, job):
    out, err = run(job, "--top", "3", "--workers", "1")
    assert err == ""
    assert "20 candidates" in out
    assert "fixes grid and batch.micro_sequences" in out
    assert "published communication model's 10 best lie at places" in out
    assert len([line for line in out.splitlines() if " × " in line and " GB" in line]) == 3


@pytest.mark.parametrize(("key", "value"), [("batch.micro_sequences", "-4"), ("grid.z", "0"), ("grid.z", "two")])
def test_what_a_job_fixes_and_can_be_no_size_is_refused(run, job, key, value):
    """A search leaves it open: it was not read, and a slip of the pen not found."""
    assert f"{key} = " in run(job, "--set", f"{key}={value}", code=2)[1]


def test_json_is_one_object_with_what_was_promised(run, job):
    out, err = run(job, "--json", "--workers", "1")
    answer = json.loads(out)
    assert err == ""
    assert {"candidates", "feasible", "best", "ranking", "wall_seconds"} <= set(answer)
    assert answer["left_open"] == ["grid", "batch.micro_sequences"]
    assert answer["candidates"] == len(answer["ranking"]) == 20
    row = answer["ranking"][0]
    assert {"grid", "options", "step_seconds", "memory", "communication_model_rank", "reason"} <= set(row)


@pytest.mark.slow
def test_the_winner_is_a_job_file_that_simulates_to_the_same(run, job, tmp_path, capsys):
    out = tmp_path / "found"
    run(job, "--over", "recompute,sharding,overlap", "--out", out, "--workers", "1", "--set", "seed=5")
    assert sorted(p.name for p in out.iterdir()) == ["best.yaml", "candidates.parquet", "ranking.json", "search.html"]
    raw = yaml.safe_load((out / "best.yaml").read_text())
    ranking = json.loads((out / "ranking.json").read_text())
    assert raw["machine"] == "perlmutter"
    assert raw["model"] == {"preset": "gpt2", "layers": 2}
    assert raw["seed"] == 5
    assert raw["train"] == {"data": str(tmp_path / "texts/corpus"), "steps": 7}
    assert raw["grid"] == ranking["ranking"][0]["grid"]
    with pytest.raises(SystemExit):
        main(["simulate", str(out / "best.yaml"), "--json"])
    again = json.loads(capsys.readouterr().out)
    assert again["step_seconds"] == ranking["ranking"][0]["step_seconds"]
    chosen, first = load_job(out / "best.yaml"), ranking["ranking"][0]["options"]
    assert chosen.recompute == first["recompute"]
    assert chosen.data_reduction.mode == first["data_reduction"]
    assert chosen.overlap.model_dump(include=set(first["overlap"])) == first["overlap"]
    table = pq.read_table(out / "candidates.parquet")
    assert table.num_rows == ranking["candidates"]
    assert table["step_seconds"].to_pylist() == [row["step_seconds"] for row in ranking["ranking"]]


@pytest.mark.full
def test_a_machine_file_beside_the_job_is_found_from_elsewhere(run, job, tmp_path):
    (tmp_path / "own.yaml").write_text("extends: perlmutter\nname: own\nnic: {bandwidth: 50 GB/s}\n")
    job.write_text(JOB.replace("machine: perlmutter", "machine: own.yaml"))
    out = tmp_path / "deep" / "er"
    run(job, "--out", out, "--workers", "1")
    assert load_job(out / "best.yaml").machine.name == "own"


@pytest.mark.slow
def test_a_range_of_ranks_with_tokens_and_a_deadline(run, job):
    out, _ = run(job, "--ranks", "4-16,11", "--tokens", "1B", "--within", "30d", "--workers", "1")
    assert "11 ranks: no grid divides" in out
    assert "The fewest of these that keep the deadline: 4" in out
    answer = json.loads(run(job, "--ranks", "4,8", "--tokens", "2T", "--within", "1 s", "--json", "--workers", "1")[0])
    assert answer["fewest_ranks"] is None
    assert [row["in_time"] for row in answer["by_ranks"]] == [False, False]
    assert {row["ranks"] for row in answer["ranking"]} == {4, 8}


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--ranks", "5-2"], "from a smaller to a larger"),
        (["--ranks", "many"], "expected numbers and ranges"),
        (["--ranks", "0"], "expected numbers and ranges"),
        (["--ranks", "1-9999999:1"], "at most 64"),
        (["--ranks", "11,13"], "no grid divides"),
        (["--ranks", "999999999"], "use at most that many"),
        (["--tokens", "2T", "--within", "3 parsecs"], "'parsecs' is not a unit of time"),
        (["--tokens", "2T", "--within", "30"], "a time with its unit"),
        (["--tokens", "2T", "--within", "30."], "a time with its unit"),
        (["--tokens", "2e18"], "at most 1e18"),
        (["--tokens", "9" * 5000], "at most 1e18"),
        (["--ranks", "9" * 5000], "at most 12 digits"),
        (["--ranks", f"1-{'9' * 5000}"], "at most 12 digits"),
        (["--grid", f"y={'9' * 5000}"], "at most 12 digits"),
        (["--grid", "y=3"], "--grid = 'y=3': no grid of 8 ranks has"),
        (["--within", "30d"], "add --tokens"),
        (["--tokens", "lots"], "such as 2T"),
        (["--over", "recomputation"], "did you mean 'recompute'"),
        (["--grid", "w=3"], "choose from"),
        (["--grid", "z=some"], "AXIS=SIZE"),
        (["--set", "ranks=7", "--set", "batch.sequences=5", "--set", "model.heads=5"], "model.heads"),
        (["--set", "machine.device.memory=3 GB", "--set", "machine.device.reserved_memory=2.999 GB"], "no grid fits"),
    ],
)
def test_bad_input_is_refused_by_name(run, job, arguments, said):
    out, err = run(job, *arguments, "--workers", "1", code=2)
    assert out == ""
    assert said in err


@pytest.mark.full
def test_places_that_cannot_be_written_are_refused_before_the_search(run, job, tmp_path):
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("years of work")
    assert "exists already" in run(job, "--out", taken, code=2)[1]
    assert "will not be replaced" in run(job, "--out", taken, "--force", code=2)[1]
    assert (taken / "thesis.txt").read_text() == "years of work"
    assert "cannot be written" in run(job, "--out", job / "below", code=2)[1]
    out = tmp_path / "found"
    run(job, "--out", out, "--workers", "1")
    run(job, "--out", out, "--workers", "1", "--force")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["found", "mine.yaml", "taken"]


def children(process: int) -> list[int]:
    listed = Path(f"/proc/{process}/task/{process}/children")
    return [int(word) for word in listed.read_text().split()] if listed.exists() else []


@pytest.mark.process
@pytest.mark.quick
def test_ctrl_c_ends_cleanly(tmp_path):
    """Interrupted like from a terminal: all processes get the signal; nothing is left."""
    job = tmp_path / "long.yaml"
    job.write_text("model: gpt-5b\nmachine: frontier\nranks: 4096\nbatch: {sequences: 8192}\n")
    process = subprocess.Popen(
        [sys.executable, "-m", "twin", "search", str(job), "--out", str(tmp_path / "found"), "--workers", "2"],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    until = time.monotonic() + 60
    while len([c for child in children(process.pid) for c in children(child)]) < 2 and time.monotonic() < until:
        time.sleep(0.1)
    time.sleep(2)  # the workers are there, and at it
    os.killpg(process.pid, signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert out == ""
    assert "Traceback" not in err
    assert [p.name for p in tmp_path.iterdir()] == ["long.yaml"]


def test_a_strategy_without_a_published_model_is_given_no_place_by_one(tmp_path, capsys):
    job = tmp_path / "job.yaml"
    job.write_text("{strategy: ddp, model: gpt2, machine: perlmutter, ranks: 8, batch: {sequences: 32}}\n")
    main_ends(["search", str(job), "--out", str(tmp_path / "found")], 0)
    shown, page = capsys.readouterr().out, (tmp_path / "found" / "search.html").read_text(encoding="utf-8")
    rows = json.loads((tmp_path / "found" / "ranking.json").read_text(encoding="utf-8"))["ranking"]
    assert "model's place" not in shown
    assert "2502.08145" not in page
    assert {(r["communication_model_rank"], r["communication_model_seconds"]) for r in rows} == {(None, None)}
    main_ends(["search", str(job), "--by", "axonn"], 2)
    assert "ddp has no published model" in capsys.readouterr().err


def main_ends(arguments: list[str], code: int) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert int(ended.value.code or 0) == code


def test_the_help_names_all_that_can_be_varied(capsys):
    """What a wrong word is answered with, and what help says, are the same."""
    with pytest.raises(SystemExit):
        main(["search", "examples/tiny-gpt.yaml", "--over", "nonsense"])
    known = capsys.readouterr().err.partition("choose from ")[2].replace("\n", " ").split(", ")
    with pytest.raises(SystemExit):
        main(["search", "--help"])
    shown = re.findall(r"\w+", capsys.readouterr().out)
    assert len(known) > 10
    assert {name.strip() for name in known} <= set(shown)
