"""A search by workers elsewhere says what it says here, whoever is ready first; its size is told before."""

from __future__ import annotations

import json
import pickle
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.search.test_across import MODEL, job_file
from twin.cli import main
from twin.engine import crew as crew_module
from twin.engine.crew import done_by
from twin.engine.simulate import simulate
from twin.search import search as search_module
from twin.search.across import across_json, search_across
from twin.search.best import Given
from twin.search.candidates import candidates
from twin.search.entries import Figures, RankedCandidate
from twin.search.estimate import estimate, words
from twin.search.search import search, without_hopeless
from twin.search.tables import search_json
from twin.strategies import load_job

FEW = {"ranks": 4, "batch": {"sequences": 8}, "model": MODEL | {"layers": 4}}


class Backwards:
    """Workers that are ready in reverse order, and get what they do pickled."""

    def __init__(self, size: int) -> None:
        self.size = size
        self.sent = 0

    def answers(self, work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
        for index, item in reversed(list(enumerate(items))):
            self.sent += 1
            there, what = pickle.loads(pickle.dumps((work, item)))
            yield index, pickle.loads(pickle.dumps(there(what)))


def without_times(answer: Any) -> Any:
    if isinstance(answer, dict):
        return {key: without_times(value) for key, value in answer.items() if key != "wall_seconds"}
    return [without_times(one) for one in answer] if isinstance(answer, list) else answer


def test_answers_are_in_the_order_of_the_items():
    done: list[int] = []
    assert done_by(Backwards(3), abs, [-3, 2, -1], lambda n, _all: done.append(n)) == [3, 2, 1]
    assert done == [0, 1, 2]


def test_a_search_is_the_same_everywhere(tmp_path):
    job = load_job(job_file(tmp_path, strategy="four_d"))
    crew = Backwards(5)
    here, there = (search(job, over=frozenset({"recompute"}), workers=workers) for workers in (1, crew))
    assert crew.sent > 1
    assert json.dumps(without_times(search_json(here))) == json.dumps(without_times(search_json(there)))


@pytest.mark.process
def test_a_search_over_strategies_is_the_same_with_any_number_of_workers(tmp_path, monkeypatch):
    """Larger waves simulate more in vain; that is not told."""
    monkeypatch.setattr(crew_module, "WAVE", 4)
    given = Given(job_file(tmp_path, strategy="four_d", **FEW))
    strategies = ["four_d", "fsdp"]
    answers = []
    for workers in (1, 2, Backwards(2), Backwards(7)):
        found = search_across(given, strategies, workers=workers)
        assert sum(one.pruned for one in found.searches.values()) > 0
        answers.append(json.dumps(without_times(across_json(found))))
    assert len(set(answers)) == 1


def test_what_a_fastest_without_contention_would_have_hidden_is_simulated(tmp_path, monkeypatch):
    """The fastest, 5 s, takes 8 s with contention: one whose floor is 6 s is simulated then, and wins."""
    job = load_job(job_file(tmp_path, strategy="four_d"))
    ready = [candidate for candidate in candidates(job) if candidate.feasible][:3]
    steps = [5.0, 7.0, 9.0]
    real = Figures.of(simulate(ready[0].job(job)))

    def judged(_base, asked):
        number = ready.index(asked[0])
        return 0.0, replace(real, step_seconds=steps[number], global_link_contention=number != 0)

    monkeypatch.setattr(search_module, "floors", lambda *_: [4.0, 6.0, 9.5])
    monkeypatch.setattr("twin.search.pruned.judged", judged)
    monkeypatch.setattr(search_module, "simulate", lambda _job: None)
    monkeypatch.setattr(Figures, "of", lambda _simulation: replace(real, step_seconds=8.0))
    entries = [RankedCandidate(candidate, number) for number, candidate in enumerate(ready, 1)]
    found = without_hopeless(job, entries, 1, lambda _done, _all: None)
    assert [entry.figures and entry.figures.step_seconds for entry in found] == [8.0, 7.0, None]
    assert [entry.floor_seconds for entry in found] == [None, None, 9.5]


def test_the_size_of_a_search_is_told_before(tmp_path):
    job = load_job(job_file(tmp_path, strategy="four_d"))
    found, told = search(job), estimate(job)
    assert (told.candidates, told.feasible) == (len(found.entries), found.feasible)
    assert told.seconds > 0
    said = words([told, told], Backwards(3), pruned=True)
    assert f"{2 * told.candidates} candidates, {2 * told.feasible} feasible" in said
    assert "with 3 workers" in said
    assert "less where floors" in said


@pytest.mark.parametrize("options", [[], ["--strategy", "four_d,fsdp"], ["--ranks", "4,8"]])
def test_a_dry_run_searches_nothing(tmp_path, capsys, monkeypatch, options):
    path, out = job_file(tmp_path, strategy="four_d", **FEW), tmp_path / "found"
    monkeypatch.setattr(search_module, "simulated", None)
    for flags in ([], ["--json"]):
        with pytest.raises(SystemExit) as ended:
            main(["search", str(path), "--dry-run", "--workers", "1", "--out", str(out), *options, *flags])
        assert not ended.value.code
        shown = capsys.readouterr().out
        if flags:
            assert json.loads(shown)["candidates"] >= json.loads(shown)["feasible"] > 0
        else:
            assert "with 1 worker," in shown
    assert not out.exists()


@pytest.mark.parametrize("options", [["--scheduler", "tcp://127.0.0.1:1", "--slurm", "2"]])
def test_one_of_both(tmp_path: Path, capsys, options):
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump({"model": "gpt2", "machine": "perlmutter", "ranks": 4, "batch": {"sequences": 8}}))
    with pytest.raises(SystemExit) as ended:
        main(["search", str(path), *options])
    assert ended.value.code == 2
    assert "leave out --scheduler" in capsys.readouterr().err
