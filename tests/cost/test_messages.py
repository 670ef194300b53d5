"""Messages between two ranks, all-to-alls, and copies to the host: closed forms and properties."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.cost.collective import collective_cost
from twin.cost.collective_group import look
from twin.cost.collectives.pairwise import pairwise_options
from twin.cost.placement import Placement
from twin.description.load import load_machine
from twin.description.problems import DescriptionError

MACHINES = {name: load_machine(name) for name in ("frontier", "perlmutter", "alps", "dgx-h100")}
LAPTOP = load_machine("laptop")
NEAR, FAR = Placement(((0, 1),), (0,)), Placement(((0,), (0,)), (0, 0))
machines, sizes = st.sampled_from(sorted(MACHINES)), st.integers(1, 2**32)


def cost(name, kind, size, placement):
    machine = MACHINES[name]
    return collective_cost(machine, machine.libraries[machine.library], kind, float(size), placement)


@examples()
@given(machines, sizes, st.sampled_from([NEAR, FAR]))
def test_a_message_is_one_hop_and_its_bytes(name, size, placement):
    """A startup and its bytes, no faster than the wire, and the same both ways."""
    sent = cost(name, "send", size, placement)
    machine = MACHINES[name]
    if placement is FAR:
        assert sent.seconds >= size / machine.nic.bandwidth_bytes_per_second
        # one direction of two at both ends: two messages that cross fill a NIC, and so do two that do not
        (load,) = {x.bytes for x in sent.loads if x.resource[0] == "nic"}
        assert load == size / 2
        (both,) = {x.bytes for x in cost(name, "exchange", size, placement).loads if x.resource[0] == "nic"}
        assert both == size
    for kind in ("receive", "exchange"):
        assert cost(name, kind, size, placement).seconds == sent.seconds
    assert sent.startup_seconds > 0


@pytest.mark.parametrize(
    ("size", "channels"), [(2.0**20, "few"), (2.0**26, "few"), (2.0**27, "filling"), (2.0**29, "all"), (2.0**34, "all")]
)
def test_a_message_inside_a_node_has_few_channels_until_all_are_at_work(size, channels):
    """github xxrjun/nccl-tests-cluster: 64 MiB take as long as 128, and nearly as 256; 512 go at the link's rate."""
    machine = MACHINES["dgx-h100"]
    constants = machine.libraries["nccl"].local_messages
    assert constants is not None
    rate = look(machine, NEAR).local_rate
    expected = {
        "few": size / constants.few_channels_bytes_per_second,
        "filling": constants.filling_seconds,
        "all": size / (rate * constants.efficiency),
    }[channels]
    for kind in ("send", "exchange", "shift"):
        assert cost("dgx-h100", kind, size, NEAR).transfer_seconds == pytest.approx(expected)


@examples()
@given(machines, sizes, st.integers(2, 5))
def test_more_bytes_take_longer(name, size, times):
    for kind in ("send", "all_to_all"):
        assert cost(name, kind, times * size, FAR).seconds > cost(name, kind, size, FAR).seconds
        assert cost(name, kind, times * size, NEAR).seconds >= cost(name, kind, size, NEAR).seconds


@pytest.mark.parametrize("name", sorted(MACHINES))
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_an_all_to_all_moves_what_others_are_to_have(name, nodes):
    """Of a buffer of p parts each member keeps one; a node sends out what goes to others' nodes."""
    devices = MACHINES[name].devices_per_node
    placement = Placement.contiguous(nodes * devices, devices)
    size, ranks = 1e9, nodes * devices
    found = cost(name, "all_to_all", size, placement)
    out = sum(x.bytes for x in found.loads if x.resource[:2] == ("nic", 0))
    assert out == pytest.approx(devices * (ranks - devices) * size / ranks)
    assert found.algorithm == "pairwise"


