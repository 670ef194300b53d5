"""Answers to a single question: one collective, one matrix product."""

from __future__ import annotations

from typing import Any

import numpy as np

from twin.cost.collective import CollectiveCost, collective_cost, resource_capacity
from twin.cost.gemm import gemm_seconds
from twin.description.grid import Mesh
from twin.description.library import CollectiveKind
from twin.description.load import load_machine
from twin.description.machine import Machine
from twin.description.problems import did_you_mean, fail
from twin.description.units import SUFFIXES, parse_quantity
from twin.engine.layout import Groups, Layout, groups_of
from twin.engine.pricing import price
from twin.engine.sharing import Flow, assign_speeds
from twin.engine.simulate import transfer_of
from twin.engine.symmetry import fold
from twin.schedule.communicator import Communicator
from twin.schedule.kernels import Gemm, Mode

BUS_FACTOR = {"all_gather": 1.0, "reduce_scatter": 1.0, "all_reduce": 2.0, "all_to_all": 1.0}
"""Bus bandwidth is what each link of a ring would have to carry: this times (n − 1)/n of the bytes; of a broadcast all
of them, as nccl-tests count."""


def collective_answer(
    machine_name: str, kind: CollectiveKind, ranks: int, size: str, stride: int, library: str | None
) -> dict[str, Any]:
    """Price one collective over ranks 0, stride, 2·stride and so on."""
    machine = load_machine(machine_name)
    name = library or machine.library
    if name not in machine.libraries:
        raise fail("--library", f"{machine.name}: {did_you_mean(name, machine.libraries)}", name)
    try:
        bytes_ = parse_quantity(size, SUFFIXES["_bytes"])
    except ValueError as error:
        raise fail("--bytes", str(error)) from None
    if bytes_ <= 0:
        raise fail("--bytes", "must be more than 0", size)
    capacity = machine.nodes * machine.devices_per_node
    if ranks * stride > capacity:
        raise fail(
            "--ranks", f"{ranks} × stride {stride} is more than the {capacity:,} devices of {machine.name}", ranks
        )
    mesh = _mesh(machine, ranks, stride)
    group = Communicator.along(mesh, "group")
    layout = Layout.contiguous(machine, mesh.ranks)
    groups = groups_of(group.members, group.partition, layout)
    cost = collective_cost(machine, machine.libraries[name], kind, bytes_, groups.placements[groups.pattern[0]])
    together, full = _together(machine, name, kind, bytes_, layout, group, groups)
    carried = bytes_ if kind == "broadcast" else BUS_FACTOR[kind] * bytes_ * (ranks - 1) / ranks
    bus = carried / cost.seconds if cost.seconds else 0.0
    return {
        "machine": machine.name,
        "library": name,
        "kind": kind,
        "ranks": ranks,
        "stride": stride,
        "bytes": bytes_,
        "seconds": cost.seconds,
        "seconds_with_all_groups": together,
        "full_with_all_groups": full,
        "startup_seconds": cost.startup_seconds,
        "transfer_seconds": cost.transfer_seconds,
        "bus_bandwidth_bytes_per_second": bus,
        "algorithm": cost.algorithm,
        "protocol": cost.protocol,
        "nodes": groups.placements[groups.pattern[0]].node_count,
        "busiest_alone": _busiest(machine, cost),
    }


def _mesh(machine: Machine, ranks: int, stride: int) -> Mesh:
    """Put one axis over another: groups with this stride, as many of them as fill the nodes they touch."""
    inside = ranks * stride
    return Mesh(("copies", "group", "stride"), (max(1, machine.devices_per_node // inside), ranks, stride))


def _together(
    machine: Machine,
    library: str,
    kind: CollectiveKind,
    size: float,
    layout: Layout,
    group: Communicator,
    groups: Groups,
) -> tuple[float, str]:
    """Seconds when all groups with this stride do the same at once, and what is full then."""
    if groups.members.shape[1] < 2:
        return 0.0, "nothing"
    axes = {group.partition: groups}
    prices = price(machine, machine.libraries[library], [(group.name, kind, size)], {group.name: group}, axes, layout)
    speed = np.ones(len(layout.node))
    partition = fold(axes, prices.alike, prices.edges, speed, prices.capacity)
    transfers = [transfer_of(prices, partition, 0, group.partition, of) for of in partition.groups[group.partition]]
    flows = [Flow(t.demands, t.peak_rate) for t in transfers]
    assign_speeds(flows, partition.capacity)
    took = [t.startup_seconds + t.transfer_seconds / min(f.speed, 1.0) for t, f in zip(transfers, flows, strict=True)]
    last = max(range(len(flows)), key=lambda i: took[i])
    if flows[last].speed >= 1.0:
        return took[last], "nothing"
    load = {r: sum(rate * f.speed for f in flows for q, rate in f.demands if q == r) for r, _ in flows[last].demands}
    full = max(load, key=lambda r: load[r] / partition.capacity[r])
    kind_of_full = prices.kind_of(partition.resource_representatives[full])
    return took[last], f"{_NAMES[kind_of_full]}s"


def _busiest(machine: Machine, cost: CollectiveCost) -> str:
    """What limits the collective when it is alone, and how much of its capacity it uses."""
    shares = {
        f"{_NAMES[use.kind]} {use.index}": use.bytes / resource_capacity(machine, use.kind, use.index)
        for uses in cost.node_loads.values()
        for use in uses
    }
    for size in cost.uplink_loads:
        uplink = size / resource_capacity(machine, "uplink", 0)
        shares[f"{_NAMES['uplink']} 0"] = max(uplink, shares.get(f"{_NAMES['uplink']} 0", 0.0))
    if not shares or not cost.transfer_seconds:
        return "nothing"
    name = max(shares, key=lambda n: shares[n])
    return f"{name}, {shares[name] / cost.transfer_seconds:.0%} of its rate"


_NAMES = {
    "nic": "NIC",
    "link": "in-node link",
    "port": "switch port",
    "uplink": "dragonfly group uplink",
    "cores": "core",
}


def gemm_answer(machine_name: str, m: int, n: int, k: int, mode: Mode, *, tuned: bool) -> dict[str, Any]:
    """Price one matrix product on a machine's device."""
    machine = load_machine(machine_name)
    device = machine.device
    gemm = Gemm(m, n, k, mode)
    seconds = gemm_seconds(device, gemm, tuned=tuned)
    return {
        "machine": machine.name,
        "device": device.name,
        "m": m,
        "n": n,
        "k": k,
        "mode": mode,
        "tuned": tuned,
        "seconds": seconds,
        "flops": gemm.flops,
        "flops_per_second": gemm.flops / seconds,
        "percent_of_peak": 100.0 * gemm.flops / seconds / device.peak_flops_per_second,
    }
