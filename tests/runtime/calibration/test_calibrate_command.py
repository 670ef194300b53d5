"""`fourfold calibrate` as a user runs it: what is written, whether it can be true, and bad options."""

from __future__ import annotations

import json
import subprocess
import sys
from datetime import UTC, datetime
from itertools import product
from pathlib import Path
from typing import Any

import pytest

from tests.runtime import runs
from tests.tiers import makes
from twin.description.load import load_machine

MINUTES = "0.02"
ENTRY = {
    "gemm": {"pass", "mode", "m", "n", "k", "element_bytes", "busy", "seconds", "spread", "repeats"},
    "sharing": {"work", "ranks", "busy", "hosts", "seconds", "spread", "bytes", "flops"},
    "kernels": {
        "name",
        "phase",
        "work",
        "bytes",
        "flops",
        "shape",
        "launches",
        "seconds",
        "spread",
        "repeats",
        "busy",
        "family",
        "tokens",
        "hidden",
        "vocabulary",
        "grid",
    },
    "copies": {"name", "elements", "bytes", "busy", "seconds", "spread", "repeats"},
    "attention": {
        "sequences",
        "sequence_length",
        "heads",
        "head_size",
        "form",
        "kernel",
        "usual",
        "backward",
        "busy",
        "seconds",
        "spread",
        "repeats",
    },
    "host": {
        "grid",
        "layers",
        "ops",
        "collectives",
        "seconds",
        "spread",
        "seconds_per_op",
        "seconds_listened",
        "seconds_inside_ops",
    },
    "software": {"busy", "software", "hidden", "ops", "collectives", "seconds_between", "spread", "kernels"},
    "point_to_point": {"from", "to", "same_host", "bytes", "seconds", "spread", "repeats"},
    "collectives": {
        "kind",
        "bytes",
        "inner",
        "size",
        "groups",
        "element_bytes",
        "seconds",
        "spread",
        "transfer_seconds",
        "skew_seconds",
        "busy_core_seconds",
        "repeats",
    },
    "overlap": {
        "kind",
        "bytes",
        "inner",
        "size",
        "same_host",
        "m",
        "n",
        "k",
        "element_bytes",
        "compute_seconds_alone",
        "compute_seconds_beside",
        "collective_seconds_alone",
        "collective_seconds_beside",
        "core_seconds_alone",
        "core_seconds_beside",
        "product_core_seconds_alone",
        "product_core_seconds_beside",
        "products",
        "repeats",
    },
}
MAX_FLOPS, MAX_BYTES_PER_SECOND = 2e12, 2e12
"""No core that there is computes or moves more in a second."""


def calibrate(folder: Path, *arguments: str, **extra: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "twin", "calibrate", "--out", str(folder), *arguments],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        env=runs.environment(**extra),
    )


@pytest.fixture(scope="module")
@makes("process")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """Two ranks here, within a tiny budget."""
    folder = tmp_path_factory.mktemp("calibrate")
    done = calibrate(folder, "--name", "two", "--ranks", "2", "--minutes", MINUTES)
    path = folder / "two-measurements.json"
    assert path.is_file(), done.stderr
    return json.loads(path.read_text())


def test_the_data_say_where_they_come_from(measured):
    assert measured["schema"] == 2
    assert (measured["name"], measured["ranks"], measured["backend"]) == ("two", 2, "gloo")
    assert [each["host"] for each in measured["hosts"]] == [0, 0]
    assert abs((datetime.now(UTC) - datetime.fromisoformat(measured["date"])).total_seconds()) < 600
    assert {"fourfold", "torch", "python", "system"} <= set(measured["versions"])
    assert measured["device_type"] == "cpu"
    assert measured["cores"] >= 1


@pytest.mark.parametrize("section", sorted(ENTRY))
def test_entries_have_what_is_promised(measured, section):
    assert measured[section]
    for entry in measured[section]:
        assert set(entry) == ENTRY[section]
        assert all(value >= 0 for key, value in entry.items() if "seconds" in key or key == "spread")


