"""Ask and tell: the twin's order, failures as penalties, what is left, and an optimizer's loop."""

from __future__ import annotations

import itertools
import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.studies.studies_files import TINY, write_study
from twin.description.problems import DescriptionError
from twin.engine.simulate import simulate
from twin.search.search import search
from twin.strategies import load_job
from twin.studies.spaces import trials_of_job, trials_of_study
from twin.studies.trials import Trial, Trials

SECONDS = [3.0, 1.0, None, 2.0, 1.0]
TWO_FACTORS = {"recompute": [True, False], "grid.z": [8, 7, 16]}


def space(seconds: list[float | None] = SECONDS, work: float | None = None) -> list[Trial]:
    """Trials of one factor; with `work`, the objective is work over seconds."""
    return [
        Trial(
            number=i,
            values={"micro": i},
            job={},
            predicted_seconds=s,
            predicted=s if work is None or s is None else work * i / s,
            reason="" if s is not None else "does not fit",
        )
        for i, s in enumerate(seconds, 1)
    ]


def asked(trials: Trials) -> list[int]:
    return [trial.number for trial in iter(trials.ask, None)]


def test_the_twins_best_comes_first_and_what_cannot_run_never():
    trials = Trials(space())
    assert [trial.number for trial in trials.left] == [2, 5, 4, 1]
    assert asked(trials) == [2, 5, 4, 1]
    assert trials.ask() is None
    assert trials.left == ()


def test_of_a_rate_the_most_comes_first():
    trials = Trials(space(work=10.0), "tokens_per_second")
    assert asked(trials) == [5, 2, 4, 1]  # 50, 20, 20 and 3.3: equal ones by number


@given(st.lists(st.one_of(st.none(), st.floats(0.1, 10)), max_size=30), st.integers(0, 5), st.floats(0, 1))
def test_every_feasible_trial_is_asked_once_and_the_seed_decides_the_order(seconds, seed, explore):
    able = [i for i, s in enumerate(seconds, 1) if s is not None]
    orders = [asked(Trials(space(seconds), seed=seed, explore=explore)) for _ in range(2)]
    assert orders[0] == orders[1]
    assert sorted(orders[0]) == able


def test_another_seed_explores_in_another_order():
    some = [float(i) for i in range(1, 30)]
    orders = [asked(Trials(space(some), seed=seed, explore=1.0)) for seed in (0, 1)]
    assert orders[0] != orders[1]
    assert asked(Trials(space(some), explore=0.0, seed=1)) == list(range(1, 30))


def test_what_is_told_is_counted_and_a_failure_is_the_worst():
    trials = Trials(space())
    first, second = trials.ask(), trials.ask()
    assert first is not None
    assert second is not None
    failed = trials.tell(first, failure="out of memory")
    assert trials.best is None
    assert trials.value(failed) == math.inf
    trials.tell(second, 1.5)
    trials.tell({"micro": 4}, seconds=4)
    assert trials.best is not None
    assert (trials.best.trial.number, trials.best.seconds) == (5, 1.5)
    assert trials.value(failed) == 4.0
    assert [told.trial.number for told in trials.told] == [2, 5, 4]
    assert asked(trials) == [1]


@given(st.lists(st.floats(0.5, 2), min_size=6, max_size=6), st.integers(1, 5))
def test_where_the_twin_errs_by_one_factor_the_first_is_the_best_and_nothing_else_is_hopeful(seconds, factor):
    trials = Trials(space(seconds))
    first = trials.ask()
    assert first is not None
    assert first.predicted_seconds == min(seconds)
    trials.tell(first, factor * min(seconds))
    assert trials.hopeful == ()


def test_what_is_hopeful_is_what_the_best_error_seen_would_make_the_best():
    trials = Trials(space([1.0, 2.0, 3.0, 4.0]))
    assert trials.hopeful == trials.left
    trials.tell({"micro": 1}, 2.0)
    assert trials.hopeful == ()  # all twice as slow as predicted: 4, 6, 8
    trials.tell({"micro": 2}, 1.8)
    assert [trial.number for trial in trials.hopeful] == []  # times 0.9: 2.7, 3.6
    trials.tell({"micro": 4}, 1.9)
    assert [trial.number for trial in trials.hopeful] == [3]  # times 0.475: 1.4


@given(st.floats(0.1, 100), st.floats(0.1, 100))
def test_a_rate_told_is_what_that_time_gives(predicted, seconds):
    trials = Trials(space([predicted], work=7.0), "tokens_per_second")
    assert trials.value(trials.tell({"micro": 1}, seconds)) == pytest.approx(7.0 / seconds)


