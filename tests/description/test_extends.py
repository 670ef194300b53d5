"""Machines, devices and libraries that start from another one, and numbers that nothing may be divided by."""

from __future__ import annotations

import pytest

from tests.description.test_load import JOB, refused, write_machine
from twin.description.load import load_library, load_machine
from twin.description.problems import DescriptionError


def test_extends_replaces_given_keys_and_keeps_the_others(tmp_path):
    path = write_machine(tmp_path, {"extends": "frontier", "name": "small", "nodes": 4})
    mine, frontier = load_machine(path), load_machine("frontier")
    assert (mine.name, mine.nodes) == ("small", 4)
    assert mine.caveat == f"Inherited from frontier: {frontier.caveat}"
    same = {key: getattr(frontier, key) for key in ("name", "nodes", "caveat")}
    assert mine.model_copy(update=same) == frontier


def test_a_caveat_of_its_own_stands_for_the_one_inherited(tmp_path):
    path = write_machine(tmp_path, {"extends": "frontier", "name": "small", "caveat": "Made up."})
    again = write_machine(tmp_path, {"extends": "./mine.yaml", "name": "smaller"}, "again.yaml")
    assert load_machine(path).caveat == "Made up."
    assert load_machine(again).caveat == "Inherited from ./mine.yaml: Made up."


def test_what_a_machine_does_not_have_is_null(tmp_path):
    """A part that may be absent, a library, links in favour of a switch, a share of which the default holds then."""
    port = {"value": "100 GB/s", "kind": "assumed", "source": "OLCF: a test"}
    mine = {
        "reliability": None,
        "libraries": {"pccl": None},
        "fabric": {"links": None, "rings": None, "port_bandwidth": port},
        "device": {"memory_shares": {"adamw": None}},
        "caveat": None,
    }
    found = load_machine(write_machine(tmp_path, {"extends": "frontier", "name": "small", **mine}))
    assert found.reliability is None
    assert list(found.libraries) == ["rccl"]
    assert found.fabric.links == ()
    assert "adamw" not in found.device.memory_shares
    assert found.caveat == ""


def test_null_for_what_is_needed_is_missing(tmp_path, capsys):
    path = write_machine(tmp_path, {"extends": "frontier", "name": "small", "nic": None})
    assert "nic: missing" in refused(capsys, "machines", str(path)).lower()


@pytest.mark.parametrize("wrong", [{"relability": None}, {"fabric": {"lnks": None}}, {"libraries": {"ncl": None}}])
def test_null_for_what_the_base_does_not_have_is_refused(tmp_path, capsys, wrong):
    path = write_machine(tmp_path, {"extends": "frontier", "name": "small", **wrong})
    assert next(key for key in ("relability", "lnks", "ncl") if key in str(wrong)) in refused(
        capsys, "machines", str(path)
    )


@pytest.mark.parametrize("base", ["dgx-a100", "frontier"])
def test_another_device_with_changes_is_that_device(tmp_path, base):
    """Not the base's device with a few keys of the other laid over it."""
    named = {"extends": base, "name": "mine", "device": "b200"}
    changed = named | {"device": {"extends": "b200", "peak": "2300 TFLOP/s"}}
    one = load_machine(write_machine(tmp_path, named)).device
    other = load_machine(write_machine(tmp_path, changed)).device
    same = {key: getattr(one, key) for key in ("peak_flops_per_second", "caveat")}
    assert float(other.peak_flops_per_second) == 2300e12
    assert other.model_copy(update=same) == one


def test_another_library_with_changes_is_that_library(tmp_path):
    raw = {"extends": "dgx-a100", "name": "mine", "libraries": {"nccl": {"extends": "nccl-ib-hopper", "title": "Mine"}}}
    mine = load_machine(write_machine(tmp_path, raw)).libraries["nccl"]
    assert mine.model_copy(update={"title": ""}) == load_library("nccl-ib-hopper").model_copy(update={"title": ""})


@pytest.mark.parametrize(
    "key",
    [
        "gemm.write_bytes_per_flop",
        "gemm.feed_bytes_per_flop",
        "gemm.main_loop_share",
        "gemm.memory_share",
        "gemm.fp32_share",
        "gemm.sustained_share",
        "attention.ck.forward_share",
        "attention.ck.narrow_ratio",
    ],
)
def test_what_is_divided_by_is_not_zero(tmp_path, capsys, key):
    job = write_machine(tmp_path, JOB | {"machine": "frontier"}, "job.yaml")
    assert f"{key}: 0 " in refused(capsys, "simulate", str(job), "--set", f"machine.device.{key}=0")


def test_a_bare_number_that_the_base_leaves_out_is_assumed_as_one_that_it_has(tmp_path):
    """A flat network gets groups; a host link, absent as a whole; a share of one kind of work."""
    mine = {
        "network": {"group_nodes": 16, "group_bandwidth": "400 GB/s", "group_latency": "1 us"},
        "host_link": {"bandwidth": "50 GB/s", "latency": "2 us"},
        "device": {"memory_shares": {"gelu": 0.4}, "collective_host": "30 us"},
        "nic": {"count": 2},
    }
    found = load_machine(write_machine(tmp_path, {"extends": "dgx-h100", "name": "grouped", **mine}))
    assert found.host_link is not None
    for number, value in (
        (found.network.group_bandwidth_bytes_per_second, 400e9),
        (found.network.group_latency_seconds, 1e-6),
        (found.host_link.bandwidth_bytes_per_second, 50e9),
        (found.device.memory_shares["gelu"], 0.4),
        (found.device.collective_host_seconds, 30e-6),
        (found.nic.count, 2),
    ):
        assert (number, number.kind, number.source) == (pytest.approx(value), "assumed", "set by the user")
    assert found.network.nodes_per_switch == load_machine("dgx-h100").network.nodes_per_switch


def test_a_new_machine_still_says_where_its_numbers_come_from(tmp_path):
    raw = load_machine("dgx-h100").model_dump(mode="json", by_alias=True)
    raw["network"]["group_bandwidth"] = "400 GB/s"
    with pytest.raises(DescriptionError, match=r"network\.group_bandwidth.* a hardware number is written \{value:"):
        load_machine(write_machine(tmp_path, raw))


@pytest.mark.parametrize("value", ["fast", "-1 GB/s", "3 apples"])
def test_a_bare_number_is_checked_like_any(tmp_path, value):
    mine = {"extends": "dgx-h100", "name": "grouped", "network": {"group_nodes": 16, "group_bandwidth": value}}
    with pytest.raises(DescriptionError, match=r"network\.group_bandwidth"):
        load_machine(write_machine(tmp_path, mine))
