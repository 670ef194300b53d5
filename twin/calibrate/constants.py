"""The constants of gloo that calibration finds: where fits begin, what they may find, and the library made of them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from twin.description.library import ByCollective, Direct, HostWork, Library, Protocol, Ring, SecondsByCollective
from twin.description.parameter import Counted, Parameter

EXCHANGES = "all-to-all within a host"
"""How the runtime that was measured exchanged: what posting costs is told from others by that."""
GLOO_THREADS = 2
PYTORCH = "PYTORCH"
PYTORCHS_THREADS = "torch/csrc/distributed/c10d/init.cpp: a process group of gloo has two for each network device"


class Constant(NamedTuple):
    """One number that a fit finds."""

    start: float
    least: float
    most: float
    of_cores: bool = False
    """What collectives take of a core, by processor times; else times tell it."""
    of_network: bool = False
    """Told only by groups of several hosts."""


CONSTANTS = {
    "base": Constant(100e-6, 1e-6, 1e-2),
    "local_hop": Constant(100e-6, 1e-6, 1e-2),
    "network_hop": Constant(300e-6, 1e-6, 1e-2, of_network=True),
    "direct_base": Constant(100e-6, 1e-6, 1e-2),
    "message": Constant(30e-6, 1e-7, 1e-2),
    "network_message": Constant(50e-6, 1e-7, 1e-2, of_network=True),
    "ring_efficiency": Constant(0.9, 0.2, 1.0, of_network=True),
    "direct_efficiency": Constant(0.85, 0.2, 1.0, of_network=True),
    "local_efficiency": Constant(0.5, 0.05, 1.0),
    "core_call": Constant(20e-6, 1e-7, 1e-2, of_cores=True),
    "core_message": Constant(20e-6, 1e-7, 1e-2, of_cores=True),
    "exchange_call": Constant(20e-6, 1e-7, 1e-2, of_cores=True),
    "exchange_message": Constant(20e-6, 1e-7, 1e-2, of_cores=True),
    "local_rate": Constant(1e9, 5e7, 1e11, of_cores=True),
    "network_rate": Constant(1e9, 5e7, 1e11, of_cores=True, of_network=True),
    "reduce_rate": Constant(3e9, 1e8, 1e11, of_cores=True),
    "gather_effort": Constant(1.0, 0.3, 5.0, of_cores=True),
    "scatter_effort": Constant(1.0, 0.3, 5.0, of_cores=True),
}
START = {name: constant.start for name, constant in CONSTANTS.items()}
POSTED = ("exchange_call", "exchange_message")
"""What posting takes. Calls are told from messages by groups of different sizes; where one size alone was posted, or
none, posted messages are taken to cost what others do."""


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
