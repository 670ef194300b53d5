"""Runs with `strategy: auto`: what is chosen is what a search over that which trains finds, and that is what trains."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from runtime import strategies
from runtime.launch.environment import Process
from runtime.records.run_directory import CHOICE, CHOSEN, RUN
from runtime.strategies import four_d
from runtime.train.choice import ANEW, Open, hand_over, handed, kept, refusal
from tests.runtime import runs
from tests.runtime.asked import ask_here
from twin import cli
from twin.description.job import Job
from twin.description.problems import DescriptionError, Problem
from twin.engine.simulate import simulate
from twin.search.across import search_across
from twin.search.best import Given
from twin.strategies import AUTO, Chosen, load_job, strategy_of

FEW: dict[str, Any] = {"strategy": AUTO, "grid": AUTO, "batch": {"sequences": 4}}
"""Of the small job: few candidates."""
FOUR: dict[str, Any] = {**FEW, "ranks": 4}
ODD = Chosen("four_d", ("strategy=four_d", "grid={y: 4}", "batch.micro_sequences=1"), 4)
"""A choice that no search makes: every layer waits for two all-reduces."""


@pytest.fixture
def one_core(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let the search simulate in this process."""
    monkeypatch.setattr("twin.engine.parallel.cores", lambda: 1)


def left_open(path: Path, ranks: int = 2, overrides: tuple[str, ...] = ()) -> Open:
    return Open(path, overrides, ranks, cli.choose)


def begun(folder: Path, choice: object) -> Path:
    """A directory in which a run has chosen something."""
    run = folder / "run"
    run.mkdir(exist_ok=True)
    (run / RUN).write_text(json.dumps({"name": "small", CHOICE: choice}))
    return run


def as_kept(chosen: Chosen) -> dict[str, Any]:
    return {"strategy": chosen.strategy, "overrides": list(chosen.overrides), "ranks": chosen.ranks}


@pytest.mark.full
@pytest.mark.usefixtures("one_core")
def test_the_choice_is_that_of_a_search_over_what_trains(tmp_path: Path) -> None:
    """A search that simulates what does not train too, and drops it afterwards."""
    path = runs.write_job(tmp_path, **FEW)
    chosen = left_open(path).chosen()
    found = search_across(Given(path), strategies.names())
    assert all(f"{name} " in chosen.words for name in found.searches)
    trained: dict[str, float] = {}
    for name, one in found.searches.items():
        for entry in one.entries:
            if entry.figures is not None and not refusal(entry.candidate.job(one.job)):
                trained[name] = min(trained.get(name, 1e9), entry.figures.step_seconds)
    assert chosen.strategy == min(trained, key=trained.__getitem__)
    job = left_open(path).job(chosen)
    assert simulate(job).step_seconds == trained[chosen.strategy]
    assert not refusal(job)


@pytest.mark.usefixtures("one_core")
def test_strategies_and_what_they_refuse_are_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Here one strategy trains, with all ranks along one of its axes."""

    def only_z(job: Job) -> list[Problem]:
        size = job.concrete_grid.by_axis()["z"]
        return [] if size == job.ranks else [Problem("grid.z", "must be all", size)]

    monkeypatch.setattr("runtime.train.choice.names", lambda: ["four_d"])
    monkeypatch.setattr(four_d, "refusals", only_z, raising=False)
    opened = left_open(runs.write_job(tmp_path, **FEW))
    assert opened.job(opened.chosen()).concrete_grid.by_axis()["z"] == 2
    monkeypatch.setattr(four_d, "TRAINED_WITH", {"precision": "bf16"})
    with pytest.raises(DescriptionError) as refused:
        opened.chosen()
    assert "strategy = 'auto': nothing that trains can run; the runtime trains four_d" in str(refused.value)
    assert "strategy four_d: precision = 'fp32': is for simulation; the runtime trains with precision: bf16" in str(
        refused.value
    )


@pytest.mark.full
@pytest.mark.usefixtures("one_core")
def test_strategies_are_searched_as_they_train(tmp_path: Path) -> None:
    """Megatron's parallelism of PyTorch's pieces, though jobs are Megatron-LM's if they do not say it."""
    assert "\nmegatron " in left_open(runs.write_job(tmp_path, **FOUR), 4).chosen().words
    own = runs.write_job(tmp_path, **{**FOUR, "strategy": "megatron"}, flavour="deepspeed")
    said = left_open(own, 4).chosen().words
    assert "\nmegatron " not in said
    assert "megatron: flavour = 'deepspeed': is for simulation" in said


