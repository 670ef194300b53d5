"""A user's own module under `auto_parallelize`: recorded for any rank, and simulated."""

from __future__ import annotations

import json
import runpy
from pathlib import Path

import pytest
import torch
from torch import nn

from runtime import auto_parallelize
from runtime.recorder import record_step
from twin.cli import main
from twin.description.problems import DescriptionError
from twin.engine.replay import replay
from twin.schedule.kernels import Gemm, Memory
from twin.schedule.ops import Compute, Start, Wait
from twin.schedule.recording import write_recording
from twin.strategies.four_d.grid import Grid

GRID = Grid(data=2, z=2, y=2, x=4)
ROWS, WIDTH = 6, 64


def build(mesh, *, look: bool = False):
    """Make two linears, 64 → 128 → 64, with GELU between, and AdamW."""
    with auto_parallelize(mesh) as parallel:
        model = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)

    def step() -> None:
        loss = model(torch.ones(ROWS, WIDTH)).square().mean()
        if look:
            float(loss)
        optimizer.zero_grad()
        loss.backward()
        parallel.reduce_gradients()
        parallel.clip_grad_norm_(1.0)
        optimizer.step()

    return parallel, step


@pytest.fixture(scope="module")
def recording():
    """Of rank 13."""
    return record_step(GRID, 13, build)


def test_products_are_those_of_the_cut_layers(recording) -> None:
    """First layer normal (contracts over x, produces over y), second transposed; 4 bytes a number."""
    named = {n: op.kernel for n, op in recording.schedule.named() if isinstance(op, Compute)}
    products = {n: (k.m, k.n, k.k) for n, k in named.items() if isinstance(k, Gemm)}
    up_n, up_k, down_n, down_k = 128 // 2, 64 // 4, 64 // 4, 128 // 2
    assert products == {
        "fwd/0/gemm": (ROWS, up_n, up_k),
        "fwd/2/gemm": (ROWS, down_n, down_k),
        "bwd/2/input_gradient": (ROWS, down_k, down_n),
        "bwd/2/weight_gradient": (down_n, down_k, ROWS),
        "bwd/0/weight_gradient": (up_n, up_k, ROWS),  # nobody needs the gradient of the input
    }


def test_collectives_and_their_order(recording) -> None:
    """The second gather is ahead of the first product, for a first step has learnt the order."""
    mark = {Start: ">", Wait: "<", Compute: ""}
    text = [
        mark[type(op)] + name
        for name, op in recording.schedule.named()
        if not isinstance(op, Compute) or not isinstance(op.kernel, Memory)
    ]
    assert text[:11] == [
        ">fwd/0/all_gather_z",
        ">fwd/2/all_gather_z",
        "<fwd/0/all_gather_z",
        "fwd/0/gemm",
        ">fwd/0/all_reduce_x",
        "<fwd/0/all_reduce_x",
        ">fwd/0/all_gather_y",
        "<fwd/0/all_gather_y",
        "<fwd/2/all_gather_z",
        "fwd/2/gemm",
        ">fwd/2/all_reduce_y",
    ]
    size = {name: op.bytes for name, op in recording.schedule.named() if isinstance(op, Start)}
    assert size["fwd/0/all_gather_z"] == 4 * (128 // 2) * (64 // 4)
    assert size["fwd/0/all_reduce_x"] == 4 * ROWS * 128 // 2
    assert size["fwd/0/all_gather_y"] == 4 * ROWS * 128
    assert size["bwd/2/reduce_scatter_z"] == 4 * (64 // 4) * (128 // 2)
    # a flag for each gradient goes with them; the two shards are 512 elements each
    assert size["reduce/gradients/weights0/all_reduce_data"] == 4 * (2 + 2 * 512)


def test_work_without_a_name_is_written_down_too(recording) -> None:
    work = {n: op for n, op in recording.schedule.named() if isinstance(op, Compute) and isinstance(op.kernel, Memory)}
    assert {op.phase for op in work.values()} == {"fwd", "bwd", "optimizer"}
    adam = [op.kernel for op in work.values() if op.phase == "optimizer"]
    # weights, gradients and two moments of a rank's own: 2 shards of 512, biases of 128 and 64
    own = 4 * (2 * 512 + 128 + 64)
    assert sum(k.bytes for k in adam) >= 4 * own


@pytest.mark.parametrize("rank", [0, 31])
def test_every_rank_does_the_same(recording, rank) -> None:
    assert record_step(GRID, rank, build).schedule == recording.schedule


def test_without_peers_there_is_nothing_to_say() -> None:
    alone = record_step(Grid(), 0, build)
    assert not [op for op in alone.schedule.ops if isinstance(op, Start)]
    kernels = [op.kernel for op in alone.schedule.ops if isinstance(op, Compute)]
    assert sum(k.flops for k in kernels if isinstance(k, Gemm)) == 5 * 2 * ROWS * 64 * 128


def test_a_step_that_looks_at_numbers_is_told_so() -> None:
    with pytest.raises(DescriptionError, match=r"leave out \.item"):
        record_step(GRID, 0, lambda mesh: build(mesh, look=True))
    assert record_step(GRID, 0, build).schedule.ops, "and the next recording works"


def test_a_recording_is_simulated_without_a_job(recording, tmp_path, capsys) -> None:
    path = tmp_path / "own.json.gz"
    write_recording(path, recording)
    replayed = replay(path, None, "frontier", [], "folded")
    each = replay(path, None, "frontier", [], "des")
    assert each.simulation.step_seconds == pytest.approx(replayed.simulation.step_seconds, rel=1e-9)
    main_returns(
        [
            "simulate",
            "--schedule",
            str(path),
            "--machine",
            "frontier",
            "--json",
            "--out",
            str(tmp_path / "run"),
            "--chrome",
            str(tmp_path / "t.json"),
        ]
    )
    answer = json.loads(capsys.readouterr().out)
    assert answer["step_seconds"] == replayed.simulation.step_seconds
    assert "memory" not in answer
    parts = (
        answer["compute_seconds"]
        + answer["slowest_device_wait_seconds"]
        + answer["idle_seconds"]
        + answer["exposed_communication_seconds"]
    )
    assert parts == pytest.approx(answer["step_seconds"], rel=1e-9)
    assert (tmp_path / "run" / "timeline.html").is_file()
    main_returns(["simulate", "--schedule", str(path), "--machine", "frontier"])
    assert "recorded schedule on 32 ranks of frontier" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ([], "name the machine"),
        (["--machine", "nowhere"], "choose from"),
        (["--machine", "laptop"], "devices"),
        (["--machine", "frontier", "--interval"], "--interval"),
        (["examples/tiny-gpt.yaml"], "was recorded on data 2"),
    ],
    ids=str,
)
def test_what_does_not_fit_is_refused(recording, tmp_path, capsys, arguments, reason) -> None:
    path = tmp_path / "own.json"
    write_recording(path, recording)
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *arguments, "--schedule", str(path)])
    assert ended.value.code == 2
    assert reason in capsys.readouterr().err


def main_returns(arguments: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert ended.value.code == 0


@pytest.mark.full
def test_the_example_records_4096_ranks(tmp_path, monkeypatch, capsys) -> None:
    example = Path(__file__).parents[2] / "examples" / "record_own_model.py"
    monkeypatch.setattr("sys.argv", [str(example), str(tmp_path / "own.json.gz")])
    runpy.run_path(str(example), run_name="__main__")
    assert "rank 1234 of data 64 × z 8 × y 2 × x 4" in capsys.readouterr().out
    assert replay(tmp_path / "own.json.gz", None, "frontier", [], "folded").simulation.job.ranks == 4096
