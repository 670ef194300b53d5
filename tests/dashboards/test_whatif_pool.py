"""The processes that simulate: they answer, can be ended, and never take the application with them."""

from __future__ import annotations

import io
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from dashboards.events import columns
from dashboards.figures.change import change, terms
from dashboards.whatif.answer import Memory, answer, shown_ranks
from dashboards.whatif.pool import MAX_WAITING, Answer, Pool
from dashboards.whatif.worker import serve
from tests.dashboards.serving import EVIL
from twin.description.problems import DescriptionError
from twin.engine.simulate import simulate
from twin.strategies import load_job

pytestmark = pytest.mark.process

JOB: dict[str, Any] = {
    "name": "small",
    "model": {"layers": 2, "hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 128},
    "machine": "laptop",
    "ranks": 4,
    "grid": {"z": 2, "x": 2},
    "batch": {"sequences": 8, "micro_sequences": 2},
}
SLOWER = {**JOB, "stragglers": [{"rank": 3, "slowdown": 2.0}]}
NEVER = (sys.executable, "-c", "import time; time.sleep(600)")
GARBAGE = (sys.executable, "-c", "import sys\nfor line in sys.stdin: print('no json', flush=True)")


def waited(pool: Pool, ticket: int, seconds: float = 60.0) -> Answer:
    end = time.monotonic() + seconds
    while (found := pool.answer(ticket)) is None:
        assert time.monotonic() < end, "no answer"
        time.sleep(0.01)
    return found


def running(pool: Pool, visitor: str, seconds: float = 30.0) -> subprocess.Popen[bytes]:
    """Wait until a visitor's request is worked on; return the process that does."""
    end = time.monotonic() + seconds
    while visitor not in pool._running:
        assert time.monotonic() < end, "nobody works on it"
        time.sleep(0.01)
    return pool._running[visitor][1]


@pytest.fixture(scope="module")
def pool() -> Iterator[Pool]:
    made = Pool(1)
    yield made
    made.close()


def test_an_answer_has_what_the_twin_simulates(pool):
    found = waited(pool, pool.ask("a", JOB, SLOWER))
    assert found.old["step_seconds"] == pytest.approx(simulate(load_job(JOB)).step_seconds, rel=1e-12)
    assert found.new["step_seconds"] == pytest.approx(simulate(load_job(SLOWER)).step_seconds, rel=1e-12)
    assert found.new["step_seconds"] > found.old["step_seconds"]
    assert 3 in found.ranks
    for table, figures in zip(found.tables, (found.old, found.new), strict=True):
        events = columns(table)
        assert events.ranks.tolist() == list(found.ranks)
        assert events.end_ns.max() / 1e9 <= figures["step_seconds"] + 1e-6


def test_the_parts_add_up_to_the_difference(pool):
    found = waited(pool, pool.ask("a", JOB, SLOWER))
    parts = terms(found.old, found.new)
    difference = found.new["step_seconds"] - found.old["step_seconds"]
    assert sum(t.difference_seconds for t in parts) == pytest.approx(difference, abs=1e-11)
    figure = change(found.old, found.new)
    ends = {y: base + x for bars in figure.data for y, base, x in zip(bars.y, bars.base, bars.x, strict=True)}
    drawn = [ends[label] for label in figure.layout.yaxis.categoryarray]
    assert drawn[0] == pytest.approx(found.old["step_seconds"])
    assert drawn[-2] == pytest.approx(drawn[-1]) == found.new["step_seconds"]


@pytest.mark.parametrize(
    ("job", "word"),
    [
        ({**JOB, "ranks": 3}, "ranks"),
        ({**JOB, "grid": "nonsense"}, "grid"),
        ({}, "missing"),
        ([], ""),
        (None, ""),
        (EVIL, ""),
        ({**JOB, "batch": {"sequences": 10**6, "micro_sequences": 1}}, "micro-steps"),
    ],
)
def test_what_cannot_run_says_why_and_the_next_one_runs(pool, job, word):
    with pytest.raises(DescriptionError) as refused:
        waited(pool, pool.ask("a", JOB, job))
    assert word in str(refused.value)
    assert "Traceback" not in str(refused.value)
    assert waited(pool, pool.ask("a", JOB, JOB)).new["ranks"] == 4


def test_a_micro_batch_may_be_left_to_memory(pool):
    found = waited(pool, pool.ask("a", JOB, {**JOB, "batch": {"sequences": 8, "micro_sequences": "auto"}}))
    assert found.new["micro_sequences"] == 4


def test_a_newer_request_takes_the_place_of_an_older_one(pool):
    tickets = [pool.ask("a", JOB, {**JOB, "seed": n}) for n in range(5)]
    assert waited(pool, tickets[-1]).new["ranks"] == 4
    gone = 0
    for ticket in tickets[:-1]:
        try:
            assert pool.answer(ticket) is not None
        except DescriptionError:
            gone += 1
    assert gone >= 3


def test_a_request_that_is_superseded_on_its_way_changes_nothing(pool):
    newer = pool.ask("late", JOB, SLOWER, asked_at=2.0)
    assert pool.ask("late", JOB, JOB, asked_at=1.0) == newer
    pool.cancel("late", asked_at=1.5)
    found = waited(pool, newer)
    assert found.new["step_seconds"] > found.old["step_seconds"]
    assert pool.newest("late") == newer
    pool.cancel("late", asked_at=3.0)
    assert pool.newest("late") > newer
    assert pool.newest("nobody") is None


def test_visitors_that_are_remembered_are_bounded(monkeypatch):
    monkeypatch.setattr("dashboards.whatif.pool.MAX_VISITORS", 3)
    pool = Pool(1, NEVER)
    for number in range(5):
        pool.cancel(f"v{number}", asked_at=1.0)
    assert [pool.newest(f"v{n}") is not None for n in range(5)] == [False, False, True, True, True]
    pool.close()


def test_a_process_that_never_answers_is_ended_after_its_time():
    pool = Pool(1, NEVER, seconds=0.3)
    with pytest.raises(DescriptionError, match="longer than"):
        waited(pool, pool.ask("a", JOB, JOB))
    pool.close()


def test_stopping_ends_the_process_and_frees_the_worker():
    pool = Pool(1, NEVER, seconds=600)
    ticket = pool.ask("a", JOB, JOB)
    process = running(pool, "a")
    pool.cancel("a")
    assert process.wait(timeout=10) != 0
    with pytest.raises(DescriptionError, match="not known any more"):
        pool.answer(ticket)
    other = pool.ask("b", JOB, JOB)
    assert running(pool, "b") is not process
    assert pool.answer(other) is None
    pool.close()
    assert process.poll() is not None


def test_a_process_that_says_nonsense_is_replaced():
    pool = Pool(1, GARBAGE)
    for visitor in ("a", "b"):
        with pytest.raises(DescriptionError, match="without an answer"):
            waited(pool, pool.ask(visitor, JOB, JOB))
    pool.close()


def test_where_no_process_can_be_started_the_page_says_so():
    pool = Pool(1, ("/nowhere/at/all",))
    for visitor in ("a", "b"):
        with pytest.raises(DescriptionError, match="no process"):
            waited(pool, pool.ask(visitor, JOB, JOB))
    pool.close()


def test_all_that_is_wrong_is_said_one_by_one(pool):
    with pytest.raises(DescriptionError) as refused:
        waited(pool, pool.ask("a", JOB, {**JOB, "ranks": 3, "precision": "x", "dropout": 7}))
    assert len(refused.value.problems) >= 2


def test_visitors_that_wait_are_bounded():
    pool = Pool(1, NEVER, seconds=600)
    pool.ask("first", JOB, JOB)
    running(pool, "first")
    for number in range(MAX_WAITING):
        pool.ask(f"v{number}", JOB, JOB)
    pool.ask("v0", JOB, SLOWER)  # in place of the one that waits
    with pytest.raises(DescriptionError, match="too many"):
        pool.ask("one more", JOB, JOB)
    assert len([t for t in threading.enumerate() if t.name == "what-if" and t in pool._threads]) == 1
    pool.close()


def test_a_worker_remembers_what_is_compared_with():
    memory = Memory()
    first = memory.simulated(JOB)
    answer(memory, JOB, SLOWER)
    assert memory.simulated(dict(reversed(JOB.items()))) is first
    for seed in range(9):
        memory.simulated({**JOB, "seed": seed})
    assert memory.simulated(JOB) is not first


def test_a_worker_answers_line_by_line_until_its_input_ends():
    lines = [json.dumps({"old": JOB, "new": JOB}), "no json", json.dumps([]), json.dumps({"old": JOB, "new": {}})]
    out = io.BytesIO()
    serve(io.BytesIO("\n".join(lines).encode()), out)
    out.seek(0)
    heads = []
    while line := out.readline():
        heads.append(json.loads(line))
        out.seek(sum(heads[-1]["sizes"]), io.SEEK_CUR)
    assert [("problem" in head) for head in heads] == [False, True, True, True]


def test_few_ranks_are_shown_the_slow_one_among_them():
    old, new = simulate(load_job(JOB)), simulate(load_job(SLOWER))
    assert {0, 3} <= set(shown_ranks(old, new))
    half = simulate(load_job({**JOB, "ranks": 2, "grid": {"x": 2}}))
    assert max(shown_ranks(half, new)) < 2
