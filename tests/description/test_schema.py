"""The published JSON schemas accept what the loader accepts, and catch what editors can catch."""

from __future__ import annotations

import copy
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import topologies
from tests.tiers import full
from twin.cli import main
from twin.description.schema import DIALECT, machine_schema
from twin.strategies import load_job
from twin.strategies.schema import job_schema

jsonschema = pytest.importorskip("jsonschema")

TOPOLOGIES = Path(topologies.__file__).parent
EXAMPLES = Path(__file__).parents[2] / "examples"
JOB = {"model": "gpt2", "machine": "frontier", "ranks": 8, "grid": "auto", "batch": {"sequences": 8}}


SCHEMAS = {"job": job_schema, "machine": machine_schema}


@cache
def validator(what: str) -> Any:
    """Make the validator of jobs or of machines, once."""
    return jsonschema.Draft202012Validator(SCHEMAS[what]())


def complaints(what: str, instance: object) -> list[str]:
    return [f"{e.json_path}: {e.message[:200]}" for e in validator(what).iter_errors(instance)]


@pytest.mark.parametrize("what", full(SCHEMAS, "job"))
def test_schema_is_valid_json_schema(what):
    schema = SCHEMAS[what]()
    jsonschema.Draft202012Validator.check_schema(schema)  # half a second: for no other test
    assert schema["$schema"] == DIALECT == jsonschema.Draft202012Validator.META_SCHEMA["$id"]
    assert validator(what).schema == schema
    assert schema["title"]
    assert json.loads(json.dumps(schema)) == schema


@pytest.mark.parametrize("what", SCHEMAS)
def test_command_prints_the_schema(capsys, what):
    with pytest.raises(SystemExit) as ended:
        main(["schema", what])
    assert ended.value.code in {0, None}
    assert json.loads(capsys.readouterr().out) == SCHEMAS[what]()


@pytest.mark.parametrize("path", sorted(TOPOLOGIES.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_machine_satisfies_the_schema(path):
    assert complaints("machine", yaml.safe_load(path.read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.yaml")), ids=lambda p: p.stem)
def test_every_example_satisfies_the_schema(path):
    instance = yaml.safe_load(path.read_text(encoding="utf-8"))
    what = "machine" if "devices_per_node" in instance or "extends" in instance else "job"
    assert complaints(what, instance) == []


ACCEPTED: dict[str, dict[str, Any]] = {
    "names": {},
    "preset with changes": {"model": {"preset": "gpt2", "layers": 3}},
    "machine with changes": {"machine": {"extends": "frontier", "nodes": 5}},
    "device by name with changes": {"machine": {"extends": "frontier", "device": {"extends": "mi250x-gcd"}}},
    "number of a machine overridden": {"machine": {"extends": "frontier", "nic": {"bandwidth": "50 GB/s"}}},
    "grid in part": {"grid": {"z": 8}},
    "size with a unit": {"data_reduction": {"bucket": "64 MiB"}},
    "size as a number": {"data_reduction": {"bucket": 1000}},
    "straggler": {"stragglers": [{"rank": 0, "slowdown": 1.5}]},
    "micro-batch": {"batch": {"sequences": 8, "micro_sequences": "auto"}},
}


@pytest.mark.parametrize("name", ACCEPTED)
def test_what_the_loader_accepts_satisfies_the_schema(name):
    instance = JOB | ACCEPTED[name]
    load_job(copy.deepcopy(instance))
    assert complaints("job", instance) == []


REFUSED: dict[str, dict[str, Any]] = {
    "unknown key": {"rank": 8},
    "unknown key below": {"grid": {"w": 2}},
    "text for a count": {"ranks": "8"},
    "zero": {"ranks": 0},
    "unknown precision": {"precision": "fp8"},
    "list for a grid": {"grid": [1, 2]},
    "boolean": {"recompute": 3},
    "slowdown below one": {"stragglers": [{"rank": 0, "slowdown": 0}]},
}


@pytest.mark.parametrize("name", REFUSED)
def test_the_schema_catches_wrong_keys_and_types(name):
    assert complaints("job", JOB | REFUSED[name])


def test_keys_are_documented_for_editors():
    """Most keys of a job carry a description that an editor can show."""
    properties = job_schema("four_d")["properties"]
    assert sum("description" in p for p in properties.values()) >= len(properties) // 2