def test_products_and_kernels_are_within_what_is_possible(measured):
    for entry in measured["gemm"]:
        assert 2 * entry["m"] * entry["n"] * entry["k"] / entry["seconds"] < MAX_FLOPS
    for entry in measured["kernels"]:
        assert entry["flops"] <= MAX_FLOPS * entry["seconds"]
        assert entry["bytes"] <= MAX_BYTES_PER_SECOND * entry["seconds"]
    assert {(e["pass"], e["busy"]) for e in measured["gemm"]} == set(
        product(("forward", "input_gradient", "weight_gradient"), (1, 2))
    )


def test_every_kind_of_op_of_a_step_is_there(measured):
    names = {(entry["name"], entry["phase"]) for entry in measured["kernels"]}
    assert names >= {
        ("gelu", "fwd"),
        ("gelu", "bwd"),
        ("residual", "fwd"),
        ("residual", "bwd"),
        ("norm/normalize", "fwd"),
        ("norm/gradient", "bwd"),
        ("norm/statistics", "fwd"),
        ("norm/statistics", "bwd"),
        ("embedding/lookup", "fwd"),
        ("embedding/gradient", "bwd"),
        ("maximum", "loss"),
        ("sum", "loss"),
        ("gradient", "loss"),
        ("mlp_up/accumulate", "bwd"),
        ("optimizer/clip/norm", "optimizer"),
        ("optimizer/adamw", "optimizer"),
    }


def test_collectives_cover_kinds_and_sizes(measured):
    entries = measured["collectives"]
    assert {e["kind"] for e in entries} == {"all_gather", "reduce_scatter", "all_reduce"}
    assert {(e["inner"], e["size"], e["groups"]) for e in entries} == {(1, 2, 1)}
    for kind in ("all_gather", "reduce_scatter", "all_reduce"):
        sizes = [e["bytes"] for e in entries if e["kind"] == kind]
        assert sizes == sorted(set(sizes))
        assert sizes[0] == 1024
    assert all(e["transfer_seconds"] <= e["seconds"] for e in entries)


@pytest.mark.slow
@pytest.mark.process
def test_one_rank_needs_nobody(tmp_path):
    done = calibrate(tmp_path, "--name", "one", "--minutes", MINUTES)
    data = json.loads((tmp_path / "one-measurements.json").read_text())
    assert (data["ranks"], data["backend"], data["collectives"]) == (1, None, []), done.stderr
    assert data["gemm"]
    machine = load_machine(str(tmp_path / "one.yaml"))
    assert (machine.nodes, machine.devices_per_node, machine.cores) == (1, 1, None)
    assert sorted(p.name for p in tmp_path.iterdir() if p.name.startswith(".")) == []


@pytest.mark.parametrize(
    ("arguments", "key"),
    [
        (("--minutes", "0"), "--minutes"),
        (("--minutes", "nan"), "--minutes"),
        (("--name", "../up"), "--name"),
        (("--device", "tpu"), "--device"),
        (("--ranks", "0"), "--ranks"),
        (("--minutes", "soon"), "--minutes"),
    ],
)
@pytest.mark.process
def test_bad_options_are_named(tmp_path, arguments, key):
    done = calibrate(tmp_path, *arguments)
    assert done.returncode == 2
    assert key in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_files_that_are_there_are_kept(tmp_path):
    (tmp_path / "mine.yaml").write_text("kept")
    done = calibrate(tmp_path, "--name", "mine", "--minutes", MINUTES)
    assert done.returncode == 2
    assert "mine.yaml" in done.stderr
    assert [p.read_text() for p in tmp_path.iterdir()] == ["kept"]


@pytest.mark.process
def test_ranks_are_not_started_twice(tmp_path):
    launched = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "29400"}
    done = calibrate(tmp_path, "--ranks", "2", **launched)
    assert done.returncode == 2
    assert "--ranks" in done.stderr
