"""Files that come with Fourfold are read by a quicker parser: to the same numbers, and they break no rule."""

from __future__ import annotations

import pytest

import topologies
from twin.description.load import ROOT, _read_packaged, load_machine
from twin.description.strict_yaml import read_packaged_yaml, read_yaml
from twin.strategies import load_job

FILES = sorted(ROOT.glob("**/*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_both_parsers_read_the_same(path):
    assert read_packaged_yaml(path) == read_yaml(path)


def test_what_extends_a_machine_changes_nothing_of_it():
    """Every job that names a machine or its parts has the same ones, read once."""
    name = "frontier"
    device, library = load_machine(name).device.name, load_machine(name).library
    before = load_machine(name).model_dump_json()
    changes = {
        "device": {"extends": device, "memory": "30 GB"},
        "nic": {"bandwidth": "50 GB/s"},
        "libraries": {library: {"ring": {"network_efficiency": {"all_gather": 0.5}}}},
    }
    job = {"model": "gpt2", "ranks": 8, "grid": "auto", "batch": {"sequences": 8}}
    changed = load_job({**job, "machine": {"extends": name, **changes}}).machine
    assert (changed.device.memory_bytes, changed.nic.bandwidth_bytes_per_second) == (30e9, 50e9)
    assert load_job({**job, "machine": name}).machine is load_machine(name)
    files = [ROOT / f"{name}.yaml", ROOT / f"devices/{device}.yaml", ROOT / f"libraries/{library}.yaml"]
    assert [_read_packaged(path) for path in files] == [read_packaged_yaml(path) for path in files]
    assert load_machine(name).model_dump_json() == before


def test_all_of_them_are_here():
    assert ROOT.samefile(next(iter(topologies.__path__)))
    assert len(FILES) > 20
