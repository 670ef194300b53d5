"""`fourfold record` from the command line, and simulating what it wrote."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from twin.cli import main
from twin.engine.simulate import simulate
from twin.schedule.emit import Emitter
from twin.schedule.ops import Compute, Schedule
from twin.schedule.recording import read_recording, write_recording
from twin.strategies import load_job
from twin.strategies.four_d.step import generate

JOB = """
model: {layers: 2, hidden: 48, heads: 12, sequence: 16, vocabulary: 96}
machine: frontier
ranks: 8
grid: {data: 1, z: 2, y: 2, x: 2}
batch: {sequences: 4, micro_sequences: 1}
"""


@pytest.fixture
def file(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def run(capsys, *arguments: object) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(a) for a in arguments])
    told = capsys.readouterr()
    return int(ended.value.code or 0), told.out, told.err


def test_a_job_is_recorded_and_equals_the_twin(file, tmp_path, capsys) -> None:
    out = tmp_path / "r.json.gz"
    code, told, _ = run(capsys, "record", file, "--rank", 5, "--out", out)
    assert code == 0
    assert "rank 5 of 8" in told
    assert "it equals the twin's schedule, op by op" in told
    recording = read_recording(out)
    assert recording.rank == 5
    assert recording.job["name"] == "job"
    code, told, _ = run(capsys, "record", file, "--out", out)
    assert code == 2, "it is there already"
    code, told, _ = run(capsys, "record", file, "--out", out, "--force", "--json")
    assert code == 0
    answer = json.loads(told)
    assert answer["equals_twin"]
    # forward, recomputation and backward: 8 + 8 gathers, head's 1; 9 scatters; of 2 micro-steps;
    # then the replicated gradients and the norm
    assert answer["collectives"]["z"] == 2 * (8 + 8 + 1 + 9) + 2


def test_any_world_size(file, tmp_path, capsys) -> None:
    out = tmp_path / "r.json"
    code, told, _ = run(
        capsys,
        "record",
        file,
        "--ranks",
        4096,
        "--set",
        "grid.data=512",
        "--set",
        "batch.sequences=1024",
        "--rank",
        4095,
        "--out",
        out,
    )
    assert code == 0, told
    assert "rank 4095 of 4,096" in told
    code, _, err = run(capsys, "record", file, "--ranks", 4096, "--out", out, "--force")
    assert code == 2
    assert "has 8 ranks" in err


@pytest.mark.parametrize(
    ("arguments", "reason"), [(["--rank", "8"], "are 0 to 7"), (["--set", "precision=fp16"], "bf16 or fp32")]
)
def test_what_cannot_be_recorded_is_refused(file, tmp_path, capsys, arguments, reason) -> None:
    code, _, err = run(capsys, "record", file, "--out", tmp_path / "r.json", *arguments)
    assert code == 2
    assert reason in err
    assert not (tmp_path / "r.json").exists()


def test_a_difference_is_shown_and_told_by_the_exit_code(file, tmp_path, capsys, monkeypatch) -> None:
    start = Emitter.start
    monkeypatch.setattr(
        Emitter,
        "start",
        lambda self, kind, c, size, name="": start(
            self, kind, c, size + (4 if kind == "reduce_scatter" and self.layer == 1 else 0), name
        ),
    )
    code, told, _ = run(capsys, "record", file, "--out", tmp_path / "r.json")
    assert code == 1
    assert "-start   micro0/bwd/block1/mlp_down/reduce_scatter_z" in told
    assert (tmp_path / "r.json").exists()


def test_a_recording_is_simulated_as_its_job_is(file, tmp_path, capsys) -> None:
    """The same step to the last bit, once kernels are counted alike."""
    out, job = tmp_path / "r.json", load_job(file)
    run(capsys, "record", file, "--out", out)
    recording = read_recording(out)
    generated = dict(generate(job).named())
    alike = [
        replace(op, name=name, kernel=generated[name].kernel) if isinstance(op, Compute) else replace(op, name=name)
        for name, op in recording.schedule.named()
    ]
    step = simulate(job, schedule=Schedule(tuple(alike))).step_seconds
    assert step == simulate(job).step_seconds

    write_recording(out, replace(recording, schedule=Schedule(tuple(alike))), overwrite=True)
    for arguments in (["--schedule", out], [file, "--schedule", out], ["--schedule", out, "--machine", "frontier"]):
        _, told, _ = run(capsys, "simulate", *arguments, "--json")
        assert json.loads(told)["step_seconds"] == step
    assert json.loads(told)["memory"]["fits"]
    _, told, _ = run(capsys, "simulate", "--schedule", out, "--machine", "alps")
    assert "alps" in told
    for key, change in {
        "batch": "batch.sequences=64",
        "recompute": "recompute=false",
        "model": "model.layers=3",
        "clip_gradients": "clip_gradients=false",
    }.items():
        for arguments in (["--schedule", out], [file, "--schedule", out]):
            code, _, err = run(capsys, "simulate", *arguments, "--set", change)
            assert (code, change.partition("=")[0] in err, "in the recording" in err) == (2, True, True), key
    code, *_ = run(capsys, "simulate", "--schedule", out, "--set", "stragglers=[{rank: 0, slowdown: 2}]")
    assert code == 0
    code, _, err = run(capsys, "simulate")
    assert code == 2
    assert "--schedule" in err
