"""Whenever a saver is killed, a complete checkpoint is found."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.checkpoint.directory import newest_first
from tests.runtime.checkpoint import tasks
from tests.runtime.pool import Pool

pytestmark = pytest.mark.process


def test_killed_before_every_touch_of_the_disk(tmp_path):
    """The old one is found up to some touch, the new one from then on; nothing else lies there."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.runtime.checkpoint.killed", str(tmp_path)],
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    outcomes = json.loads(done.stdout)
    assert len(outcomes["new"]) > 10
    for name, step in (("new", 2), ("again", 1)):
        values = [value for _, value, _ in outcomes[name]]
        assert values == sorted(values)
        assert set(values) == {1.0, 2.0}
        assert {found for found, value, _ in outcomes[name] if value == 2.0} == {step}
        left = {entry for *_, entries in outcomes[name] for entry in entries}
        assert left <= {"step-00000001", "step-00000002"}
    assert outcomes["new"][-1] == [2, 2.0, ["step-00000002"]]


def test_a_rank_is_killed_while_it_writes(tmp_path):
    """The others hear of it, and the checkpoint before is the newest."""
    grid = tasks.grid("1x2x1x1")
    pool = Pool(2)
    try:
        pool.run("tests.runtime.checkpoint.tasks:save", 2, grid=grid, root=str(tmp_path), steps=[1])
        for pipe in pool.pipes:
            pipe.send(("tests.runtime.checkpoint.tasks:die", {"grid": grid, "root": str(tmp_path)}))
        assert pool.pipes[0].poll(60)
        fine, error = pool.pipes[0].recv()
    finally:
        for process in pool.processes:
            process.kill()
            process.join()
        pool._folder.cleanup()
    assert fine, error
    assert "rank 0 (data 0, z 0, y 0, x 0): checkpoint of step 2 failed: a peer has probably died" in error
    assert [path.name for path in newest_first(Path(tmp_path))] == ["step-00000001"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000001"]