@pytest.mark.process
def test_a_chosen_pipeline_or_tensor_group_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("runtime.train.choice.names", lambda: ["megatron"])
    opened = left_open(runs.write_job(tmp_path, **FOUR, train={"steps": 2}), 4)
    chosen = opened.chosen()
    assert "flavour=torch" in chosen.overrides
    job = opened.job(chosen)
    assert (job.flavour, refusal(job)) == ("torch", "")  # type: ignore[attr-defined]  # of a job of megatron
    given = [word for override in chosen.overrides for word in ("--set", override)]
    done = runs.train(opened.file, *given, "--ranks", "4", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    assert list(runs.losses(tmp_path / "run")) == [0, 1]


@pytest.mark.process
def test_four_ranks_train_what_was_chosen_and_go_on_with_it(tmp_path: Path) -> None:
    path, out = runs.write_job(tmp_path, **FOUR, train={"steps": 4}), tmp_path / "run"
    done = runs.train(path, "--ranks", "4", "--out", str(out))
    assert done.returncode == 0, done.stderr
    written, described = load_job(out / CHOSEN), json.loads((out / RUN).read_text())
    assert f"The fastest is trained: {written.strategy} on {written.concrete_grid}" in done.stdout
    assert described[CHOICE]["strategy"] == written.strategy
    assert load_job(described["job"]) == written

    by_hand: dict[str, Any] = {"strategy": written.strategy, "ranks": 4, "grid": written.concrete_grid.by_axis()}
    by_hand["batch"] = {"sequences": 4, "micro_sequences": written.concrete_micro_sequences}
    strategy_of(written).variant(written).settle(by_hand)
    (tmp_path / "hand").mkdir()
    path_by_hand = runs.write_job(tmp_path / "hand", **by_hand, train={"steps": 4})
    again = runs.train(path_by_hand, "--ranks", "4", "--out", str(tmp_path / "hand" / "run"))
    assert again.returncode == 0, again.stderr
    assert runs.losses(out) == runs.losses(tmp_path / "hand" / "run")

    (out / RUN).write_text(json.dumps(described | {CHOICE: as_kept(ODD)}))
    more = runs.train(path, "--ranks", "4", "--out", str(out), "--accept-changes", "--set", "train.steps=6")
    assert more.returncode == 0, more.stderr
    assert f"strategy: auto, chosen when {out} was begun: strategy=four_d, grid={{y: 4}}" in more.stdout
    assert "chosen by simulation" not in more.stdout
    assert load_job(out / CHOSEN).concrete_grid.by_axis()["y"] == 4
    assert json.loads((out / RUN).read_text())[CHOICE] == as_kept(ODD)
    assert list(runs.losses(out)) == list(range(6))


@pytest.mark.process
def test_under_torchrun_rank_0_chooses_for_all(tmp_path: Path) -> None:
    """And the command line may say it of a file that names its strategy."""
    path, out = runs.write_job(tmp_path, train={"steps": 2}), tmp_path / "run"
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "twin"]
    command += ["train", str(path), "--strategy", AUTO, "--out", str(out)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=runs.environment())
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("strategy: auto, chosen by simulation on laptop") == 1
    assert "The job fixes grid and batch.micro_sequences; that is chosen too." in done.stdout
    assert load_job(out / CHOSEN).strategy == json.loads((out / RUN).read_text())[CHOICE]["strategy"]
    command += ["--force", "--set", "precision=fp16"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False, env=runs.environment())
    assert done.returncode != 0
    assert done.stderr.count("strategy = 'auto': nothing that trains can run") == 1


