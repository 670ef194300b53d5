"""At the start: which copies in memory are brought to the disk, and when they are deleted. No training."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
import torch

from runtime.checkpoint.manifest import MANIFEST, read_manifest
from runtime.checkpoint.pieces import Piece
from runtime.launch.board import Board
from runtime.launch.environment import Process
from runtime.parallel.host import host_name
from runtime.plan.options import located
from runtime.plan.plan import Plan
from runtime.survive.history import KEY, History
from runtime.survive.memory import exchange
from runtime.survive.memory.copies import Session
from runtime.survive.memory.part import Part, write_part
from runtime.survive.memory.place import Place
from runtime.survive.memory.recovery import recover
from tests.runtime import runs
from twin.strategies import load_job
from twin.strategies.four_d.grid import Grid

RUN = "0123456789abcdef"
ALONE = Grid(data=1, z=1, y=1, x=1)


@pytest.fixture
def plan(tmp_path) -> Plan:
    """A run of one rank, whose directory and memory are empty."""
    (tmp_path / "memory").mkdir()
    checkpoints = {"memory_every": 4, "memory_directory": str(tmp_path / "memory")}
    described = runs.write_job(tmp_path, ranks=1, grid=ALONE.model_dump(), train={"checkpoints": checkpoints})
    job = load_job(described)
    return Plan(job, located(job.train), tmp_path / "run")


def place_of(plan: Plan) -> Place:
    return Place.of(plan.options.checkpoints.memory_directory, plan.out, host_name())


def hold(plan: Plan, step: int, session: str = "00000001") -> Path:
    """Let the host hold a copy that is whole."""
    place = place_of(plan)
    place.make()
    folder = place.step(step, session)
    folder.mkdir()
    part = Part(
        run=RUN, session=session, step=step, samples=8 * step, grid=ALONE.by_axis(), rank=0, model={}, extra={KEY: []}
    )
    values = torch.full((4, 3), float(step))
    write_part(folder, part, {"model/a": [Piece("model/a", (4, 3), (0, 0), values)]})
    return folder


def save(plan: Plan, step: int) -> Path:
    """Let a checkpoint be there whose manifest is damaged."""
    path = plan.out / "checkpoints" / f"step-{step:08d}"
    path.mkdir(parents=True)
    (path / MANIFEST).write_text("{")
    return path


def recovered(plan: Plan) -> tuple[Session, str]:
    session, news = recover(plan, Board(None, Process()), {"id": RUN}, History())
    assert session is not None
    return session, news


def complete(plan: Plan) -> list[int]:
    return sorted(int(path.name[5:]) for path in (plan.out / "checkpoints").glob("step-*"))


def test_copies_are_deleted_when_a_checkpoint_is_loaded_and_not_before(plan):
    folder = hold(plan, 196)
    session, news = recovered(plan)
    assert news == "the copy of step 196 in the memory of the hosts is put together"
    assert complete(plan) == [196]
    assert folder.is_dir()
    session.loaded()
    assert not folder.exists()


@pytest.mark.parametrize("fails", ["fsync", "open"])
def test_a_disk_that_takes_no_more_leaves_the_copies_where_they_are(plan, monkeypatch, fails):
    folder = hold(plan, 196)
    if fails == "fsync":

        def full(_descriptor: int) -> None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        monkeypatch.setattr(os, "fsync", full)
    else:  # where the checkpoints would lie, there is a file
        plan.out.mkdir()
        (plan.out / "checkpoints").write_text("")
    session, news = recovered(plan)
    assert "cannot be brought to" in news
    if fails == "fsync":
        assert "No space left on device" in news
        assert list((plan.out / "checkpoints").iterdir()) == []
    session.loaded()
    assert sorted(path.name for path in folder.iterdir()) == ["rank-00000.json", "rank-00000.safetensors"]
    monkeypatch.undo()
    (plan.out / "checkpoints").is_dir() or (plan.out / "checkpoints").unlink()
    _, news = recovered(plan)  # there is space again
    assert "is put together" in news


def test_a_copy_that_is_older_than_the_newest_checkpoint_is_there_should_that_be_unreadable(plan):
    """As it is here: loaders take the newest that is whole."""
    for step in (100, 200):
        save(plan, step)
    hold(plan, 196)
    _, news = recovered(plan)
    assert complete(plan) == [100, 196, 200]
    assert read_manifest(plan.out / "checkpoints" / "step-00000196").samples == 8 * 196
    assert news.endswith("is put together, for the checkpoint of step 200 may be unreadable")


def test_one_of_the_same_step_takes_its_place(plan):
    save(plan, 200)
    hold(plan, 200)
    recovered(plan)
    assert complete(plan) == [200]
    assert read_manifest(plan.out / "checkpoints" / "step-00000200").step == 200


def test_one_that_two_checkpoints_are_newer_than_is_not_used(plan):
    for step in (198, 200):
        save(plan, step)
    folder = hold(plan, 196)
    session, news = recovered(plan)
    assert (complete(plan), news) == ([198, 200], "")
    session.loaded()
    assert not folder.exists()


def test_a_damaged_part_is_no_fault_of_the_disk(plan):
    old, new = hold(plan, 192), hold(plan, 196)
    raw = bytearray((new / "rank-00000.safetensors").read_bytes())
    raw[-1] ^= 1
    (new / "rank-00000.safetensors").write_bytes(raw)
    session, news = recovered(plan)
    assert complete(plan) == [192]
    assert "step 192" in news
    session.loaded()
    assert not old.exists()
    assert not new.exists()


def test_what_is_older_or_of_another_start_is_deleted_and_what_is_newer_is_not(plan):
    """The leader of a host may be late, and another of its ranks ahead."""
    mine = "0000000a"
    older, kept, newer = hold(plan, 4, mine), hold(plan, 8, mine), hold(plan, 12, mine)
    others = [hold(plan, step, "0000000b") for step in (4, 8, 12)]
    stranger = place_of(plan).root / "notes"
    stranger.mkdir()
    place_of(plan).keep_from(kept)
    assert not any(path.exists() for path in (older, *others))
    assert all(path.is_dir() for path in (kept, newer, stranger))
    place_of(plan).empty()
    assert list(place_of(plan).root.iterdir()) == [stranger]


def test_a_part_that_is_gone_is_told_to_the_keeper(plan):
    """It waits for a message, whatever happened to the sender's memory."""
    folder = hold(plan, 8)
    sent, problem = exchange._outgoing(folder, 0, whole=True)
    assert problem == ""
    size = (folder / "rank-00000.safetensors").stat().st_size
    assert sent[0].tolist() == [(folder / "rank-00000.json").stat().st_size, size]
    assert sum(len(each) for each in sent[2:]) == size
    (folder / "rank-00000.json").unlink()
    sent, problem = exchange._outgoing(folder, 0, whole=True)
    assert "cannot be read again" in problem
    assert [each.tolist() for each in sent] == [[exchange.NOTHING, 0]]
