"""Wrong input to `fourfold train`: a clear error, exit code 2, no hang, nothing half-written."""

from __future__ import annotations

import json
import os
import socket
import subprocess
from pathlib import Path

import numpy as np
import pytest

from tests.runtime import runs

pytestmark = pytest.mark.process


def refused(done: subprocess.CompletedProcess[str]) -> str:
    assert done.returncode == 2, done.stderr + done.stdout
    assert "Traceback" not in done.stderr
    # PyTorch's own log lines may stand before
    assert any(line.startswith("fourfold: ") for line in done.stderr.splitlines())
    return done.stderr


def alone(folder: Path, **changes) -> Path:
    """A job of one rank."""
    one = {"grid": {"data": 1, "z": 1, "y": 1, "x": 1}, "ranks": 1, **changes}
    return runs.write_job(folder, **one)


def train(job: Path, folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return runs.train(job, "--out", str(folder / "run"), *arguments, **extra)


def test_every_wrong_option_is_named_at_once(tmp_path):
    job = alone(tmp_path, train={"stepz": 3, "steps": -1, "learning_rate": {"peak": "fast"}})
    text = refused(train(job, tmp_path))
    assert "train.stepz" in text
    assert "did you mean 'steps'" in text
    assert "train.steps = -1" in text
    assert "train.learning_rate.peak" in text


def test_ranks_must_be_started(tmp_path):
    job = runs.write_job(tmp_path)
    assert "--ranks 2" in refused(train(job, tmp_path))
    assert "the job has 2 ranks" in refused(train(job, tmp_path, "--ranks", "4"))
    assert not (tmp_path / "run").exists()


def test_an_indivisible_grid(tmp_path):
    job = runs.write_job(tmp_path, grid={"data": 1, "z": 1, "y": 3, "x": 1}, ranks=3)
    assert "grid.y" in refused(train(job, tmp_path, "--ranks", "3"))


@pytest.mark.slow
def test_missing_data(tmp_path):
    job = alone(tmp_path, train={"data": "nowhere"})
    text = refused(train(job, tmp_path))
    assert str(tmp_path / "nowhere") in text
    assert not (tmp_path / "run").exists()


@pytest.mark.slow
def test_tokens_beyond_the_vocabulary(tmp_path):
    model = {**runs.SMALL["model"], "vocabulary": 100}
    assert "vocabulary" in refused(train(alone(tmp_path, model=model), tmp_path))


@pytest.mark.slow
def test_a_token_file_that_was_changed_later(tmp_path):
    from runtime.data.build import build_dataset

    build_dataset(tmp_path / "data", (f"document {i} " * 20 for i in range(300)))
    tokens = np.fromfile(tmp_path / "data" / "train.bin", dtype=np.uint16)
    tokens[:] = 300
    tokens.tofile(tmp_path / "data" / "train.bin")
    text = refused(train(alone(tmp_path, train={"data": "data"}), tmp_path))
    assert "train.bin" in text
    assert "300" in text


def test_the_wrong_number_of_ranks_under_a_launcher(tmp_path):
    job = runs.write_job(tmp_path)
    environment = {
        "RANK": "0",
        "WORLD_SIZE": "1",
        "LOCAL_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": "29511",
    }
    text = refused(train(job, tmp_path, **environment))
    assert "the job wants 2 ranks" in text
    assert "1 were started" in text


def test_a_broken_launcher_environment(tmp_path):
    job = runs.write_job(tmp_path)
    assert "MASTER_PORT" in refused(train(job, tmp_path, RANK="0", WORLD_SIZE="2"))
    assert "WORLD_SIZE" in refused(train(job, tmp_path, RANK="0", WORLD_SIZE="two", MASTER_PORT="1"))


def test_a_port_in_use(tmp_path):
    job = runs.write_job(tmp_path, train={"timeout": "5 s"})
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        text = refused(train(job, tmp_path, RANK="0", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
    assert f"MASTER_PORT = {port}" in text


def test_nobody_at_the_meeting_point(tmp_path):
    job = runs.write_job(tmp_path, train={"timeout": "2 s"})
    text = refused(train(job, tmp_path, RANK="1", WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT="1"))
    assert "cannot reach the meeting point 127.0.0.1:1" in text


def test_output_that_cannot_be_written(tmp_path):
    (tmp_path / "run").write_text("a file\n")
    text = refused(train(alone(tmp_path), tmp_path))
    assert "choose another --out" in text
    assert (tmp_path / "run").read_text() == "a file\n"


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write anywhere")
def test_a_read_only_directory(tmp_path):
    (tmp_path / "locked").mkdir(mode=0o500)
    text = refused(runs.train(alone(tmp_path), "--out", str(tmp_path / "locked" / "run")))
    assert "cannot be written" in text


@pytest.mark.slow
def test_a_directory_that_is_no_run_is_left_alone(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    for extra in ([], ["--force"]):
        assert "not a run of Fourfold" in refused(train(alone(tmp_path), tmp_path, *extra))
    assert (tmp_path / "run" / "thesis.tex").exists()


@pytest.mark.slow
def test_force_deletes_only_what_a_run_wrote(tmp_path):
    job = alone(tmp_path, train={"steps": 2})
    done = train(job, tmp_path)
    assert done.returncode == 0, done.stderr
    (tmp_path / "run" / "thesis.tex").write_text("years of work")
    assert train(job, tmp_path, "--force").returncode == 0
    assert (tmp_path / "run" / "thesis.tex").read_text() == "years of work"


@pytest.mark.slow
def test_force_deletes_nothing_if_the_new_run_cannot_begin(tmp_path):
    job = alone(tmp_path, train={"steps": 2})
    assert train(job, tmp_path).returncode == 0
    refused(train(job, tmp_path, "--force", "--set", "train.data=nowhere"))
    refused(train(job, tmp_path, "--force", "--set", "train.initial_weights=nowhere"))
    assert list((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.slow
def test_a_start_that_was_killed_early_does_not_block_the_next(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json.tmp").write_text("{")
    done = train(alone(tmp_path, train={"steps": 2}), tmp_path)
    assert done.returncode == 0, done.stderr


@pytest.mark.slow
def test_a_prompt_beyond_the_vocabulary(tmp_path):
    from runtime.data.build import build_dataset

    build_dataset(tmp_path / "data", (f"document {i} " * 20 for i in range(300)))
    model = {**runs.SMALL["model"], "vocabulary": 128}
    train_ = {"data": "data", "sample": {"prompt": "é"}}
    text = refused(train(alone(tmp_path, model=model, train=train_), tmp_path))
    assert "train.sample.prompt" in text


def test_ranks_under_a_launcher(tmp_path):
    job = runs.write_job(tmp_path)
    text = refused(train(job, tmp_path, "--ranks", "2", RANK="0", WORLD_SIZE="2", MASTER_PORT="1"))
    assert "started by torchrun already" in text


@pytest.mark.slow
def test_another_run_is_not_continued(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text(json.dumps({"name": "small", "seed": 7}))
    text = refused(train(alone(tmp_path), tmp_path))
    assert "holds a run with another" in text
    assert "seed" in text


@pytest.mark.slow
def test_a_damaged_run(tmp_path):
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "run.json").write_text("{")
    assert "is damaged" in refused(train(alone(tmp_path), tmp_path))


@pytest.mark.slow
def test_half_precision_is_refused(tmp_path):
    assert "fp16 needs loss scaling" in refused(train(alone(tmp_path, precision="fp16"), tmp_path))


@pytest.mark.slow
def test_attention_kernels_by_name_are_for_simulation(tmp_path):
    job = alone(tmp_path, machine="dgx-a100", attention="triton")
    assert "the runtime trains with flash, fused_softmax, plain" in refused(train(job, tmp_path))


def test_graphs_are_for_simulation(tmp_path):
    job = alone(tmp_path, machine="dgx-a100", cuda_graphs=True)
    assert "cuda_graphs = True: is for simulation" in refused(train(job, tmp_path))


def test_a_profiler_is_for_simulation(tmp_path):
    job = alone(tmp_path, machine="dgx-a100", profiler=True)
    assert "profiler = True: is for simulation; use the runtime's own traces: --trace" in refused(train(job, tmp_path))


def test_inputs_on_the_host_are_for_simulation(tmp_path):
    job = alone(tmp_path, machine="dgx-a100", recompute=True, recompute_inputs="host")
    assert "recompute_inputs = 'host': is for simulation; the runtime trains with recompute_inputs: device" in refused(
        train(job, tmp_path)
    )


def test_no_gpu_here(tmp_path):
    import torch

    if torch.cuda.is_available():
        pytest.skip("there is one")
    text = refused(train(alone(tmp_path, train={"device": "cuda"}), tmp_path))
    assert "sees no CUDA or ROCm device" in text


def test_traces_are_not_overwritten(tmp_path):
    (tmp_path / "trace").mkdir()
    text = refused(train(alone(tmp_path), tmp_path, "--trace", str(tmp_path / "trace")))
    assert "--force" in text


def test_a_place_for_traces_that_cannot_be_is_refused_before_anything_is_trained(tmp_path):
    """It is written at the end of a training, of which it is all that was wanted."""
    (tmp_path / "file").write_text("")
    text = refused(train(alone(tmp_path), tmp_path, "--trace", str(tmp_path / "file" / "trace")))
    assert "is a file; choose another place" in text
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes.txt").write_text("")
    text = refused(train(alone(tmp_path), tmp_path, "--trace", str(tmp_path / "mine"), "--force"))
    assert "it will not be replaced" in text
    assert "--force" not in refused(train(alone(tmp_path), tmp_path, "--trace", str(tmp_path / "mine")))
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize(
    ("steps", "words"),
    [("40", "steps 0 to 11"), ("3-12", "steps 0 to 11"), ("5-3", "such as 3-5"), ("9" * 5000, "such as 3-5")],
    ids=["none", "beyond the last", "backwards", "huge"],
)
def test_steps_to_trace_are_of_the_run(tmp_path, steps, words):
    """A trace is written when its last step is done: of one that never comes there would be none."""
    assert words in refused(train(alone(tmp_path), tmp_path, "--trace", str(tmp_path / "t"), "--trace-steps", steps))
    assert not (tmp_path / "run").exists()


def test_one_rank_with_another_problem_stops_all(tmp_path):
    """What is wrong on one rank only is told once, with the rank."""
    from runtime.data.build import build_dataset

    build_dataset(tmp_path / "data", (f"document {i} " * 20 for i in range(300)))
    job = runs.write_job(tmp_path, train={"data": "data"})
    other = tmp_path / "elsewhere"
    other.mkdir()
    lame = other / "job.yaml"
    lame.write_text(job.read_text())
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    first = runs.start(job, "--out", str(tmp_path / "run"), RANK="0", **shared)
    second = runs.start(lame, "--out", str(tmp_path / "run"), RANK="1", **shared)
    _, errors = first.communicate(timeout=60)
    _, silent = second.communicate(timeout=60)
    assert (first.returncode, second.returncode) == (2, 2)
    assert "rank 1: " in errors
    assert str(other / "data") in errors
    assert silent == ""


def full_disk(folder: Path, size: str) -> bool:
    """Mount a small file system, if this user may."""
    folder.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(folder)]
    return subprocess.run(mount, capture_output=True, check=False).returncode == 0


@pytest.mark.slow
def test_a_full_disk(tmp_path):
    if not full_disk(tmp_path / "disk", "1200k"):
        pytest.skip("needs the right to mount a file system")
    try:
        job = alone(tmp_path, train={"steps": 40, "checkpoints": {"every": 4, "keep": 50}})
        text = refused(runs.train(job, "--out", str(tmp_path / "disk" / "run")))
        assert "disk" in text
        checkpoints = tmp_path / "disk" / "run" / "checkpoints"
        names = sorted(path.name for path in checkpoints.iterdir())
        assert names, "at least one was written before"
        assert all(name.startswith("step-") for name in names), names
        # what is there is whole: the run goes on from it when there is room
        subprocess.run(["mount", "-o", "remount,size=64m", str(tmp_path / "disk")], check=True)
        done = runs.train(job, "--out", str(tmp_path / "disk" / "run"))
        assert done.returncode == 0, done.stderr
        assert f"after step {int(names[-1][5:])} " in done.stdout
    finally:
        subprocess.run(["umount", str(tmp_path / "disk")], check=False)
