"""The machines that come with Fourfold: every number sourced, every figure physically sane."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import pytest

import topologies
from twin.description.device import Device
from twin.description.library import Library
from twin.description.load import load_device, load_library, load_machine, names
from twin.description.machine import Machine
from twin.description.parameter import Kind, Parameter
from twin.description.spec import Spec

ROOT = Path(topologies.__file__).parent
MACHINES = [
    "4x4090",
    "alps",
    "aws-p4d",
    "aws-p5",
    "aws-p5en",
    "aws-p6-b200",
    "azure-nd-h100-v5",
    "dgx-2",
    "dgx-a100",
    "dgx-a100-4nic",
    "dgx-b200",
    "dgx-h100",
    "eos",
    "frontier",
    "gb200-nvl72",
    "gb300-nvl72",
    "gcp-a3-mega",
    "hgx-h200",
    "hgx-mi300x",
    "jean-zay",
    "jean-zay-v100",
    "l40s-8",
    "laptop",
    "lumi",
    "meta-24k",
    "oci-a100",
    "perlmutter",
    "perlmutter-80gb",
    "polaris",
    "selene",
    "vista",
]


Known = tuple[str, ...]


def parameters(value: Any, path: str = "", sources: Known = ()) -> Iterator[tuple[str, Parameter, Known]]:
    """Every parameter with its path and the short names of sources that hold around it."""
    if isinstance(value, Parameter):
        yield path, value, sources
    elif isinstance(value, Spec):
        known = (*sources, *getattr(value, "sources", {}))
        for name in type(value).model_fields:
            yield from parameters(getattr(value, name), f"{path}.{name}", known)
    elif isinstance(value, dict):
        for key, item in value.items():
            yield from parameters(item, f"{path}.{key}", sources)
    elif isinstance(value, tuple):
        for number, item in enumerate(value):
            yield from parameters(item, f"{path}[{number}]", sources)


def addressed(source: str, known: tuple[str, ...]) -> bool:
    """Whether a source begins with a listed short name, or is itself an address or document."""
    first = re.match(r"[\w-]+", source)
    if first and first[0] in known:
        return True
    return re.match(r"github \S+/\S+|arXiv \d{4}\.\d{4,5}|(https?://)?[\w-]+(\.[\w-]+)+/\S", source) is not None


def described() -> list[tuple[str, Machine | Device | Library]]:
    return [
        *((f"{n}.yaml", load_machine(n)) for n in names()),
        *((f"devices/{n}.yaml", load_device(n)) for n in names("devices")),
        *((f"libraries/{n}.yaml", load_library(n)) for n in names("libraries")),
    ]


def test_all_promised_machines_are_there():
    assert set(MACHINES) <= set(names())


@pytest.mark.parametrize("name", names())
def test_machine_is_named_as_its_file(name):
    assert load_machine(name).name == name
    assert load_machine(ROOT / f"{name}.yaml") == load_machine(name)


@pytest.mark.parametrize("folder", ["devices", "libraries"])
def test_parts_are_named_as_their_files(folder):
    read = {"devices": load_device, "libraries": load_library}[folder]
    assert [read(n).name for n in names(folder)] == names(folder)


@pytest.mark.parametrize(("file", "what"), described(), ids=[d[0] for d in described()])
def test_every_number_has_kind_and_source(file, what):
    found = list(parameters(what))
    assert len(found) > 10, file
    assert {p.kind for _, p, _ in found} <= set(get_args(Kind))
    bad = [f"{path}: {p.source!r}" for path, p, known in found if not addressed(p.source, known)]
    assert not bad, "sources that name nothing:\n" + "\n".join(bad)


@pytest.mark.parametrize(("file", "what"), described(), ids=[d[0] for d in described()])
def test_listed_sources_are_not_empty(file, what):
    assert what.sources, file
    assert all(text.strip() for text in what.sources.values())


@pytest.mark.parametrize("name", names())
def test_shares_and_rates_are_possible(name):
    machine = load_machine(name)
    for path, value, _ in parameters(machine):
        assert value >= 0, path
        if "efficiency" in path.rsplit(".", 2)[-1] or path.endswith("_share") or "_efficiency." in path:
            assert 0 < value <= 1, path
        if path.endswith("bytes_per_second"):
            assert 1e6 < value < 1e14, path
        if path.endswith("_latency_seconds"):
            assert 1e-8 < value < 1e-3, path
    assert 0 <= machine.variation.device_speed_spread < 0.5
    assert machine.device.gemm.sustained_share <= 1


# Peak dense bf16/fp16 TFLOP/s, memory (GB or GiB as sold), memory TB/s of the makers' datasheets.
DATASHEETS = {
    "a100-sxm4-40gb": (312, 40, 1.555),
    "a100-sxm4-80gb": (312, 80, 2.039),
    "h100-sxm": (989, 80, 3.35),
    "h200": (989, 141, 4.8),
    "gh200-96gb": (989, 96, 4.0),
    "mi250x-gcd": (191.5, 64, 1.638),
    "mi210": (181, 64, 1.638),
}


@pytest.mark.parametrize("name", DATASHEETS)
def test_devices_have_their_datasheets_figures(name):
    tflops, gigabytes, bandwidth = DATASHEETS[name]
    device = load_device(name)
    assert device.peak_flops_per_second / 1e12 == pytest.approx(tflops, rel=0.005)
    assert gigabytes * 0.98e9 <= device.memory_bytes <= gigabytes * 2**30
    assert device.memory_bandwidth_bytes_per_second / 1e12 == pytest.approx(bandwidth, rel=0.02)
    assert device.idle_watts < device.busy_watts


# Devices, NICs, GB/s out of a node, nodes: facts of the sites and makers.
NODES = {
    "frontier": (8, 4, 100, 9856),
    "perlmutter": (4, 4, 100, 1536),
    "perlmutter-80gb": (4, 4, 100, 256),
    "alps": (4, 4, 100, 2688),
    "dgx-h100": (8, 8, 400, None),
    "hgx-h200": (8, 8, 400, None),
}


@pytest.mark.parametrize("name", NODES)
def test_nodes_have_their_network(name):
    devices, nics, gigabytes, nodes = NODES[name]
    machine = load_machine(name)
    assert (machine.devices_per_node, len(machine.nic.devices)) == (devices, nics)
    assert len(machine.nic.devices) * machine.nic.bandwidth_bytes_per_second == pytest.approx(gigabytes * 1e9)
    assert nodes in {None, machine.nodes}
    for device in range(devices):
        assert device in machine.nic.devices[machine.nic_of(device)]


def peers(machine: Machine) -> list[dict[int, float]]:
    """For every device its neighbours and the bytes per second to them."""
    out: list[dict[int, float]] = [{} for _ in range(machine.devices_per_node)]
    for link in machine.fabric.links:
        a, b = link.devices
        assert b not in out[a], "a pair is listed twice"
        out[a][b] = out[b][a] = float(link.bandwidth_bytes_per_second)
    return out


def test_frontier_has_the_gcd_graph_of_its_node():
    """Links of 50 GB/s to other GCDs: 7 from each even GCD, 6 from each odd one.

    Four go to the other die of the package, none of the rest is doubled but 0-6 and 2-4.
    """
    links = [{b: rate / 50e9 for b, rate in mine.items()} for mine in peers(load_machine("frontier"))]
    assert [sum(mine.values()) for mine in links] == [7, 6] * 4
    assert all(links[gcd][gcd ^ 1] == 4 for gcd in range(8))
    assert {(a, b) for a in range(8) for b, n in links[a].items() if n == 2 and a < b} == {(0, 6), (2, 4)}
    assert all(n in {1, 2, 4} for mine in links for n in mine.values())


def test_frontier_rings_run_over_links_that_exist():
    machine = load_machine("frontier")
    graph = peers(machine)
    for ring in machine.fabric.rings:
        assert all(b in graph[a] for a, b in zip(ring, ring[1:] + ring[:1], strict=True))


@pytest.mark.parametrize(("name", "gigabytes"), [("perlmutter", 100), ("perlmutter-80gb", 100), ("alps", 150)])
def test_four_way_nodes_are_complete_graphs(name, gigabytes):
    for device, mine in enumerate(peers(load_machine(name))):
        assert mine == {other: gigabytes * 1e9 for other in range(4) if other != device}


@pytest.mark.parametrize(("name", "gigabytes"), [("dgx-a100", 300), ("dgx-h100", 450), ("hgx-h200", 450)])
def test_switched_nodes_have_ports(name, gigabytes):
    machine = load_machine(name)
    assert machine.fabric.links == ()
    assert machine.fabric.port_bandwidth_bytes_per_second == gigabytes * 1e9


@pytest.mark.parametrize(
    ("name", "gigabytes"),
    [("dgx-a100-4nic", 100), ("dgx-a100", 200), ("selene", 200), ("dgx-h100", 400), ("eos", 400), ("hgx-h200", 400)],
)
def test_a_node_of_eight_injects_what_its_nics_carry(name, gigabytes):
    nic = load_machine(name).nic
    assert len(nic.devices) * nic.bandwidth_bytes_per_second == gigabytes * 1e9


# Makers' names, a node's GPUs, and GB/s of their NICs together: facts of the clouds that rent them.
CLOUDS = {
    "aws-p4d": ("A100", 40e9, 8, 50),
    "aws-p5": ("H100", 80e9, 8, 400),
    "aws-p5en": ("H200", 141e9, 8, 400),
    "aws-p6-b200": ("B200", 180e9, 8, 400),
    "azure-nd-h100-v5": ("H100", 80e9, 8, 400),
    "gb300-nvl72": ("GB300", 279e9, 72, 7200),
    "gcp-a3-mega": ("H100", 80e9, 8, 200),
    "oci-a100": ("A100", 40e9, 8, 200),
}


@pytest.mark.parametrize("name", CLOUDS)
def test_nodes_of_clouds_have_their_devices_and_their_network(name):
    device, memory, devices, gigabytes = CLOUDS[name]
    machine = load_machine(name)
    assert device in machine.device.title
    assert machine.device.memory_bytes == pytest.approx(memory, rel=0.08)
    assert machine.devices_per_node == devices
    assert sorted(d for served in machine.nic.devices for d in served) == list(range(devices))
    assert len(machine.nic.devices) * machine.nic.peak_bytes_per_second == pytest.approx(gigabytes * 1e9)
    assert 0.85 * gigabytes * 1e9 < len(machine.nic.devices) * machine.nic.rate_bytes_per_second < gigabytes * 1e9


@pytest.mark.parametrize("name", ["frontier", "perlmutter", "alps"])
def test_dragonfly_groups_carry_less_than_their_nodes_inject(name):
    machine = load_machine(name)
    network = machine.network
    injected = network.group_nodes * len(machine.nic.devices) * machine.nic.bandwidth_bytes_per_second
    assert 0.3 * injected < network.group_bandwidth_bytes_per_second < injected
    assert network.group_nodes % network.nodes_per_switch == 0
    assert machine.nodes >= network.group_nodes


@pytest.mark.parametrize("name", names())
def test_libraries_can_run_what_they_say(name):
    machine = load_machine(name)
    assert machine.library in machine.libraries
    for library in machine.libraries.values():
        assert library.network_protocols
        assert set(library.network_protocols) <= set(library.protocols)


def test_a_parameter_computes_as_a_float_and_loses_its_source():
    parameter = Parameter(2.0, "measured", "here")
    assert parameter + 1 == 3.0
    assert type(parameter * 2) is float
    assert (parameter.kind, parameter.source) == ("measured", "here")


@pytest.mark.parametrize("name", names())
def test_counts_of_shipped_machines_have_kind_and_source(name):
    """How many nodes, devices, nodes on a switch: numbers about hardware like any other."""
    machine = load_machine(name)
    counts = [machine.nodes, machine.devices_per_node, machine.network.nodes_per_switch]
    counts += [machine.network.group_nodes] if machine.network.group_nodes else []
    for count in counts:
        known = {*machine.sources}
        assert count.source.split(":")[0].split(" ")[0].rstrip(",;") in known, count.source
