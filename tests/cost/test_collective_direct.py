"""Direct exchanges against closed forms worked out by hand, and against what the runtime does."""

from __future__ import annotations

from typing import Any

import pytest

from twin.cost.collective import collective_cost
from twin.cost.placement import Placement
from twin.description.library import ByCollective, CollectiveKind
from twin.description.machine import Machine
from twin.description.parameter import Parameter
from twin.strategies import load_job

LARGEST = 256 * 1024
BASE, MESSAGE, FAR_MESSAGE, HOP, FAR_HOP = 1e-3, 1e-4, 3e-4, 5e-6, 50e-6
PORT, NIC = 1e9, 1e8
CORE_LOCAL, CORE_FAR, CORE_ADD, CORE_CALL, CORE_MESSAGE = 2e9, 1e9, 4e9, 1e-5, 2e-6


def number(value: float | str) -> dict[str, Any]:
    return {"value": value, "kind": "assumed", "source": "test"}


def of_each(value: float) -> dict[str, Any]:
    return {kind: number(value) for kind in ("all_gather", "reduce_scatter", "all_reduce")}


def machine(*, cores: float | None = None, per_node: int = 2) -> Machine:
    """Nodes of two ranks, or more, round numbers."""
    raw: dict[str, Any] = {
        "extends": "laptop",
        "devices_per_node": per_node,
        "nodes": 4,
        "fabric": {"port_bandwidth": number(PORT), "efficiency": number(1), "latency": number(HOP)},
        "nic": {
            "devices": [list(range(per_node))],
            "bandwidth": number(NIC),
            "efficiency": number(1),
            "latency": number(FAR_HOP),
        },
        "libraries": {
            "gloo": {
                "direct": {
                    "base": number(BASE),
                    "message": number(MESSAGE),
                    "network_message": number(FAR_MESSAGE),
                    "network_efficiency": of_each(1),
                    "local_efficiency": of_each(1),
                    "largest": number(LARGEST),
                },
                "host_work": {
                    "call": number(CORE_CALL),
                    "message": number(CORE_MESSAGE),
                    "local": number(CORE_LOCAL),
                    "network": number(CORE_FAR),
                    "reduce": number(CORE_ADD),
                },
            }
        },
    }
    if cores is not None:
        raw["cores"] = {"count": number(cores), "shared_by": "machine"}
    job = {"model": "gpt-5b", "machine": raw, "ranks": 1, "batch": {"sequences": 1}}
    return load_job(job).machine


def cost(kind: Any, bytes_: float, ranks: int, made: Machine) -> Any:
    return collective_cost(made, made.libraries["gloo"], kind, bytes_, Placement.contiguous(ranks, 2))


def test_two_members_of_a_node_swap_halves():
    found = cost("reduce_scatter", 8e6, 2, machine())
    assert found.algorithm == "direct"
    assert found.seconds == pytest.approx(BASE + HOP + MESSAGE + 4e6 / PORT)


def test_what_leaves_a_node_is_what_its_members_send_to_all_others():
    # 8 ranks on 4 nodes: each of the 2 members sends 6 parts of 1 MB out
    found = cost("reduce_scatter", 8e6, 8, machine())
    expected = BASE + FAR_HOP + MESSAGE + 6 * FAR_MESSAGE + 2 * 6 * 1e6 / NIC
    assert found.seconds == pytest.approx(expected, rel=2e-3)  # the network's switches add 1 us
    nics = [load.bytes for load in found.loads if load.resource[0] == "nic"]
    assert nics == pytest.approx([12e6] * 4)


def test_all_reduces_send_whole_buffers():
    found = cost("all_reduce", 1e5, 4, machine())
    assert found.algorithm == "direct"
    assert [u.bytes for u in found.loads if u.resource[0] == "nic"] == pytest.approx([2 * 2 * 1e5] * 2)


@pytest.mark.parametrize(
    ("kind", "bytes_", "ranks", "algorithm"),
    [
        ("all_reduce", LARGEST, 3, "direct"),
        ("all_reduce", LARGEST + 4, 3, "ring"),
        ("all_reduce", 4, 2, "ring"),
        ("all_gather", LARGEST, 3, "direct"),
        ("all_gather", 1e9, 8, "ring"),
        ("all_gather", LARGEST + 4, 3, "ring"),
        ("all_gather", 1e9, 2, "direct"),
        ("reduce_scatter", 1e9, 8, "direct"),
        ("broadcast", 4, 8, "ring"),
    ],
)
def test_when_the_runtime_exchanges(kind, bytes_, ranks, algorithm):
    assert cost(kind, bytes_, ranks, machine()).algorithm == algorithm


def test_within_a_node_every_all_gather_is_an_exchange():
    made = machine(per_node=3)
    found = collective_cost(made, made.libraries["gloo"], "all_gather", 9e9, Placement.contiguous(3, 3))
    assert found.algorithm == "direct"
    assert found.seconds == pytest.approx(BASE + HOP + 2 * MESSAGE + 6e9 / PORT)


def test_the_packaged_limit_is_the_runtimes():
    from runtime.parallel.collectives import EXCHANGE_BYTES

    packaged = load_job({"model": "gpt-5b", "machine": "laptop", "ranks": 1, "batch": {"sequences": 1}})
    direct = packaged.machine.libraries["gloo"].direct
    assert direct is not None
    assert direct.largest_bytes == EXCHANGE_BYTES == LARGEST


def test_moving_and_adding_cost_the_cores():
    found = cost("reduce_scatter", 8e6, 8, machine(cores=2))
    each = 1e6 / CORE_LOCAL + 6e6 / CORE_FAR + 7e6 / CORE_ADD + CORE_CALL + 7 * CORE_MESSAGE
    assert found.core_seconds == pytest.approx(each)
    cores = [load.bytes for load in found.loads if load.resource[0] == "cores"]
    assert sum(cores) == pytest.approx(8 * each)


def test_what_a_byte_costs_a_core_differs_by_collective():
    made = machine(cores=2)
    library = made.libraries["gloo"]
    assert library.host_work is not None
    effort = ByCollective(all_gather=Parameter(1.5), reduce_scatter=Parameter(2.0), all_reduce=Parameter(1.0))
    work = library.host_work.model_copy(update={"effort": effort})
    harder = library.model_copy(update={"host_work": work})
    placement = Placement.contiguous(8, 2)

    def more(kind: CollectiveKind) -> float:
        plain, other = (collective_cost(made, one, kind, 8e6, placement) for one in (library, harder))
        return other.core_seconds - plain.core_seconds

    # a member sends its neighbour a part of 1 MB and other nodes six; of a ring, one member of two sends out
    assert more("reduce_scatter") == pytest.approx(1e6 / CORE_LOCAL + 6e6 / CORE_FAR)
    assert more("all_gather") == pytest.approx(0.5 * 7e6 * (0.5 / CORE_LOCAL + 0.5 / CORE_FAR))
    assert more("all_reduce") == 0


def test_cores_that_are_too_few_make_it_longer():
    slow = cost("reduce_scatter", 8e6, 8, machine(cores=0.1))
    each = slow.core_seconds
    assert slow.transfer_seconds == pytest.approx(8 * each / 0.1)
