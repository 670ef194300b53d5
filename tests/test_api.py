"""Fourfold from Python: what the commands print, as objects."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import runtime
import twin
from twin import DescriptionError, load_job, search, simulate

JOB = {"model": "gpt-5b", "machine": "frontier", "ranks": 64, "batch": {"sequences": 256}}
CODE = """
import json, sys
{code}
print(json.dumps([name for name in ("torch", "pyarrow", "numpy", "dash") if name in sys.modules]))
"""


def loaded_by(code: str) -> list[str]:
    command = [sys.executable, "-c", CODE.format(code=code)]
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)


@pytest.mark.process
@pytest.mark.quick
def test_importing_loads_nothing_and_asking_no_pytorch():
    assert loaded_by("import twin, runtime") == []
    assert "torch" not in loaded_by("from twin import load_job, simulate, search, validate, compare")
    assert "torch" not in loaded_by("from runtime import train, record")


def test_a_room_is_a_package_and_the_function_of_its_name():
    """Whatever was imported first: Python binds the package to the name."""
    import twin.search.search as inside

    assert inside.__name__ == "twin.search.search"
    for name in (search, twin.search):  # the function, if it was imported first, and the package
        found = name(JOB, only={"x": [1], "y": [1], "z": [8, 16]})
        assert found.simulated == 2
        assert "2 simulated" in repr(found)


@pytest.mark.parametrize("package", [twin, runtime])
def test_every_public_name_is_there_and_listed(package):
    assert set(package.__all__) <= set(dir(package))
    if package is twin:
        assert all(callable(getattr(package, name)) for name in package.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        package.nothing  # noqa: B018


def test_a_path_a_mapping_and_a_job_are_the_same(tmp_path):
    path = tmp_path / "job.yaml"
    path.write_text(json.dumps(JOB | {"grid": {"z": 64}}), encoding="utf-8")
    seconds = {simulate(one).step_seconds for one in (str(path), path, load_job(path), JOB | {"grid": {"z": 64}})}
    assert len(seconds) == 1
    assert load_job(str(path)) == load_job(path)


def test_what_is_open_is_settled_and_said():
    step = simulate(JOB)
    assert step.choice is not None
    assert step.step_seconds == min(s.step_seconds for s in step.choice.simulations)
    assert step.grid == step.job.concrete_grid.by_axis()
    assert simulate(step.job).choice is None
    assert step.as_json["step_seconds"] == step.figures.step_seconds


def test_interval_and_seeds_are_for_the_engines_that_have_them():
    settled = simulate(JOB | {"grid": {"z": 64}}, interval=True)
    assert settled.interval is not None
    assert settled.interval.low < settled.step_seconds < settled.interval.high
    drawn = simulate(settled.job, engine="ranks", seeds=2)
    assert len(drawn.every_rank.reports) == drawn.as_json["seeds"]["count"] == 2
    with pytest.raises(DescriptionError, match="engine ranks"):
        simulate(settled.job, seeds=2)
    with pytest.raises(DescriptionError, match="other engines"):
        simulate(settled.job, engine="ranks", interval=True)


def test_a_written_run_can_be_read_and_compared(tmp_path):
    from twin.trace.store import read_trace

    step = simulate(JOB | {"grid": {"z": 64}})
    step.write(tmp_path / "run")
    assert read_trace(tmp_path / "run").events.num_rows == step.events().num_rows
    with pytest.raises(DescriptionError, match="exists already"):
        step.write(tmp_path / "run")
    same = twin.compare(tmp_path / "run", tmp_path / "run")
    assert same.difference_seconds == 0.0


def test_sizes_of_unknown_axes_are_refused():
    with pytest.raises(DescriptionError, match="did you mean"):
        search(JOB, only={"zz": [1]})


@pytest.mark.process
def test_training_from_python_trains_and_says_why_not(tmp_path):
    with pytest.raises(DescriptionError, match="the job has 4 ranks"):
        runtime.train("examples/tiny-gpt.yaml", ranks=3, out=tmp_path / "no", show=False)
