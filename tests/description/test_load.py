"""Wrong machine files through the command line; `extends`, overrides and names."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
import yaml

import topologies
from twin.cli import main
from twin.description.load import apply_override, load_machine
from twin.description.problems import DescriptionError
from twin.description.strict_yaml import parse_yaml
from twin.strategies import load_job

BASE = yaml.safe_load((Path(topologies.__file__).parent / "perlmutter.yaml").read_text())
JOB = {
    "model": "gpt2",
    "ranks": 8,
    "grid": {"data": 2, "z": 2, "x": 2},
    "batch": {"sequences": 16, "micro_sequences": 2},
}
GONE = object()


def quantity(value: object) -> dict[str, object]:
    return {"value": value, "kind": "assumed", "source": "NERSC: a test"}


def links(*pairs: tuple[int, ...]) -> list[dict[str, object]]:
    return [{"devices": list(pair), "bandwidth": quantity("100 GB/s")} for pair in pairs]


def changed(*edits: tuple[str, object]) -> dict[str, Any]:
    """Perlmutter with values at dotted paths replaced or (GONE) left out."""
    data = copy.deepcopy(BASE)
    for path, value in edits:
        *above, last = path.split(".")
        inside = data
        for key in above:
            inside = inside[int(key) if isinstance(inside, list) else key]
        if value is GONE:
            del inside[last]
        else:
            inside[last] = value
    return data


def write_machine(folder: Path, data: object, name: str = "mine.yaml") -> Path:
    path = folder / name
    path.write_text(data if isinstance(data, str) else yaml.safe_dump(data), encoding="utf-8")
    return path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """Standard error of a command that must refuse its input cleanly."""
    with pytest.raises(SystemExit) as ended:
        main(list(arguments))
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, ""), err
    assert "Traceback" not in err
    return err


def nic(value: object) -> list[tuple[str, object]]:
    return [("nic.bandwidth", value)]


def library(**changes: object) -> list[tuple[str, object]]:
    return [("libraries", {"nccl": {"extends": "nccl", **changes}})]


def device(**changes: object) -> list[tuple[str, object]]:
    return [("device", {"extends": "a100-sxm4-40gb", **changes})]


WRONG: dict[str, tuple[list[tuple[str, object]], list[str]]] = {
    "unlisted unit": (nic(quantity("25 GBps")), ["nic.bandwidth", "GBps", "25 GB/s"]),
    "words for a unit": (nic(quantity("25 gigabytes")), ["nic.bandwidth", "gigabytes", "25 GB/s"]),
    "lone b": (nic(quantity("8 b/s")), ["nic.bandwidth", "8 b/s", "Gbit/s"]),
    "size for a rate": (nic(quantity("25 GB")), ["nic.bandwidth", "GB", "GB/s"]),
    "rate for a time": ([("nic.latency", quantity("2 GB/s"))], ["nic.latency", "3.7 us"]),
    "unit on a plain number": ([("nic.efficiency", quantity("90 %"))], ["nic.efficiency", "90 %", "plain"]),
    "zero bandwidth": (nic(quantity(0)), ["nic.bandwidth", "0"]),
    "negative bandwidth": (nic(quantity("-25 GB/s")), ["nic.bandwidth", "-25"]),
    "nan": (nic(quantity(float("nan"))), ["nic.bandwidth", "nan", "finite"]),
    "infinite": (nic(quantity(float("inf"))), ["nic.bandwidth", "inf", "finite"]),
    "overflow": (nic(quantity("1e400 GB/s")), ["nic.bandwidth", "1e400", "finite"]),
    "overflow of a whole number": (nic(quantity(10**400)), ["nic.bandwidth"]),
    "boolean": (nic(quantity(True)), ["nic.bandwidth", "True", "number"]),
    "bare number": (nic("25 GB/s"), ["nic.bandwidth", "value", "kind", "source"]),
    "no source": (nic({"value": 1, "kind": "measured"}), ["nic.bandwidth", "source is missing"]),
    "blank source": (nic(quantity(1) | {"source": " "}), ["nic.bandwidth", "source is missing"]),
    "no kind": (nic({"value": 1, "source": "x"}), ["nic.bandwidth", "kind", "datasheet"]),
    "unknown kind": (nic(quantity(1) | {"kind": "guessed"}), ["nic.bandwidth", "guessed", "measured"]),
    "no value": (nic({"kind": "measured", "source": "x"}), ["nic.bandwidth", "value is missing"]),
    "unknown part": (nic(quantity(1) | {"note": "x"}), ["nic.bandwidth", "note", "source"]),
    "negative latency": ([("nic.latency", quantity("-1 us"))], ["nic.latency", "-1"]),
    "zero efficiency": ([("nic.efficiency", quantity(0))], ["nic.efficiency", "0"]),
    "efficiency above one": ([("fabric.efficiency", quantity(2))], ["fabric.efficiency", "2"]),
    "zero link": ([("fabric.links.0.bandwidth", quantity(0))], ["fabric.links", "bandwidth"]),
    "link to itself": ([("fabric.links", links((0, 0)))], ["fabric.links", "[0, 0]", "itself"]),
    "link to nothing": ([("fabric.links", links((0, 9)))], ["fabric.links", "9", "0 to 3"]),
    "link of three": ([("fabric.links", links((0, 1, 2)))], ["fabric.links.0.devices", "[0, 1, 2]"]),
    "fabric in two parts": ([("fabric.links", links((0, 1), (2, 3)))], ["fabric.links", "connect"]),
    "links and a port": ([("fabric.port_bandwidth", quantity("1 GB/s"))], ["fabric", "port_bandwidth"]),
    "no port to carry what leaves": (
        [("fabric.port_carries_nics", True)],
        ["fabric.port_carries_nics", "port_bandwidth"],
    ),
    "neither links nor port": ([("fabric.links", [])], ["fabric", "links", "port_bandwidth"]),
    "device without NIC": ([("nic.devices", [[0], [1], [2]])], ["nic.devices", "[0, 1, 2]", "4"]),
    "device with two NICs": ([("nic.devices", [[0], [1], [2], [3, 0]])], ["nic.devices", "exactly one"]),
    "NIC serving no device": ([("nic.devices", [[0], [1], [2], [3], []])], ["nic.devices"]),
    "ring too short": ([("fabric.rings", [[0, 1, 2]])], ["fabric.rings", "[0, 1, 2]", "every device"]),
    "ring twice through": ([("fabric.rings", [[0, 1, 2, 2]])], ["fabric.rings", "[0, 1, 2, 2]"]),
    "default library not there": ([("library", "rccl")], ["library", "'rccl'", "nccl, pccl"]),
    "unknown library": ([("libraries.nccl", "ncll")], ["libraries.nccl", "'ncll'", "'nccl'"]),
    "no protocols": (library(network_protocols=[]), ["libraries.nccl", "network_protocols"]),
    "protocol without numbers": (
        library(extends="gloo", network_protocols=["LL"]),
        ["libraries.nccl", "network_protocols", "LL"],
    ),
    "unknown protocol": (library(network_protocols=["Fast"]), ["network_protocols", "'Fast'", "'LL128'"]),
    "ring of no efficiency": (
        library(ring={"local_efficiency": {"all_gather": 0}}),
        ["libraries.nccl.ring.local_efficiency.all_gather"],
    ),
    "unknown device": ([("device", "a100-sxm4-40g")], ["device", "'a100-sxm4-40g'", "'a100-sxm4-40gb'"]),
    "no device": ([("device", GONE)], ["device", "missing"]),
    "device of no speed": (device(peak=0), ["device.peak", "0"]),
    "device of negative speed": (device(peak=-5), ["device.peak", "-5"]),
    "device without units": (device(gemm={"units": 0}), ["device.gemm.units", "0"]),
    "device without tiles": (device(gemm={"tiles": []}), ["device.gemm.tiles", "[]"]),
    "device too efficient": (device(memory_efficiency=3), ["memory_efficiency", "3", "1"]),
    "device all reserved": (device(reserved_memory="1 TB"), ["reserved_memory"]),
    "version from the future": ([("schema", 2)], ["schema = 2", "1"]),
    "no version": ([("schema", GONE)], ["schema", "missing"]),
    "no nodes": ([("nodes", 0)], ["nodes = 0", "greater than 0"]),
    "half a node": ([("nodes", 1.5)], ["nodes = 1.5", "integer"]),
    "huge machine": ([("nodes", 10**30)], ["nodes", "1000000000000"]),
    "misspelt key": ([("nodez", 3)], ["nodez = 3", "'nodes'"]),
    "misspelt key below": ([("nic.bandwith", quantity(1))], ["nic.bandwith", "'bandwidth'"]),
    "sources as a list": ([("sources", ["NERSC"])], ["sources", "['NERSC']"]),
    "spread beyond one": ([("variation.device_speed_spread", quantity(2))], ["device_speed_spread", "2"]),
    "negative spread": ([("variation.device_speed_spread", quantity(-1))], ["device_speed_spread", "-1"]),
    "noise as a word": ([("variation.network_noise", quantity("high"))], ["network_noise", "'high'"]),
    "no nodes in a group": ([("network.group_nodes", 0)], ["network.group_nodes = 0"]),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_machine_is_refused_with_key_value_and_remedy(capsys, tmp_path, name):
    edits, needles = WRONG[name]
    message = refused(capsys, "machines", str(write_machine(tmp_path, changed(*edits))))
    for needle in needles:
        assert needle in message


def test_the_unchanged_machine_is_accepted(tmp_path):
    machine = load_machine(write_machine(tmp_path, changed()))
    assert machine == load_machine("perlmutter")


@pytest.mark.parametrize(("text", "needle"), [("", "empty"), ("- 1\n", "mapping"), ("a: [", "YAML")])
def test_what_is_not_a_machine_file_is_refused_and_the_file_named(capsys, tmp_path, text, needle):
    """Also when it was reached through a job, whose own file is fine."""
    path = write_machine(tmp_path, text)
    job = write_machine(tmp_path, JOB | {"machine": str(path)}, "job.yaml")
    for arguments in (("machines", str(path)), ("simulate", str(job))):
        message = refused(capsys, *arguments)
        assert needle in message
        assert "mine.yaml" in message


@pytest.mark.parametrize("base", ["mine.yaml", "./mine.yaml"])
def test_machine_that_extends_itself_is_refused(capsys, tmp_path, base):
    path = write_machine(tmp_path, {"extends": base, "name": "mine"})
    assert "extends itself" in refused(capsys, "machines", str(path))


def test_two_machines_that_extend_each_other_are_refused(capsys, tmp_path):
    write_machine(tmp_path, {"extends": "./b.yaml"}, "a.yaml")
    path = write_machine(tmp_path, {"extends": "./a.yaml"}, "b.yaml")
    assert "extends itself" in refused(capsys, "machines", str(path))


def test_several_wrong_keys_of_a_machine_are_told_at_once(capsys, tmp_path):
    path = write_machine(tmp_path, changed(("nodes", 0), ("nodez", 1), ("nic.bandwidth", quantity("9 q"))))
    message = refused(capsys, "machines", str(path))
    assert "3 problems" in message
    assert all(key in message for key in ("nodes = 0", "nodez = 1", "nic.bandwidth"))


def test_wrong_machine_inside_a_job_has_the_path_from_the_job(capsys, tmp_path):
    write_machine(tmp_path, changed(("nodes", 0)))
    job = write_machine(tmp_path, JOB | {"machine": "./mine.yaml", "ranks": 0}, "job.yaml")
    message = refused(capsys, "simulate", str(job))
    assert "machine.nodes = 0" in message
    assert "ranks = 0" in message


def test_precisions_that_a_device_does_not_compute_in_are_refused(tmp_path, capsys):
    job = write_machine(tmp_path, JOB | {"machine": "dgx-2"}, "job.yaml")
    assert "precision = 'bf16': v100-sxm2-32gb does not compute in it; use fp16 or fp32" in refused(
        capsys, "simulate", str(job)
    )


def test_machine_path_is_relative_to_the_job(tmp_path, monkeypatch):
    folder = tmp_path / "jobs"
    folder.mkdir()
    write_machine(folder, {"extends": "frontier", "name": "near"})
    monkeypatch.chdir(tmp_path)
    job = write_machine(folder, JOB | {"machine": "./mine.yaml"}, "job.yaml")
    assert load_job(job).machine.name == "near"


def test_bits_are_an_eighth_of_bytes(tmp_path):
    for text in ("200 Gbit/s", "200 Gb/s", "200 Gbps", "25 GB/s"):
        machine = load_machine(write_machine(tmp_path, changed(*nic(quantity(text)))))
        assert machine.nic.bandwidth_bytes_per_second == 25e9


def test_override_reaches_job_model_and_machine():
    job = load_job(
        JOB | {"machine": "frontier"},
        ["ranks=16", "grid.z=4", "model.layers=3", "machine.nic.bandwidth=50 GB/s", "machine.device.peak=1 PFLOP/s"],
    )
    assert (job.ranks, job.grid.z, job.model.layers, job.model.hidden) == (16, 4, 3, 768)
    assert job.machine.nic.bandwidth_bytes_per_second == 50e9
    assert job.machine.device.peak_flops_per_second == 1e15
    original = load_machine("frontier")
    assert job.machine.fabric == original.fabric
    assert job.machine.device.gemm == original.device.gemm


def test_an_overridden_number_does_not_keep_the_old_source():
    machine = load_job(JOB | {"machine": "frontier"}, ["machine.nic.bandwidth=50 GB/s"]).machine
    assert machine.nic.bandwidth_bytes_per_second.kind == "assumed"
    assert "OLCF" not in machine.nic.bandwidth_bytes_per_second.source


def test_override_does_not_change_its_input():
    raw = {"grid": {"z": 2}, "machine": "frontier"}
    apply_override(apply_override(raw, "grid.z=4"), "machine.nodes=3")
    assert raw == {"grid": {"z": 2}, "machine": "frontier"}


BAD_OVERRIDES = {
    "no value": ("ranks", "KEY=VALUE"),
    "no key": ("=8", "KEY=VALUE"),
    "empty step": ("grid..z=8", "KEY.KEY=VALUE"),
    "below a number": ("ranks.x=8", "no keys below"),
    "not YAML": ("ranks=[1", "YAML"),
    "unhashable key": ("ranks={[1]: 2}", "ranks"),
    "alias": ("ranks=*a", "YAML"),
    "unknown": ("rnaks=8", "'ranks'"),
    "unknown in the machine": ("machine.nci.bandwidth=50 GB/s", "'nic'"),
    "unit": ("machine.nic.bandwidth=50 GBps", "25 GB/s"),
    "zero": ("machine.nic.bandwidth=0", "nic.bandwidth"),
    "device": ("machine.device=a100", "'a100"),
    "huge": (f"machine.nic.bandwidth={10**400}", "nic.bandwidth"),
    "deep": (".".join("a" * 3000) + "=1", "a"),
}


@pytest.mark.parametrize("name", BAD_OVERRIDES)
def test_bad_override_is_refused(capsys, tmp_path, name):
    override, needle = BAD_OVERRIDES[name]
    job = write_machine(tmp_path, JOB | {"machine": "perlmutter"}, "job.yaml")
    assert needle in refused(capsys, "simulate", str(job), "--set", override)


def test_parse_error_carries_every_problem_and_its_origin():
    with pytest.raises(DescriptionError) as caught:
        parse_yaml("1: a\n2: b\n", "here.yaml")
    assert caught.value.origin == "here.yaml"
    assert [p.path for p in caught.value.problems] == ["1", "2"]