@pytest.mark.full
@pytest.mark.usefixtures("one_core")
def test_a_script_has_the_choice_in_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = runs.write_job(tmp_path, **FEW)
    printed, said = ask_here(capsys, "train", path, "--slurm", "--set", "train.steps=3")
    assert said.startswith("strategy: auto, chosen by simulation on laptop")
    command = shlex.split(printed[printed.index("    fourfold train") :].replace("\\\n", ""), comments=True)
    given = [text for option, text in pairwise(command) if option == "--set"]
    job = load_job(path, given)
    assert (job.is_concrete, job.train.steps, len(given)) == (True, 3, len(dict.fromkeys(given)))
    assert f"The fastest is trained: {job.strategy} on {job.concrete_grid}" in said


def test_the_launcher_hands_its_choice_to_its_ranks_alone() -> None:
    environment = hand_over(ODD)
    assert handed(environment, Process(launcher="fourfold")) == ODD
    assert handed(environment, Process(launcher="torchrun")) is None
    assert handed({}, Process(launcher="fourfold")) is None


@pytest.mark.parametrize(
    "choice",
    [
        7,
        {},
        {"strategy": AUTO, "overrides": ["ranks=4"], "ranks": 4},
        {"strategy": "four_d", "overrides": "grid=auto", "ranks": 4},
        {"strategy": "four_d", "overrides": [3], "ranks": 4},
        {"strategy": "four_d", "overrides": ["ranks=4"], "ranks": "4"},
    ],
    ids=str,
)
def test_a_damaged_choice_is_not_trusted(tmp_path: Path, choice: object) -> None:
    with pytest.raises(DescriptionError, match=f"run.json: choice: is damaged; {ANEW}"):
        kept(begun(tmp_path, choice), 4)


def test_a_run_that_chose_nothing_has_nothing_to_go_on_with(tmp_path: Path) -> None:
    assert kept(tmp_path / "nowhere", 4) is None
    assert kept(begun(tmp_path, None), 4) is None


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--set", "flavour=fsdp1"], "flavour = 'fsdp1': is a key of fsdp and megatron; leave it out under strategy"),
        (["--set", "grid.z=2"], "grid = {'z': 2}: is a grid of four_d; leave it out under strategy: auto, or name"),
        (["--set", "precision=fp16"], "strategy fsdp: precision = 'fp16': the runtime trains in bf16 or fp32"),
        (["--set", "cuda_graphs=true"], "cuda_graphs = True"),
        (["--ranks", "2"], "--ranks = 2: the job has 4 ranks"),
        (["--strategy", AUTO, "--slurm"], "--strategy = 'auto': write it into the job file"),
        (["--out", "RUN", "--set", "ranks=2"], f"ranks = 2: the strategy of RUN was chosen for 4 ranks; {ANEW}"),
        (["--out", "RUN", "--set", "model.heads=2"], "so was chosen when RUN was begun; put back"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, list) else "",
)
@pytest.mark.usefixtures("one_core")
def test_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str], options: list[str], said: str) -> None:
    path, run = runs.write_job(tmp_path, **FOUR), str(begun(tmp_path, as_kept(ODD)))
    words = [run if word == "RUN" else word for word in options]
    ranks = [] if {"--ranks", "--slurm"} & set(words) else ["--ranks", "2" if "ranks=2" in words else "4"]
    out = [] if "--out" in words else ["--out", str(tmp_path / "new")]
    printed, err = ask_here(capsys, "train", path, *words, *ranks, *out, code=2)
    assert (printed, "Traceback" in err) == ("", False)
    assert said.replace("RUN", run) in err
    assert not (tmp_path / "new").exists()