@pytest.mark.parametrize(
    ("trial", "keys", "said"),
    [
        ({"micro": 9}, {"seconds": 1.0}, "are none of the space"),
        ({"micro": 1}, {}, "either seconds or failure"),
        ({"micro": 1}, {"seconds": 1.0, "failure": "x"}, "either seconds or failure"),
        ({"micro": 1}, {"seconds": 0.0}, "must be a time"),
        ({"micro": 1}, {"seconds": math.nan}, "must be a time"),
        ({"micro": 2}, {"seconds": 1.0}, "told already"),
        ({"micro": 3}, {"seconds": 1.0}, "has no figures of this point"),
    ],
)
def test_what_cannot_be_told(trial, keys, said):
    trials = Trials(space(work=1.0), "tokens_per_second")
    trials.tell({"micro": 2}, 1.0)
    with pytest.raises(DescriptionError, match=said):
        trials.tell(trial, **keys)


def test_a_log_outlives_the_process(tmp_path):
    log = tmp_path / "measured.jsonl"
    trials = Trials(space(), log=log)
    first = trials.ask()
    assert first is not None
    trials.tell(first, 1.25)
    trials.tell({"micro": 4}, failure="time limit")
    again = Trials(space(), log=log)
    assert again.told == trials.told
    assert asked(again) == [5, 1]
    log.write_text(log.read_text() + "{broken\n")
    with pytest.raises(DescriptionError, match="line 3"):
        Trials(space(), log=log)


def test_a_share_is_a_share():
    with pytest.raises(DescriptionError, match="explore"):
        Trials(space(), explore=1.5)


@pytest.fixture(scope="module")
def study(tmp_path_factory) -> Trials:
    folder = tmp_path_factory.mktemp("trials")
    return trials_of_study(write_study(folder, vary=TWO_FACTORS), out=folder / "out")


def test_a_study_is_a_space(study):
    assert study.choices == TWO_FACTORS
    assert [dict(trial.values) for trial in study.space] == [
        dict(zip(TWO_FACTORS, values, strict=True)) for values in itertools.product(*TWO_FACTORS.values())
    ]
    for trial in study.space:
        assert trial.feasible == (trial.values["grid.z"] == 8)
        if trial.feasible:
            assert simulate(load_job(trial.job)).step_seconds == trial.predicted_seconds
    fastest = min((t for t in study.space if t.feasible), key=lambda t: t.predicted_seconds or 0.0)
    assert study.left[0] == fastest
    assert "grid" in study.at({"recompute": True, "grid.z": 7}).reason


@pytest.mark.full
def test_a_jobs_search_is_a_space():
    keys = TINY | {"grid": "auto", "batch": {"sequences": 32}}
    trials = trials_of_job(keys, over="recompute")
    found = search(load_job(keys), over=frozenset({"recompute"}))
    assert [t.predicted_seconds for t in trials.left] == [
        entry.figures.step_seconds for entry in found.entries if entry.figures is not None
    ]
    assert len(trials.space) == len(found.entries) > found.feasible
    first = trials.ask()
    assert first is not None
    assert simulate(load_job(first.job)).step_seconds == first.predicted_seconds
    assert trials.at(first.values) == first
    assert all(len(values) > 1 for values in trials.choices.values())
    assert {"grid.data", "batch.micro_sequences", "recompute"} <= set(trials.choices)


def test_every_option_of_a_search_is_a_plain_value():
    keys = TINY | {"grid": "auto", "batch": {"sequences": 32}, "ranks": 2}
    trials = trials_of_job(keys, over="overlap", objective="tokens_per_second")
    assert trials.choices["overlap.all_reduce"] == [True, False]
    assert all(type(value) in {int, bool, str, type(None)} for values in trials.choices.values() for value in values)
    assert len({json.dumps(dict(trial.values)) for trial in trials.space}) == len(trials.space)
    rates = [trial.predicted for trial in trials.left]
    assert rates == sorted(rates, reverse=True)


def test_an_optimizer_finds_the_best_through_it(study):
    """Optuna's loop; `json` shows that values are plain, as its samplers want them."""
    optuna = pytest.importorskip("optuna", reason="Optuna is optional")
    optuna.logging.set_verbosity(optuna.logging.ERROR)
    json.dumps(study.choices)

    def objective(trial: Any) -> float:
        point = study.at({key: trial.suggest_categorical(key, values) for key, values in study.choices.items()})
        if not point.feasible:
            raise optuna.TrialPruned(point.reason)
        return float(point.predicted_seconds or 0.0)

    sampler = optuna.samplers.TPESampler(seed=1)
    search = optuna.create_study(sampler=sampler)
    for trial in study.left[:1]:
        search.enqueue_trial(dict(trial.values))
    search.optimize(objective, n_trials=8)
    assert search.best_value == study.left[0].predicted_seconds
    assert search.trials[0].params == dict(study.left[0].values)


def test_an_objective_that_a_search_does_not_give_is_refused():
    with pytest.raises(DescriptionError, match="choose from step_seconds, tokens_per_second"):
        trials_of_job(TINY, objective="energy_joules_per_token")
