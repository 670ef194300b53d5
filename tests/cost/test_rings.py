"""Channels inside a node: packings of small graphs that can be checked by hand."""

import pytest

from twin.cost.rings import channels, link_widths, pack, route
from twin.description.load import load_machine

FRONTIER = load_machine("frontier")
PERLMUTTER = load_machine("perlmutter")


def test_full_mesh_uses_every_link():
    # K4: three undirected Hamiltonian cycles, both ways round; each link in two of six rings.
    found = channels(PERLMUTTER, (0, 1, 2, 3))
    assert found.bytes_per_second == pytest.approx(300e9)
    assert len(found.use) == 12
    assert {share for _, share in found.use} == {1 / 3}


@pytest.mark.parametrize(
    ("devices", "gigabytes_per_second"),
    [
        ((0, 1), 200),  # one package: four links
        ((0, 2), 50),  # one link
        ((0, 6), 100),  # two links
        ((0, 1, 2, 3), 100),  # a ring and its reverse, closed over single links
        ((0, 2, 4, 6), 100),
        ((0, 4), 50),  # not adjacent: routed through another device
        (tuple(range(8)), 200),  # the library's four rings, each bound by a single link
    ],
)
def test_frontier_groups(devices, gigabytes_per_second):
    assert channels(FRONTIER, devices).bytes_per_second == pytest.approx(gigabytes_per_second * 1e9)


def test_no_link_is_overfull():
    widths = link_widths(FRONTIER)
    for devices in [(0, 1, 2), (0, 3, 5), (0, 1, 2, 3, 4, 5), (1, 2, 4, 7), tuple(range(8)), tuple(range(7))]:
        found = channels(FRONTIER, devices)
        for edge, share in found.use:
            assert share * found.bytes_per_second <= widths[edge] * (1 + 1e-9)


def test_one_member_needs_no_link():
    assert channels(FRONTIER, (3,)).bytes_per_second == float("inf")


def test_switched_node_gives_every_device_its_port():
    found = channels(load_machine("dgx-a100"), (0, 3, 5))
    assert found.switched
    assert found.bytes_per_second == 300e9
    assert [edge for edge, _ in found.use] == [(0, 0), (3, 3), (5, 5)]


def test_routes_spread_the_two_directions():
    widths = link_widths(FRONTIER)
    assert route(widths, 0, 4) == ((0, 6), (6, 4))
    assert route(widths, 4, 0) == ((4, 2), (2, 0))


def test_unconnected_devices_are_refused():
    with pytest.raises(ValueError, match="not connected"):
        pack((((0, 1), 1.0), ((1, 0), 1.0)), (0, 2), ())
