"""Fewer ranks, more ranks: another grid, the same curve."""

from __future__ import annotations

import re
import socket
import time
from pathlib import Path

import pytest

from runtime.launch.board import Board
from runtime.launch.environment import Process
from runtime.plan.options import located
from runtime.plan.plan import Plan
from runtime.survive.elastic import fit
from runtime.train.choice import refusal
from tests.runtime import runs
from tests.runtime.survive.agents import Agents, lose_memory
from twin.cli import resolve
from twin.description.job import Job
from twin.description.problems import DescriptionError
from twin.strategies import check, load_job

STEPS = 450
"""Of a run that hosts come to and go from: it must not be over before they do. The last comes at about step 190."""


def fitted(folder: Path, there: int, *, resolve=resolve, **changes):
    """The plan of a job for so many ranks, as rank 0 of a world of one talk finds it."""
    job = load_job(runs.write_job(folder, **changes))
    plan = Plan(job, located(job.train), folder / "run")
    return fit(plan, Board(None, Process(ranks=there)), resolve)


@pytest.mark.parametrize("ranks", [1, 2, 3, 5, 8])
def test_the_largest_number_that_some_grid_takes(tmp_path, ranks):
    """Of a job of four: the batch stays, every rank that can be is used."""
    changes = {"ranks": 4, "grid": {"data": 1, "z": 2, "y": 1, "x": 2}, "train": {"elastic": True}}
    plan, why = fitted(tmp_path, ranks, **changes)
    job = plan.job
    # hidden 32, four heads and eight sequences are powers of two: so are the grids
    assert job.ranks == job.concrete_grid.ranks == max(n for n in (1, 2, 4, 8) if n <= ranks)
    assert job.batch.sequences == 8
    assert 8 % (job.concrete_grid.data * job.concrete_grid.z * job.concrete_micro_sequences) == 0
    assert f"instead of 4: training on {job.concrete_grid}" in why
    assert ("wait" in why) == (ranks not in (1, 2, 4, 8))


@pytest.mark.parametrize("layers", [2, 4])
def test_a_grid_that_is_not_trained_is_not_chosen(tmp_path, layers):
    """Of three ranks a model of two layers could share sequences only, in a way that the runtime refuses.

    Four layers divide into three stages that are not equal.
    """
    changes = {
        "strategy": "megatron",
        "flavour": "torch",
        "ranks": 4,
        "grid": {"pipeline": 2, "data": 2},
        "model": runs.SMALL["model"] | {"layers": layers, "sequence": 24},
        "context_exchange": "hierarchical",
        "train": {"elastic": True},
    }
    plan, why = fitted(tmp_path, 3, resolve=lambda job: resolve(job, refusal), **changes)
    assert plan.job.ranks == {2: 2, 4: 3}[layers]
    assert plan.job.stage_layers == {2: None, 4: (2, 1, 1)}[layers]
    assert check(plan.job) == []
    assert plan.job.concrete_grid.context == 1
    assert ("1 waits" in why) == (layers == 2)


PIPELINE = {
    "strategy": "megatron",
    "flavour": "torch",
    "ranks": 4,
    "model": runs.SMALL["model"] | {"layers": 4},
    "train": {"elastic": True},
}


@pytest.mark.parametrize(
    ("there", "given", "left_out"),
    [
        (2, {"schedule": "interleaved", "chunks": 2, "grid": {"pipeline": 2, "data": 2}}, []),
        (1, {"schedule": "interleaved", "chunks": 2, "grid": {"pipeline": 2, "data": 2}}, ["schedule", "chunks"]),
        (2, {"schedule": "zb_h1", "stage_layers": [2, 1, 1, 0], "grid": {"pipeline": 4}}, ["stage_layers"]),
        (1, {"weight_shards": 2, "grid": {"data": 4}}, ["weight_shards"]),
    ],
    ids=str,
)
def test_what_the_new_grid_cannot_have_is_left_out(tmp_path, there, given, left_out):
    """Neither more nor less, and the line that names the grid says so."""
    changes = PIPELINE | given
    plan, why = fitted(tmp_path, there, resolve=lambda job: resolve(job, refusal), **changes)
    assert plan.job.ranks == plan.job.concrete_grid.ranks == there
    assert check(plan.job) == []
    for key in given.keys() - {"grid"}:
        kept = [getattr(plan.job, key)] == [tuple(given[key]) if isinstance(given[key], list) else given[key]]
        assert kept == (key not in left_out)
        assert (f"{key}: {given[key]}" in why) == (key in left_out)
    assert ("which this grid cannot have" in why) == bool(left_out)


