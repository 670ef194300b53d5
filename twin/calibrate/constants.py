"""The constants of gloo that calibration finds: where fits begin, what they may find, and the library made of them."""

from __future__ import annotations

from collections.abc import Mapping

from twin.description.library import ByCollective, Direct, HostWork, Library, Protocol, Ring, SecondsByCollective
from twin.description.parameter import Counted, Parameter

EXCHANGES = "all-to-all within a host"
"""How the runtime that was measured exchanged: what posting costs is told from others by that."""
GLOO_THREADS = 2
PYTORCH = "PYTORCH"
PYTORCHS_THREADS = "torch/csrc/distributed/c10d/init.cpp: a process group of gloo has two for each network device"
START = {
    "base": 100e-6,
    "local_hop": 100e-6,
    "network_hop": 300e-6,
    "direct_base": 100e-6,
    "message": 30e-6,
    "network_message": 50e-6,
    "ring_efficiency": 0.9,
    "direct_efficiency": 0.85,
    "local_efficiency": 0.5,
    "core_call": 20e-6,
    "core_message": 20e-6,
    "exchange_call": 20e-6,
    "exchange_message": 20e-6,
    "local_rate": 1e9,
    "network_rate": 1e9,
    "reduce_rate": 3e9,
    "gather_effort": 1.0,
    "scatter_effort": 1.0,
}
BOUNDS = {
    "base": (1e-6, 1e-2),
    "local_hop": (1e-6, 1e-2),
    "network_hop": (1e-6, 1e-2),
    "direct_base": (1e-6, 1e-2),
    "message": (1e-7, 1e-2),
    "network_message": (1e-7, 1e-2),
    "ring_efficiency": (0.2, 1.0),
    "direct_efficiency": (0.2, 1.0),
    "local_efficiency": (0.05, 1.0),
    "core_call": (1e-7, 1e-2),
    "core_message": (1e-7, 1e-2),
    "exchange_call": (1e-7, 1e-2),
    "exchange_message": (1e-7, 1e-2),
    "local_rate": (5e7, 1e11),
    "network_rate": (5e7, 1e11),
    "reduce_rate": (1e8, 1e11),
    "gather_effort": (0.3, 5.0),
    "scatter_effort": (0.3, 5.0),
}
CORE_CONSTANTS = (
    "core_call",
    "core_message",
    "exchange_call",
    "exchange_message",
    "local_rate",
    "network_rate",
    "reduce_rate",
    "gather_effort",
    "scatter_effort",
)
POSTED = ("exchange_call", "exchange_message")
"""What posting takes. Calls are told from messages by groups of different sizes; where one size alone was posted, or
none, posted messages are taken to cost what others do."""
NETWORK_CONSTANTS = ("network_hop", "network_message", "ring_efficiency", "direct_efficiency", "network_rate")


def library(values: Mapping[str, float], largest_bytes: float, *, cores: bool) -> Library:
    """Return a library with these constants; the source of each of its numbers is its name here."""

    def p(name: str) -> Parameter:
        return Parameter(values[name], "calibrated", name)

    def each(name: str) -> ByCollective:
        return ByCollective(all_gather=p(name), reduce_scatter=p(name), all_reduce=p(name))

    one, none = Parameter(1.0, "assumed", "fit"), Parameter(0.0, "assumed", "fit")
    protocol = Protocol(
        base_seconds=p("base"),
        ring_local_hop_seconds=p("local_hop"),
        ring_network_hop_seconds=p("network_hop"),
        tree_local_hop_seconds=p("local_hop"),
        tree_network_hop_seconds=p("network_hop"),
        local_share=one,
        network_share=one,
        tree_network_share=one,
    )
    step = SecondsByCollective(all_gather_seconds=none, reduce_scatter_seconds=none, all_reduce_seconds=none)
    ring = Ring(
        local_efficiency=each("local_efficiency"), network_efficiency=each("ring_efficiency"), network_step=step
    )
    direct = Direct(
        base_seconds=p("direct_base"),
        message_seconds=p("message"),
        network_message_seconds=p("network_message"),
        network_efficiency=each("direct_efficiency"),
        local_efficiency=each("local_efficiency"),
        largest_bytes=Parameter(largest_bytes, "measured", "fit"),
    )
    work = HostWork(
        call_seconds=p("core_call"),
        message_seconds=p("core_message"),
        exchange_call_seconds=p("exchange_call") if "exchange_call" in values else None,
        exchange_message_seconds=p("exchange_message") if "exchange_message" in values else None,
        threads=Counted(GLOO_THREADS, "datasheet", PYTORCH),
        local_bytes_per_second=p("local_rate"),
        network_bytes_per_second=p("network_rate"),
        reduce_bytes_per_second=p("reduce_rate"),
        effort=ByCollective(all_gather=p("gather_effort"), reduce_scatter=p("scatter_effort"), all_reduce=one),
    )
    return Library(
        name="fitted",
        title="fitted",
        sources={"fit": "fit"},
        protocols={"Simple": protocol},
        network_protocols=("Simple",),
        ring=ring,
        direct=direct,
        host_work=work if cores else None,
    )
