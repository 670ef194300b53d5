"""`strategy: auto`: the fastest of what every strategy finds; of what is not refused; and as overrides of the file."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.strategies.toy import Toy
from tests.tiers import few
from twin import api
from twin.cli import main
from twin.description.job import Job
from twin.description.problems import DescriptionError
from twin.engine.simulate import simulate
from twin.search.across import search_across
from twin.search.best import Given
from twin.search.chosen import chosen
from twin.search.search import Search, search
from twin.strategies import AUTO, load_job, names, registered

MODEL = {"layers": 2, "hidden": 64, "heads": 2, "sequence": 32, "vocabulary": 256}
JOB: dict[str, Any] = {"model": MODEL, "machine": "dgx-a100", "ranks": 2, "strategy": AUTO, "batch": {"sequences": 2}}


def job_file(folder: Path, **keys: Any) -> Path:
    path = folder / "job.yaml"
    path.write_text(yaml.safe_dump(JOB | keys), encoding="utf-8")
    return path


def fastest(found: Search) -> float:
    return min(entry.figures.step_seconds for entry in found.entries if entry.figures is not None)


def said_by(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> tuple[str, str]:
    with pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert (ended.value.code or 0) == code, captured.err
    assert "Traceback" not in captured.err
    return captured.out, captured.err


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let commands simulate in this process."""
    monkeypatch.setattr("twin.engine.parallel.cores", lambda: 1)


@pytest.mark.full
@pytest.mark.parametrize("keys", [{}, {"recompute": False}], ids=str)
def test_simulate_takes_the_fastest_of_all_strategies(tmp_path: Path, keys: dict[str, Any]) -> None:
    """What the file does not say is each strategy's own default: plain data parallelism knows no recomputation."""
    path = job_file(tmp_path, **keys)
    found = search_across(Given(path), names())
    assert set(found.searches) == set(names())
    predicted = api.simulate(path)
    assert predicted.step_seconds == min(map(fastest, found.searches.values()))
    assert predicted.job.strategy == next(iter(found.searches))
    assert predicted.choice is not None
    assert predicted.choice.among_strategies
    told = {one["strategy"]: one["step_seconds"] for one in predicted.as_json["strategies"]}
    assert told == {name: fastest(one) for name, one in found.searches.items()}


