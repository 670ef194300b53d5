"""Messages of several pairs through one NIC: those that go the same way share its rate, those that cross do not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from twin.description.degraded import Degraded
from twin.description.library import CollectiveKind
from twin.description.load import load_machine
from twin.engine.layout import Layout, groups_of
from twin.engine.pricing import price
from twin.engine.sharing import Flow, assign_speeds
from twin.engine.simulate import transfer_of
from twin.engine.symmetry import unfolded
from twin.schedule.communicator import Communicator

SIZE = 2.0**28


def took(name: str, pairs: int, kinds: tuple[CollectiveKind, ...], degraded: Sequence[Degraded] = ()) -> list[float]:
    """Seconds of messages between the first devices of two nodes, pair by pair; all that `kinds` says at once."""
    devices = load_machine(name).devices_per_node
    members = [(device, devices + device) for device in range(pairs)]
    return together(name, [(kind, members) for kind in kinds], degraded)


def together(
    name: str, messages: Sequence[tuple[CollectiveKind, Sequence[tuple[int, int]]]], degraded: Sequence[Degraded] = ()
) -> list[float]:
    """Seconds of messages that are sent at once: `send` from the first of each pair of ranks, `receive` to it."""
    machine = load_machine(name)
    ranks = 3 * machine.devices_per_node
    layout = Layout.contiguous(machine, ranks)
    found = [Communicator.of(f"pipeline_{number}", np.array(pairs)) for number, (_, pairs) in enumerate(messages)]
    kinds = [kind for kind, _ in messages]
    named = {each.name: each for each in found}
    groups = {each.partition: groups_of(each.members, each.partition, layout) for each in found}
    library = machine.libraries[machine.library]
    calls = [(each.name, kind, SIZE) for kind, each in zip(kinds, found, strict=True)]
    prices = price(machine, library, calls, named, groups, layout, degraded)
    partition = unfolded(groups, prices.edges, ranks, prices.capacity)
    transfers = [
        transfer_of(prices, partition, number, named[name].partition, group)
        for number, (name, _, _) in enumerate(calls)
        for group in partition.groups[named[name].partition]
    ]
    flows = [Flow(t.demands, t.peak_rate) for t in transfers]
    assign_speeds(flows, partition.capacity)
    return [t.startup_seconds + t.transfer_seconds / f.speed for t, f in zip(transfers, flows, strict=True)]


def alone(name: str) -> float:
    return took(name, 1, ("send",))[0]


@pytest.mark.parametrize("name", ["polaris", "frontier"])
def test_two_devices_of_a_nic_that_send_at_once_share_it(name: str) -> None:
    machine = load_machine(name)
    wire = 2 * SIZE / machine.nic.rate_bytes_per_second
    for kind in ("send", "receive"):
        found = took(name, 2, (kind,))
        assert found == pytest.approx([wire] * 2, rel=0.01)
        assert found[0] > 1.5 * alone(name)


@pytest.mark.parametrize("name", ["polaris", "frontier"])
def test_messages_that_cross_do_not_hold_each_other_up(name: str) -> None:
    assert took(name, 1, ("send", "receive")) == pytest.approx([alone(name)] * 2)
    one_way = took(name, 2, ("send",))[0]
    assert took(name, 2, ("send", "receive")) == pytest.approx([one_way] * 4)


@pytest.mark.parametrize("name", ["perlmutter", "dgx-h100"])
def test_devices_with_nics_of_their_own_share_nothing(name: str) -> None:
    assert took(name, 4, ("send",)) == pytest.approx([alone(name)] * 4)


@pytest.mark.parametrize("name", ["perlmutter", "frontier", "dgx-h100"])
def test_what_a_stage_sends_on_and_back_at_once_leaves_by_one_nic(name: str) -> None:
    """The middle one of three; what it gets from both sides comes in by one."""
    machine = load_machine(name)
    n = machine.devices_per_node
    wire = max(alone(name), 2 * SIZE / machine.nic.rate_bytes_per_second)
    for back, on in (("receive", "send"), ("send", "receive")):
        found = together(name, [(back, [(0, n)]), (on, [(n, 2 * n)])])
        assert found == pytest.approx([wire] * 2, rel=0.01)


@pytest.mark.parametrize("name", ["frontier", "perlmutter", "dgx-h100", "alps"])
def test_a_nic_that_has_lost_nothing_is_a_sound_one(name: str) -> None:
    for kinds in (("send",), ("send", "receive")):
        assert took(name, 2, kinds, [Degraded(node=0, nic=0, rate=1.0)]) == took(name, 2, kinds)


@pytest.mark.parametrize("kind", ["send", "receive"])
@pytest.mark.parametrize("name", ["frontier", "perlmutter", "dgx-h100"])
@pytest.mark.parametrize("node", [0, 1])
def test_a_tenth_of_a_nic_takes_ten_times_as_long_for_the_bytes(kind: CollectiveKind, name: str, node: int) -> None:
    """Of either end, and though the other direction is idle."""
    machine = load_machine(name)
    slow = took(name, 1, (kind,), [Degraded(node=node, nic=0, rate=0.1)])
    left = machine.nic.left_with_one_slow(0.1) * machine.nic.rate_bytes_per_second
    assert slow == pytest.approx([SIZE / left], rel=0.01)
