"""What the `fourfold` command says of memory beyond the devices: hosts that are not described, hosts that are full."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from twin.cli import main

ON_CPUS = {
    "model": {"layers": 2, "hidden": 64, "heads": 4, "sequence": 32, "vocabulary": 64},
    "machine": "laptop",
    "ranks": 4,
    "grid": {"data": 1, "z": 2, "y": 2, "x": 1},
    "batch": {"sequences": 8, "micro_sequences": 4},
    "precision": "fp32",
    "recompute": True,
    "offload": {"optimizer": {}, "activations": "host"},
}
FULL_HOST = {
    "model": "llama-3.1-70b",
    "machine": {"extends": "4xh100", "host": {"memory": "200 GB"}},
    "ranks": 4,
    "strategy": "fsdp",
    "flavour": "deepspeed",
    "grid": {"weights": 4},
    "batch": {"sequences": 8, "micro_sequences": 1},
    "recompute": True,
    "offload": {"optimizer": {}, "parameters": "host", "activations": "host"},
}


def run(arguments: list[str], code: int = 0) -> None:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    assert (ended.value.code or 0) == code


def written(directory: Path, job: dict[str, Any]) -> str:
    path = directory / "job.yaml"
    path.write_text(yaml.safe_dump(job), encoding="utf-8")
    return str(path)


def test_memory_of_a_host_that_is_not_described_is_null_and_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    job = written(tmp_path, ON_CPUS)
    run(["simulate", job, "--json", "--out", str(tmp_path / "run")])
    host = json.loads(capsys.readouterr().out)["memory"]["tiers"]["host"]
    assert host["capacity_bytes"] is None
    assert host["fits"] is True
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text(encoding="utf-8"))
    assert manifest["figures"]["memory"]["tiers"]["host"] == host
    run(["simulate", job])
    out = capsys.readouterr().out
    assert "inf" not in out
    assert "per node; the machine does not say how much there is" in out


def test_a_full_host_is_told_where_it_is_full(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """70.55e9 parameters: 12 bytes of optimizer states each are 847 GB of the node's 200."""
    run(["simulate", written(tmp_path, FULL_HOST)])
    out = " ".join(capsys.readouterr().out.split())
    assert re.search(r"Memory [0-9.]+ GB of [0-9.]+ GB per rank: fits", out)
    assert re.search(r"per node: does not fit: needs [0-9.]+ GB more than a node's host has, most of it for opt", out)


def test_a_search_that_finds_hosts_full_does_not_blame_the_devices(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run(["search", written(tmp_path, FULL_HOST)], code=2)
    said = capsys.readouterr().err
    assert "with one sequence at a time it needs" in said
    assert "more than a node's host has, most of it for optimizer" in said
    assert "needs -" not in said


def test_one_of_a_thing_is_said_of_one(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    alone = ON_CPUS | {"ranks": 1, "grid": {"data": 1, "z": 1, "y": 1, "x": 1}}
    run(["simulate", written(tmp_path, alone | {"batch": {"sequences": 1, "micro_sequences": 1}})])
    out = capsys.readouterr().out
    assert "on 1 rank of laptop" in out
    assert "1 sequence at a time, 1 micro-step\n" in out


@pytest.mark.parametrize("strategy", ["deepspeed", "four_d"])
def test_more_sub_groups_than_can_be_simulated_are_refused(
    strategy: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A sub-group is several ops: 8.03e9 elements in as many sub-groups took all the memory there was."""
    job = FULL_HOST | {"model": "llama-3-8b", "offload": {"optimizer": {"sub_group_elements": 1}}}
    if strategy == "four_d":
        job = {key: value for key, value in job.items() if key not in ("strategy", "flavour")} | {"grid": {"z": 4}}
    run(["simulate", written(tmp_path, job | {"machine": "4xh100"})], code=2)
    said = capsys.readouterr().err
    assert "offload.optimizer.sub_group_elements = 1: cuts the" in said
    (least,) = re.findall(r"give ([0-9,]+) or more", said)
    enough = {"optimizer": {"sub_group_elements": 100 * int(least.replace(",", ""))}}
    run(["simulate", written(tmp_path, job | {"machine": "4xh100", "offload": enough})])


def test_a_name_that_no_file_system_takes_is_bad_input(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(["simulate", written(tmp_path, ON_CPUS), "--out", str(tmp_path / ("a" * 300))], code=2)
    assert "File name too long" in capsys.readouterr().err