@pytest.mark.parametrize("name", ["alps", "dgx-h100", "perlmutter"])
@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("size", [2.0**10, 2.0**20, 2.0**30])
def test_an_all_to_all_goes_by_few_channels_or_by_all(name, nodes, size):
    """By its library's own constants: the faster of two starts and rates in a node, one between nodes."""
    machine = MACHINES[name]
    library, devices = machine.libraries["nccl"], machine.devices_per_node
    constants, ranks = library.pairwise, nodes * devices
    assert constants is not None
    group = look(machine, Placement.contiguous(ranks, devices))
    startup = (devices - 1) * group.local_latency_seconds
    startup += (ranks - devices) * (constants.network_message_seconds + group.network_latency_seconds)
    between = devices * (ranks - devices) * size / ranks / (group.network_rate * constants.network_efficiency)
    few = (constants.few_channels_base_seconds, constants.few_channels_efficiency)
    every = (constants.base_seconds, constants.local_efficiency)
    ways = [
        base + startup + max((devices - 1) * size / ranks / (group.local_rate * share), between)
        for base, share in ((few, every) if nodes == 1 else ((few[0], every[1]),))
    ]
    assert cost(name, "all_to_all", size, group.placement).seconds == pytest.approx(min(ways))


def test_an_all_to_all_leaves_its_dragonfly_groups_with_what_others_are_to_have():
    """Counted pair by pair: 4 and 2 nodes of two groups."""
    machine = MACHINES["perlmutter"]
    devices, size = machine.devices_per_node, 6e9
    placement = Placement((tuple(range(devices)),) * 6, (0, 0, 0, 0, 1, 1))
    group_of = [group for group in placement.switch_groups for _ in range(devices)]
    ranks = len(group_of)
    leaving = [0.0, 0.0]
    for sender in range(ranks):
        for receiver in range(ranks):
            if group_of[sender] != group_of[receiver]:
                leaving[group_of[sender]] += size / ranks
    (option, *_) = pairwise_options(look(machine, placement), machine.libraries["nccl"], "all_to_all", size)
    assert option.uplink_bytes == pytest.approx(leaving)
    assert option.wire_seconds >= max(leaving) / machine.network.group_bandwidth_bytes_per_second


def test_an_all_to_all_of_nodes_of_unequal_size_is_as_long_as_the_fullest():
    """Three on one node, one on another: the first has three parts to send, over NICs that it has."""
    machine = MACHINES["dgx-h100"]
    constants = machine.libraries["nccl"].pairwise
    assert constants is not None
    placement, size = Placement(((0, 1, 2), (0,)), (0, 0)), 2.0**32
    group = look(machine, placement)
    (option,) = pairwise_options(group, machine.libraries["nccl"], "all_to_all", size)
    assert option.nic_bytes == pytest.approx(3 * size / 4)
    slower = max(
        2 * size / 4 / (group.local_rate * constants.local_efficiency),
        option.nic_bytes / (group.network_rate * constants.network_efficiency),
    )
    assert option.wire_seconds == pytest.approx(slower)