@pytest.mark.full
@pytest.mark.usefixtures("one_core")
def test_the_commands_say_what_was_compared(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path, out = job_file(tmp_path, batch={"sequences": 1}), tmp_path / "found"
    shown, _ = said_by(capsys, "simulate", path)
    assert shown.startswith("strategy: auto, chosen by simulation")
    assert "fsdp: ranks = 2: no grid divides" in shown
    answer = json.loads(said_by(capsys, "simulate", path, "--json")[0])
    assert f"The fastest is simulated: {answer['strategy']}" in shown
    found = json.loads(said_by(capsys, "search", path, "--workers", 1, "--out", out, "--json")[0])
    assert (found["strategy"], found["best"]["step_seconds"]) == (answer["strategy"], answer["step_seconds"])
    assert set(found["cannot_run"]) == set(answer["cannot_run"]) == {"ddp", "fsdp"}
    best = load_job(out / "best.yaml")
    assert best.strategy == answer["strategy"]
    assert simulate(best).step_seconds == answer["step_seconds"]


@pytest.mark.full
def test_strategies_from_elsewhere_take_part(tmp_path: Path) -> None:
    class Quick(Toy):
        """No memory is counted, so that it always fits."""

        def memory(self, job: Any, role: Any) -> dict[str, float]:
            del job, role
            return {"weights": 0.0}

        def candidates(self, job: Any) -> Any:
            yield self.grid(stage=2, data=job.ranks // 2)

    with registered(Quick()):
        choice = api.settle(job_file(tmp_path))[1]
        assert choice is not None
        assert "toy" in {one.job.strategy for one in choice.simulations}


def test_what_is_refused_is_neither_simulated_nor_chosen(tmp_path: Path) -> None:
    base = load_job(job_file(tmp_path), strategy="four_d")
    whole = search(base)
    best = whole.best.job.concrete_grid

    def refuse(job: Job) -> str:
        return f"grid {job.grid}: not this one" if job.concrete_grid == best else ""

    found = search(base, refuse=refuse)
    others = [entry for entry in whole.entries if entry.candidate.feasible and entry.candidate.grid != best]
    assert found.simulated == found.feasible == len(others) == whole.feasible - 1
    assert fastest(found) == min(entry.figures.step_seconds for entry in others if entry.figures is not None)
    refused = [entry for entry in found.entries if entry.candidate.hindrance == "refused"]
    assert [entry.candidate.reason for entry in refused] == [f"grid {best}: not this one"]


def test_where_all_is_refused_each_strategy_says_why(tmp_path: Path) -> None:
    reasons = {"four_d": "", "fsdp": "no such key"}
    with pytest.raises(DescriptionError) as refused:
        search_across(
            Given(job_file(tmp_path)), list(reasons), refuse=lambda job: reasons[job.strategy] or f"not {job.grid}"
        )
    problems = {problem.path: problem.message for problem in refused.value.problems}
    assert problems["strategy fsdp"] == "no such key"
    assert problems["strategy four_d"].startswith("none is wanted; such as data ")


OWN: dict[str, dict[str, Any]] = {
    AUTO: {},
    "four_d": {"gather_unit": "block", "overlap": {"all_reduce": False}, "grid": {"x": 2}},
    "fsdp": {"reshard_after_forward": False, "grid": {"weights": 2}},
    "megatron": {"gradient_precision": "compute", "grid": {"data": 2}, "batch": {"sequences": 2, "micro_sequences": 1}},
}


SEARCHED = [(own, only) for own in OWN for only in names() if only != "ddp"]


@pytest.mark.parametrize(("own", "only"), few(SEARCHED, *(one for one in SEARCHED[:4] if one[1] == "fsdp")), ids=str)
def test_the_winner_is_the_file_with_its_overrides(tmp_path: Path, own: str, only: str) -> None:
    """Keys that the file has for its own strategy hold for that one, as in every search over strategies."""
    path = job_file(tmp_path, strategy=own, **OWN[own])
    given = ("seed=3", "model.heads=4")
    found = search_across(Given(path, given), [only])
    one = chosen(Given(path, given), found, "said")
    assert (one.strategy, one.ranks, one.words) == (only, 2, "said")
    job = load_job(path, [*given, *one.overrides], strategy=one.strategy)
    assert (job.is_concrete, job.seed, job.model.heads) == (True, 3, 4)
    assert simulate(job).step_seconds == fastest(found.best)
    kept = OWN[own].get("gather_unit") if own == only else None
    assert kept is None or getattr(job, "gather_unit", None) == kept


@pytest.mark.usefixtures("one_core")
@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (
            ["search", "JOB", "--by", "axonn"],
            "--by: is for a search under the job's own strategy; leave it out, or name",
        ),
        (["search", "JOB", "--set", "grid.z=2"], "grid = {'z': 2}: is a grid of four_d"),
        (["search", "JOB", "--set", "gather_unit=block"], "gather_unit = 'block': is a key of four_d"),
        (["simulate", "JOB", "--set", "flavour=fsdp1"], "flavour = 'fsdp1': is a key of fsdp and megatron"),
        (
            ["record", "JOB", "--out", "recording.json"],
            "strategy = 'auto': is settled by simulate, search, goodput and",
        ),
    ],
    ids=" ".join,
)
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], said: str) -> None:
    path = job_file(tmp_path)
    out, err = said_by(capsys, *(path if word == "JOB" else word for word in arguments), code=2)
    assert out == ""
    assert said in err


def test_points_of_a_study_name_their_strategy(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    job_file(tmp_path)
    study = tmp_path / "study.yaml"
    study.write_text(yaml.safe_dump({"study": "sensitivity", "job": "job.yaml"}), encoding="utf-8")
    _, err = said_by(capsys, "study", study, "--workers", 1, "--out", tmp_path / "out", code=2)
    assert "strategy = 'auto': is settled by" in err
