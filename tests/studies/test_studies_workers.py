"""Worker processes: one that dies takes its task with it, and nothing else."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from twin.studies.workers import completed

pytestmark = [pytest.mark.process, pytest.mark.quick]


def square_or_die(task: int) -> int:
    """Die for 3, as a process does that the system kills for want of memory."""
    if task == 3:
        os._exit(9)
    return task * task


def die_once(task: tuple[int, str]) -> int:
    """Die the first time that anyone comes to task 2."""
    number, mark = task
    if number == 2 and not Path(mark).exists():
        Path(mark).touch()
        os._exit(9)
    return number


def slow(task: int) -> int:
    """Take a while."""
    time.sleep(0.05)
    return task


def test_every_task_is_answered_and_the_deadly_one_with_none():
    answers = dict(completed(square_or_die, range(12), 2))
    assert answers == {n: None if n == 3 else n * n for n in range(12)}


def test_a_task_whose_worker_died_by_accident_is_tried_again(tmp_path):
    tasks = [(n, str(tmp_path / "mark")) for n in range(6)]
    assert sorted(answer for _, answer in completed(die_once, tasks, 2)) == list(range(6))


def test_answers_come_as_they_are_ready():
    found = completed(slow, range(100), 2)
    assert next(found)[1] in range(3)
    found.close()  # leaves the others, and ends the workers


def test_one_worker_is_this_process():
    assert [answer for _, answer in completed(identity, [1, 2], 1)] == [os.getpid(), os.getpid()]


def identity(_task: int) -> int:
    """Say which process works."""
    return os.getpid()


@pytest.mark.parametrize("workers", [2, 3])
def test_several_workers_are_other_processes(workers):
    found = {answer for _, answer in completed(identity, range(20), workers)}
    assert os.getpid() not in found
    assert 1 <= len(found) <= workers
