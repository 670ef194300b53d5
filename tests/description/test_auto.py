"""`strategy: auto`: what such a job file may say, and what it is told that says too much."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

import twin
from tests.strategies.toy import Toy
from twin.description.problems import DescriptionError
from twin.strategies import AUTO, AutoJob, load_job, named, names, register, registered, strategy_of
from twin.strategies.schema import job_schema

MODEL = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 256}
WRONG = [{"model": "gpt-nowhere"}, {"machine": "nowhere"}, {"ranks": 0}, {"ranks": 10**9}, {"precision": "fp8"}]
JOB: dict[str, Any] = {"model": MODEL, "machine": "laptop", "ranks": 4, "strategy": AUTO, "batch": {"sequences": 8}}


@cache
def validator() -> jsonschema.Draft202012Validator:
    return jsonschema.Draft202012Validator(job_schema())


@pytest.mark.parametrize("keys", [{}, {"grid": "auto"}, {"batch": {"sequences": 8, "micro_sequences": 2}}], ids=str)
def test_the_strategy_is_left_open_and_so_is_the_grid(keys: dict[str, Any]) -> None:
    job = load_job(JOB | keys)
    assert (type(job), job.strategy, job.grid, job.is_concrete) == (AutoJob, AUTO, "auto", False)
    assert not list(validator().iter_errors(JOB | keys))
    with pytest.raises(DescriptionError, match=r"strategy = 'auto': is settled by simulate, search, goodput and train"):
        strategy_of(job)


def test_the_example_leaves_it_open() -> None:
    """Not among the examples whose predictions are kept: what is the fastest changes with every strategy there is."""
    path = Path(twin.__file__).parents[1] / "examples" / "auto" / "tiny-gpt.yaml"
    assert type(load_job(path)) is AutoJob
    assert not list(validator().iter_errors(yaml.safe_load(path.read_text(encoding="utf-8"))))


@pytest.mark.parametrize(
    ("keys", "said"),
    [
        ({"flavour": "fsdp1"}, "flavour = 'fsdp1': is a key of fsdp and megatron; leave it out under strategy: auto"),
        ({"gather_unit": "block"}, "gather_unit = 'block': is a key of four_d; leave it out under strategy: auto, or"),
        ({"reshard_after_forward": False}, "name the strategy (strategy: fsdp)"),
        ({"grid": {"weights": 4}}, "grid = {'weights': 4}: is a grid of fsdp; leave it out under strategy: auto, or"),
        ({"grid": {"z": 4}}, "name the strategy (strategy: four_d)"),
        ({"grid": {}}, "grid = {}: is given, but chosen with the strategy; leave it out under strategy: auto"),
        ({"grid": 4}, "grid = 4: is given, but chosen with the strategy; leave it out under strategy: auto"),
        ({"gather_unti": "block"}, "gather_unti = 'block': unknown key"),
        ({"strategy": "atuo"}, "strategy = 'atuo': did you mean 'auto'?"),
    ],
    ids=str,
)
def test_what_belongs_to_one_strategy_is_refused(keys: dict[str, Any], said: str) -> None:
    with pytest.raises(DescriptionError) as refused:
        load_job(JOB | keys)
    assert said in str(refused.value)
    assert list(validator().iter_errors(JOB | keys))


@pytest.mark.parametrize(
    "more",
    [{"model": "gpt-nowhere"}, {"machine": "nowhere"}, {"ranks": 0}, {"ranks": 10**9}, {"precision": "fp8"}],
    ids=str,
)
def test_all_that_is_wrong_is_said_at_once(more: dict[str, Any]) -> None:
    with pytest.raises(DescriptionError) as refused:
        load_job(JOB | {"gather_unit": "block", "grid": {"z": 4}} | more)
    paths = [problem.path for problem in refused.value.problems]
    assert paths[:2] == ["gather_unit", "grid"]
    assert set(paths[2:]) >= set(more)


@pytest.mark.parametrize("strategy", names())
def test_any_file_is_opened_and_an_open_one_closed(tmp_path: Path, strategy: str) -> None:
    """As `fourfold train JOB --strategy NAME` does: only keys of every job stay."""
    path = tmp_path / "job.yaml"
    own = {"gather_unit": "block"} if strategy == "four_d" else {}
    path.write_text(yaml.safe_dump(JOB | {"strategy": strategy, "grid": "auto"} | own), encoding="utf-8")
    assert type(load_job(path, strategy=AUTO)) is AutoJob
    path.write_text(yaml.safe_dump(JOB), encoding="utf-8")
    assert type(load_job(path, strategy=strategy)) is named(strategy).options


def test_keys_of_strategies_from_elsewhere_are_known() -> None:
    with registered(Toy()), pytest.raises(DescriptionError, match="copy_to_host = True: is a key of toy; leave it out"):
        load_job(JOB | {"copy_to_host": True})


def test_no_strategy_is_called_auto() -> None:
    impostor = Toy()
    impostor.name = AUTO
    with pytest.raises(ValueError, match="choose another name"):
        register(impostor)
