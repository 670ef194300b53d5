"""Full and read-only disks, what stays and what goes, and that training is not waited for."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path

import pytest

from runtime.checkpoint import directory
from runtime.checkpoint.checkpoints import Checkpoints
from runtime.checkpoint.storage import Writer
from tests.runtime.checkpoint import tasks
from tests.runtime.pool import Pool
from twin.description.problems import DescriptionError


@contextmanager
def mounted(path: Path, options: str) -> Iterator[Path]:
    """A file system of its own, where one may be mounted."""
    path.mkdir()
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(path)]
    if os.geteuid() or subprocess.run(command, capture_output=True, check=False).returncode:
        pytest.skip("mounting a file system takes rights that this process has not")
    try:
        yield path
    finally:
        subprocess.run(["umount", str(path)], check=True)


def names(root: Path) -> list[str]:
    return sorted(path.name for path in root.iterdir())


class Run:
    """A run on one rank, whose weights are all equal to the step."""

    def __init__(self, root: Path, keep: int = 3) -> None:
        self.trainee = tasks.tiny()
        self.checkpoints = Checkpoints(root, self.trainee.context.mesh, keep=keep)

    def save_all(self, steps: int) -> None:
        for step in range(1, steps + 1):
            self.save(step)

    def save(self, step: int) -> None:
        self.trainee.context.store.master.fill_(step)
        self.checkpoints.save(self.trainee.context, self.trainee.optimizer, step=step, samples=step)


@pytest.mark.process
@pytest.mark.quick
def test_a_full_disk_is_told_by_the_next_call_and_the_one_before_stays(tmp_path, load):
    with mounted(tmp_path / "small", "size=64k") as small:
        run = Run(small / "run", keep=5)
        with pytest.raises(DescriptionError) as error:
            run.save_all(5)
        assert str(small / "run") in str(error.value)
        assert "No space left on device; free space there" in str(error.value)
        left = names(small / "run")
        assert left
        assert left == [f"step-{i:08d}" for i in range(1, len(left) + 1)]
        assert load(small / "run")[0].step == len(left)
        run.checkpoints.close()  # an error is told once


def test_a_full_disk_of_one_rank_is_told_on_all(pool, tmp_path):
    """And the next checkpoint, when there is space again, is a good one."""
    answers = pool.run(
        "tests.runtime.checkpoint.tasks:fail_to_save", 4, grid=tasks.grid("1x1x2x2"), root=str(tmp_path), full=[2]
    )
    for first, second in answers:
        assert "rank 2: File too large; raise the limit of file sizes" in first
        assert second == ""
    assert names(tmp_path) == ["step-00000002"]


@pytest.mark.process
def test_ranks_agree_on_other_things_while_a_checkpoint_is_written(tmp_path):
    """Over another group: two threads on one would take each other's words, and gloo ends the process."""
    with closing(Pool(2)) as pool:
        answers = pool.run(
            "tests.runtime.checkpoint.tasks:agree_meanwhile", 2, grid=tasks.grid("1x2x1x1"), root=str(tmp_path)
        )
    for agreed, refused, saved in answers:
        assert agreed == list(range(50))
        assert refused == "a checkpoint may be being written: wait for it first"
        assert saved == 2


@pytest.mark.process
@pytest.mark.quick
def test_a_read_only_directory_is_told_at_once(tmp_path):
    with mounted(tmp_path / "fixed", "ro") as fixed:
        for root in (fixed, fixed / "run"):
            with pytest.raises(DescriptionError, match="Read-only file system; choose another"):
                Run(root)


def test_a_file_in_the_way_is_told(tmp_path):
    (tmp_path / "file").write_text("")
    for root in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(DescriptionError, match="choose another directory"):
            Run(root)


def test_the_last_k_stay(tmp_path):
    run = Run(tmp_path, keep=2)
    for step in range(1, 6):
        run.save(step)
        run.checkpoints.wait()
        assert names(tmp_path) == [f"step-{s:08d}" for s in (step - 1, step) if s > 0]
    run.checkpoints.close()
    with pytest.raises(DescriptionError, match="keep at least 1"):
        Run(tmp_path, keep=0)


def test_what_could_not_be_loaded_does_not_count_as_kept(root, load):
    for name in ("step-00000002", "step-00000003"):
        (root / name / "checkpoint.json").unlink()
    run = Run(root, keep=2)
    trainee = run.trainee
    assert run.checkpoints.load_latest(trainee.context, trainee.optimizer).step == 1
    for step, expected in ((2, [1, 2, 3]), (3, [2, 3]), (4, [3, 4])):
        run.save(step)
        run.checkpoints.wait()
        assert names(root) == [f"step-{s:08d}" for s in expected]
        assert load(root)[0].step == step if step > 2 else load(root)[1] == 2


def test_what_a_dead_run_left_is_removed_and_nothing_else(root, load):
    for name in (".step-00000004.01234567", ".step-00000003.89abcdef.replaced"):
        (root / name).mkdir()
        (root / name / "rank-00000.safetensors").write_text("half")
    (root / "step-00000002").rename(root / ".step-00000002.00000000.replaced")
    for name in ("notes", ".hidden", ".step-5.x"):
        (root / name).mkdir()
    assert load(root)[1] == 3
    assert names(root) == [".hidden", ".step-5.x", "notes", "step-00000001", "step-00000002", "step-00000003"]


def test_training_goes_on_while_the_disk_is_slow(tmp_path, load, monkeypatch):
    """What is saved is the state of the call, and the next save waits for the one before."""
    go_on = threading.Event()
    write = Writer.write_data

    def slowly(self, *arguments):
        assert go_on.wait(30)
        return write(self, *arguments)

    monkeypatch.setattr(Writer, "write_data", slowly)
    run = Run(tmp_path)
    run.save(1)
    run.trainee.context.store.master.fill_(99)
    assert directory.newest_first(tmp_path) == []
    second = threading.Thread(target=run.save, args=(2,))
    second.start()
    second.join(0.2)
    assert second.is_alive()
    go_on.set()
    second.join()
    run.checkpoints.close()
    assert [path.name for path in directory.newest_first(tmp_path)] == ["step-00000002", "step-00000001"]
    (tmp_path / "step-00000002").rename(tmp_path / "away")
    assert load(tmp_path)[1] == 1


def test_a_fault_in_the_background_is_not_lost(tmp_path, monkeypatch):
    def broken(*_):
        raise KeyError("of the code")

    monkeypatch.setattr(Writer, "write_data", broken)
    run = Run(tmp_path)
    run.save(1)
    with pytest.raises(RuntimeError, match="of the code"):
        run.save(2)
    assert names(tmp_path) == []


@pytest.mark.parametrize("extra", [{"a": float("nan")}, {"a": {1, 2}}])
def test_what_is_no_json_is_refused_by_the_call_itself(tmp_path, extra):
    run = Run(tmp_path)
    with pytest.raises((ValueError, TypeError), match="JSON"):
        run.checkpoints.save(run.trainee.context, run.trainee.optimizer, step=1, samples=0, extra=extra)