@pytest.mark.parametrize(("name", "ranks"), [("dgx-h100", 17), ("dgx-h100", 33), ("perlmutter", 9), ("dgx-h100", 20)])
def test_nodes_that_are_filled_otherwise_send_what_they_have_through_what_they_have(name, ranks):
    """Counted pair by pair: the slowest node decides, and the last one's few NICs carry its own parts alone."""
    machine = MACHINES[name]
    library, devices = machine.libraries["nccl"], machine.devices_per_node
    placement, size = Placement.contiguous(ranks, devices), 2.0**33
    sent = dict.fromkeys(range(placement.node_count), 0.0)
    for sender in range(ranks):
        for receiver in range(ranks):
            if sender // devices != receiver // devices:
                sent[sender // devices] += size / ranks
    found = cost(name, "all_to_all", size, placement)
    for node, expected in sent.items():
        assert sum(load.bytes for load in found.loads if load.resource[:2] == ("nic", node)) == pytest.approx(expected)
    rate = machine.nic.rate_bytes_per_second * library.pairwise.network_efficiency
    nics = [len({machine.nic_of(device) for device in used}) for used in placement.nodes]
    slowest = max(sent[node] / (nics[node] * rate) for node in sent)
    assert found.transfer_seconds == pytest.approx(slowest, rel=0.01)


@pytest.mark.parametrize(
    "kind", ["send", "exchange", "all_gather", "reduce_scatter", "all_reduce", "all_to_all", "shift"]
)
@pytest.mark.parametrize("ranks", [2, 4, 16])
def test_over_pcie_what_leaves_the_node_crosses_the_port_of_its_device(kind, ranks):
    """One GPU of each node, whose NIC is faster than its slot: bytes that each receives over the slot's rate."""
    if kind in ("send", "exchange") and ranks > 2:
        return
    machine, size = load_machine("l40s-8"), 2.0**30
    assert machine.nic.rate_bytes_per_second > (slot := machine.fabric.port_bandwidth_bytes_per_second)
    moved = {"send": size, "exchange": size, "shift": size, "all_reduce": 2 * size * (ranks - 1) / ranks}
    spread = Placement(((0,),) * ranks, (0,) * ranks)
    took = collective_cost(machine, machine.libraries["nccl"], kind, size, spread)
    assert took.seconds >= moved.get(kind, size * (ranks - 1) / ranks) / slot


def test_over_pcie_an_all_to_all_of_more_ranks_takes_longer():
    """Of the same buffer each keeps less; all the rest crosses its port, wherever it goes; NICs yield less of it."""
    machine, size = load_machine("l40s-8"), 2.0**30
    library = machine.libraries["nccl"]
    port = machine.fabric.port_bandwidth_bytes_per_second * machine.fabric.efficiency
    assert library.pairwise is not None
    rate = port * library.pairwise.local_efficiency
    times = []
    for ranks in (2, 4, 8, 16, 32, 64):
        took = collective_cost(machine, library, "all_to_all", size, Placement.contiguous(ranks, 8))
        times.append(took.seconds)
        through_ports = size * (ranks - 1) / ranks / rate
        through_nics = size * (ranks - 8) / ranks / (port * library.pairwise.network_efficiency) if ranks > 8 else 0.0
        assert took.transfer_seconds == pytest.approx(max(through_ports, through_nics), rel=0.01)
        (carried,) = {load.bytes for load in took.loads if load.resource[0] == "port"}
        assert carried == pytest.approx(size * (ranks - 1) / ranks)
    assert times == sorted(times)


@pytest.mark.parametrize("name", sorted(MACHINES))
@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_a_shift_is_as_slow_as_its_slowest_message(name, nodes):
    """All send to the next one at once: between nodes through one NIC, which a message of two ranks has too."""
    devices = MACHINES[name].devices_per_node
    size = 2**28
    found = cost(name, "shift", size, Placement.contiguous(nodes * devices, devices))
    far = cost(name, "send", size, FAR).seconds
    if nodes > 1:
        assert found.seconds == pytest.approx(far, rel=0.02)
    elif devices > 1:
        assert found.seconds <= far
        assert found.seconds >= 0.98 * cost(name, "send", size, NEAR).seconds
    # a ring all-gather of as many bytes a hop uses all NICs of a node, and is faster or as fast
    ranks = nodes * devices
    whole = cost(name, "all_gather", size * ranks, Placement.contiguous(ranks, devices)).seconds
    assert nodes == 1 or whole <= 1.02 * (ranks - 1) * found.seconds


def test_what_there_is_no_algorithm_for_is_refused():
    with pytest.raises(DescriptionError, match="no algorithm for send over 3 ranks"):
        cost("frontier", "send", 8, Placement(((0, 1, 2),), (0,)))
    with pytest.raises(DescriptionError, match=r"machine\.host_link"):
        collective_cost(LAPTOP, LAPTOP.libraries[LAPTOP.library], "to_host", 8, Placement(((0,),), (0,)))