def test_the_jobs_own_micro_batch_is_kept_if_some_grid_takes_it(tmp_path):
    asked: list[Job] = []

    def ask(job: Job) -> Job:
        asked.append(job)
        return resolve(job)

    plan, _ = fitted(tmp_path, 8, resolve=ask, train={"elastic": True})
    assert plan.job.concrete_micro_sequences == 2
    assert len(asked) == 1
    # three sequences at a time divide twelve over four, but nothing over eight ranks along data and z
    batch = {"sequences": 24, "micro_sequences": 24}
    model = {**runs.SMALL["model"], "hidden": 31, "heads": 1}
    asked.clear()
    plan, _ = fitted(
        tmp_path,
        3,
        resolve=ask,
        batch=batch,
        model=model,
        ranks=1,
        grid={"data": 1, "z": 1, "y": 1, "x": 1},
        train={"elastic": True},
    )
    assert plan.job.ranks == 3
    assert plan.job.concrete_micro_sequences < 24
    assert len(asked) == 2


def test_the_job_itself_if_all_are_there_or_it_is_not_elastic(tmp_path):
    def never(job: Job) -> Job:
        raise AssertionError(job)

    for ranks, elastic in ((2, True), (3, False)):
        plan, why = fitted(tmp_path, ranks, resolve=never, train={"elastic": elastic})
        assert plan.job.ranks == 2
        assert why == ""


def test_nothing_fits(tmp_path):
    def nothing(job: Job) -> Job:
        raise DescriptionError([], f"{job.ranks} are too few")

    with pytest.raises(DescriptionError, match="none of 1 to 3 ranks: 3 are too few"):
        fitted(tmp_path, 3, resolve=nothing, train={"elastic": True})


@pytest.mark.process
def test_a_spare_rank_waits_and_ends_with_the_others(tmp_path):
    job = runs.write_job(tmp_path, train={"elastic": True})
    whole = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "undisturbed"))
    assert whole.returncode == 0, whole.stderr
    done = runs.train(job, "--ranks", "3", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert re.search(r"^3 ranks are there instead of 2: .*; 1 waits", done.stdout, re.MULTILINE)
    found = runs.losses(tmp_path / "run")
    assert found == pytest.approx(runs.losses(tmp_path / "undisturbed"), rel=1e-5)


@pytest.mark.process
def test_a_host_of_spare_ranks_leaves_nothing_in_memory(tmp_path):
    memory = tmp_path / "memory"
    memory.mkdir()
    checkpoints = {"memory_every": 3, "memory_directory": str(memory)}
    job = runs.write_job(tmp_path, train={"elastic": True, "checkpoints": checkpoints})
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    shared = {"WORLD_SIZE": "3", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        runs.start(job, "--out", str(tmp_path / "run"), RANK=str(r), FOURFOLD_HOST=f"host{r}", **shared)
        for r in range(3)
    ]
    said = [rank.communicate(timeout=90) for rank in ranks]
    assert [rank.returncode for rank in ranks] == [0, 0, 0], said
    assert "1 waits" in said[0][0]
    assert list(memory.iterdir()) == []


@pytest.mark.process
def test_without_elastic_the_error_says_so(tmp_path):
    job = runs.write_job(tmp_path)
    done = runs.train(job, "--ranks", "3", "--out", str(tmp_path / "run"))
    assert done.returncode == 2
    assert "train.elastic: true" in done.stderr


@pytest.mark.process
@pytest.mark.slow
def test_a_lost_host_and_one_that_comes(tmp_path):
    """Four ranks on two hosts, two on one, four again: with torchrun's own agents.

    The lost host's memory is lost with it, and the disk has nothing: what the other host holds is enough.
    """
    memory = tmp_path / "memory"
    memory.mkdir()
    checkpoints = {"every": 0, "memory_every": 2, "memory_directory": str(memory)}
    job = runs.write_job(
        tmp_path,
        ranks=4,
        grid={"data": 1, "z": 2, "y": 1, "x": 2},
        train={"steps": STEPS, "elastic": True, "timeout": "20 s", "threads": 1, "checkpoints": checkpoints},
    )
    whole = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "undisturbed"), timeout=300)
    assert whole.returncode == 0, whole.stderr
    (tmp_path / "agents").mkdir()
    agents = Agents(job, tmp_path / "agents" / "run")
    try:
        agents.start("a")
        time.sleep(1)  # who comes first keeps the meeting point
        agents.start("b")
        agents.wait_for_step(20)
        agents.kill("b")
        lose_memory("b", agents.out, memory)
        fewer = max(runs.losses(agents.out))
        agents.wait_for_step(fewer + 20)
        agents.start("b")
        shown = agents.finish()
    finally:
        agents.close()
    assert "2 ranks are there instead of 4: training on data" in shown
    assert "in the memory of the hosts is put together" in shown
    continued = [int(step) for step in re.findall(r"continuing small after step (\d+)", shown)]
    # steps done again: those since the copy before, and what was under way (a host that comes costs none)
    assert any(fewer - 4 <= step <= fewer + 1 for step in continued), (fewer, continued)
    assert continued[-1] > fewer + 20
    found = runs.losses(agents.out)
    assert list(found) == list(range(STEPS))
    assert found == pytest.approx(runs.losses(tmp_path / "undisturbed"), rel=1e-5)
    assert list(memory.iterdir()) == []
