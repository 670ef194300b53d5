"""Runs that train adapters beside frozen weights: other numbers of ranks, copies in memory, going back.

A checkpoint has the adapters alone, so the weights beside them have to be there again by another way.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.runtime import runs
from tests.runtime.survive.test_rollback import lines, poisoned
from twin.cli import main

pytestmark = pytest.mark.process

LORA = {"rank": 8, "alpha": 32, "targets": ["q", "v", "o", "up"]}
RATE = {"peak": 2.0e-2, "warmup_steps": 3, "schedule": "constant"}
"""With that alpha a state that was lost shows: adapters that stay as they begin have losses of 0.1 % above or below."""
SHARDED = {"data_reduction": {"mode": "sharded"}, "ranks": 4, "grid": {"data": 2, "z": 2, "y": 1, "x": 1}}


@pytest.fixture(scope="module")
def base(undisturbed: runs.Undisturbed, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Weights to stand beside."""
    path = tmp_path_factory.mktemp("base") / "base.safetensors"
    with pytest.raises(SystemExit) as ended:
        main(["export", str(undisturbed(12).out), str(path)])
    assert not ended.value.code
    return path


def write_job(folder: Path, base: Path, train: dict[str, object], **changes: object) -> Path:
    folder.mkdir(exist_ok=True)
    settings = {"threads": 1, "learning_rate": RATE, "initial_weights": str(base), "sample": {"tokens": 0}, **train}
    return runs.write_job(folder, lora=LORA, train=settings, **changes)


def trained(job: Path, out: Path, *arguments: str, ranks: int = 2) -> tuple[dict[int, float], str]:
    done = runs.train(job, "--ranks", str(ranks), "--out", str(out), *arguments)
    assert done.returncode == 0, done.stderr
    return runs.losses(out), done.stdout


@pytest.mark.full
@pytest.mark.parametrize("changes", [{}, SHARDED], ids=["replicated", "sharded"])
def test_fewer_ranks_and_more(tmp_path, base, changes):
    job = write_job(tmp_path, base, {"steps": 10, "elastic": True}, **changes)
    ranks = int(changes.get("ranks", 2))
    straight, _ = trained(job, tmp_path / "straight", ranks=ranks)
    still, _ = trained(job, tmp_path / "still", "--set", "train.learning_rate.peak=1e-12", ranks=ranks)
    assert max(abs(straight[step] / still[step] - 1) for step in straight) > 5e-4  # else equal losses would say nothing
    for there, steps in ((ranks, 4), (1, 7), (6 - ranks, 10)):
        found, shown = trained(job, tmp_path / "run", "--set", f"train.steps={steps}", ranks=there)
        assert (f"instead of {ranks}: training on" in shown) == (there != ranks)
    assert found == pytest.approx(straight, rel=1e-5)


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        pytest.param("nan", {}, marks=pytest.mark.full),
        pytest.param("nan", SHARDED, marks=pytest.mark.slow),
        pytest.param("noise", {}, marks=pytest.mark.slow),
    ],
    ids=["nan", "nan-sharded", "noise"],
)
def test_going_back_leaves_the_run_that_never_had_those_batches(tmp_path, base, kind, changes):
    """Spoilt at batch 13; the other run knows from the start, so it never writes over its weights nor goes back."""
    train = {"steps": 18, "rollback": {"window": 8, "spike": 1.0}, "checkpoints": {"every": 4}}
    job = write_job(tmp_path, base, train, **changes)
    ranks = int(changes.get("ranks", 2))
    code, _, errors = poisoned(tmp_path, kind, "13", job, "--out", str(tmp_path / "run"), ranks=ranks)
    assert code == 0, errors
    assert "going back to step 12 and on without batches 12, 13" in errors
    went = [line for line in lines(tmp_path / "run") if "to_step" in line]
    other = tmp_path / "other"
    trained(job, other, "--set", "train.steps=1", ranks=ranks)
    about = json.loads((other / "run.json").read_text())
    (other / "run.json").write_text(json.dumps({**about, "rollbacks": went}))
    expected, _ = trained(job, other, ranks=ranks)
    assert list(expected) == list(range(18))
    assert runs.losses(tmp_path / "run") == expected


@pytest.mark.slow
def test_copies_in_memory_are_enough(tmp_path, base):
    """A rank is killed and the run goes on from memory; all are, and another number of ranks goes on from it."""
    memory = tmp_path / "memory"
    memory.mkdir()
    checkpoints = {"every": 0, "memory_every": 3, "memory_directory": str(memory)}
    job = write_job(tmp_path, base, {"steps": 90, "elastic": True, "checkpoints": checkpoints})
    straight, _ = trained(job, tmp_path / "straight")
    with runs.start(job, "--ranks", "2", "--restarts", "1", "--out", str(tmp_path / "run")) as process:
        runs.wait_for_step(process, tmp_path / "run", 20)
        runs.kill_rank(process, 1)
        shown, errors = process.communicate(timeout=120)
    assert process.returncode == 0, errors
    assert "in the memory of the hosts is put together" in shown
    assert runs.losses(tmp_path / "run") == straight
    with runs.start(job, "--ranks", "2", "--out", str(tmp_path / "fewer")) as process:
        runs.wait_for_step(process, tmp_path / "fewer", 20)
        for rank in (0, 1):
            runs.kill_rank(process, rank)
        process.communicate(timeout=60)
    found, shown = trained(job, tmp_path / "fewer", ranks=1)
    assert "in the memory of the hosts is put together" in shown
    assert "1 rank is there instead of 2" in shown
    assert found == pytest.approx(straight, rel=1e-5)
    assert list(memory.iterdir()) == []
