"""A measured machine as the YAML that `simulate` reads."""

from __future__ import annotations

from collections.abc import Mapping
from copy import deepcopy
from dataclasses import dataclass
from typing import Any

import yaml

from twin.calibrate import compute, gpu, network
from twin.calibrate.constants import PYTORCH, PYTORCHS_THREADS, START
from twin.calibrate.solve import Fitted, Quality
from twin.description.calibrated import check_alone
from twin.description.device import Device
from twin.description.device_names import alike, words
from twin.description.load import load_device, load_machine, names
from twin.description.machine import Machine
from twin.description.problems import fail
from twin.description.spec import Spec
from twin.description.units import SUFFIXES, format_si

SCHEMA = 2
SOURCE = "MEASURED"
DIGITS = 6
ALIKE = 0.15
"""Relative difference of memory up to which a GPU is the described one."""


@dataclass(frozen=True)
class Numbers:
    """Writes parameters with their kind and source."""

    date: str

    def calibrated(self, fitted: Fitted, suffix: str = "") -> dict[str, Any]:
        """A fitted constant with its uncertainty."""
        error = f"±{fitted.error:.1%}" if fitted.error < 10 else "not bound by any row"
        told = f"{fitted.rows} rows, {error}" if fitted.rows > 1 else "one value"
        return self._write(fitted.value, suffix, "calibrated", f"{self.date}, {told}")

    def plain(self, fitted: Fitted) -> dict[str, Any]:
        """A fitted constant in SI units without a name that would tell them."""
        return {**self.calibrated(fitted), "value": float(f"{fitted.value:.{DIGITS}g}")}

    def lengthening(self, fitted: Fitted) -> dict[str, Any]:
        """Return how much longer something takes beside something else, if that was measured."""
        return self.calibrated(fitted) if fitted.rows else self.assumed(0.0, "", "nothing ran beside another")

    def measured(self, value: float, suffix: str, what: str) -> dict[str, Any]:
        """A number read off a measurement."""
        return self._write(value, suffix, "measured", what)

    def assumed(self, value: float, suffix: str, why: str) -> dict[str, Any]:
        """A number that nothing measured tells."""
        return self._write(value, suffix, "assumed", why)

    def _write(self, value: float, suffix: str, kind: str, what: str) -> dict[str, Any]:
        unit = SUFFIXES[suffix].si if suffix else ""
        shown: float | str = format_si(value, unit, digits=DIGITS) if unit else float(f"{value:.{DIGITS}g}")
        return {"value": shown, "kind": kind, "source": f"{SOURCE}: {what}"}


def machine_from(data: Mapping[str, Any]) -> str:
    """Return the machine file for what `fourfold calibrate` measured.

    Raises DescriptionError if the data are of another schema or lack what a machine needs.
    """
    if data.get("schema") != SCHEMA:
        raise fail(
            "schema",
            f"measurements of schema {SCHEMA} are read here; measure again with fourfold calibrate",
            data.get("schema"),
        )
    for section in ("gemm", "kernels", "attention", "host", "sharing"):
        if not data.get(section):
            raise fail(section, "has no measurements; measure again")
    check_alone(str(data["device_type"]), int(data["ranks"]))
    write = Numbers(str(data["date"])[:10])
    shared = compute.sharing(data)
    raw, quality = _device(data, write)
    ranks, per_node = int(data["ranks"]), int(data["ranks_per_host"])
    machine: dict[str, Any] = {
        "schema": 1,
        "name": data["name"],
        "title": f"{data['name']}: {ranks} ranks on {data['cpu'] if data['device_type'] == 'cpu' else data['device']}",
        "sources": {SOURCE: f"{data['name']}-measurements.json, fourfold calibrate, {data['date']}"},
        "nodes": write.measured(-(-ranks // per_node), "", "hosts"),
        "devices_per_node": write.measured(per_node, "", "ranks of a host"),
        "device": raw,
    }
    for key in ("nodes", "devices_per_node"):
        machine[key]["value"] = int(machine[key]["value"])
    machine |= _links(data, shared, write, per_node)
    machine |= _beyond(data, write, alone=per_node == 1)
    if shared.cores is not None:
        machine["cores"] = {
            "count": write.measured(shared.cores, "", "the most that any set of ranks at work kept busy, by a product"),
            "shared_by": shared.shared_by,
        }
        if shared.turn is not None:
            machine["cores"]["turn"] = write.measured(shared.turn, "_seconds", "a rank's, while all look at the clock")
    machine |= _library(data, machine, write, quality)
    machine["caveat"] = "Fits to the microbenchmarks: " + "; ".join(
        f"{name} {value}" for name, value in quality.items() if value.rows
    )
    text = yaml.safe_dump(machine, sort_keys=False, allow_unicode=True, width=110)
    return f"# Written by `fourfold calibrate` from {data['name']}-measurements.json.\n{text}"


def _base_device(data: Mapping[str, Any]) -> Device:
    if data["device_type"] == "cpu":
        return load_device("cpu-core")
    shown, memory = str(data["device"]), float(data["device_memory_bytes"])
    known = {name: load_device(name) for name in names("devices")}
    fitting = [d for name, d in known.items() if alike(name, shown) and abs(d.memory_bytes / memory - 1) < ALIKE]
    if not fitting:
        raise fail(
            "device",
            "is none that is described here, and what microbenchmarks do not tell (memory, power, "
            f"tiles) is taken from its description; known are {', '.join(known)}: add one to topologies/devices",
            data["device"],
        )
    # of those whose name has most in common the one whose memory is nearest
    return min(fitting, key=lambda d: (-len(words(d.name) & words(shown)), abs(d.memory_bytes / memory - 1)))


def _device(data: Mapping[str, Any], write: Numbers) -> tuple[dict[str, Any], dict[str, Quality]]:
    base = _base_device(data)
    usual = base.usual_attention
    if base.type == "gpu":
        fitted, products, of_products = gpu.fit_products(base, data)
        attention, usual, of_attention = gpu.fit_kernels_of_attention(fitted, data)
        core = None
    else:
        found, of_products = compute.fit_products(data)
        fitted, products, core = compute.with_peak(base, found.peak_flops_per_second), {}, _core(found, write)
        one, of_attention = compute.fit_attention(fitted, data)
        attention = {usual: one}
    kernels, of_kernels = compute.fit_kernels(data)
    raw = _as_written(base)
    raw["usual_attention"] = usual
    raw["name"], raw["title"] = f"{data['name']}-device", str(data["device"])
    raw["sources"] = {**raw["sources"], SOURCE: f"fourfold calibrate, {data['date']}"}
    if base.type == "cpu":
        raw["peak"] = {
            **write.measured(fitted.peak_flops_per_second, "_flops_per_second", compute.PEAK),
            "kind": "calibrated",
        }
        share = data["device_memory_bytes"] / data["ranks"]
        raw["memory"] = write.measured(share, "_bytes", "the host's memory, shared by its ranks")
        raw["gemm"]["sustained_share"] = write.measured(1.0, "", compute.PEAK)
        raw["gemm"]["core"] = core
    else:
        raw["memory"] = write.measured(data["device_memory_bytes"], "_bytes", "as its driver says it")
    host = compute.host_seconds(data)
    raw["host"] = write.calibrated(host["host_seconds"], "_seconds")
    if "most_seconds" in host:
        raw["cold_host"] = {
            "most": write.calibrated(host["most_seconds"], "_seconds"),
            "half": write.calibrated(host["half_bytes"], "_bytes"),
        }
    issue = {name: write.calibrated(found, "_seconds") for name, found in compute.issue_seconds(data).items()}
    if issue:
        raw["collective_host"], raw["issue"] = issue.pop(compute.OWN), issue
    for name, constant in products.items():
        key, suffix = _key(name)
        raw["gemm"][key] = write.calibrated(constant, suffix)
    for kernel, constants in attention.items():
        raw["attention"].setdefault(kernel, deepcopy(raw["attention"][base.usual_attention]))  # no YAML aliases
        raw["attention"][kernel] |= {name: write.calibrated(constant) for name, constant in constants.items()}
    raw["kernels"] = {
        kind: {"start": write.calibrated(start, "_seconds"), "rate": write.calibrated(rate, "_bytes_per_second")}
        for kind, (start, rate) in kernels.items()
    }
    return raw, {"products": of_products, "attention": of_attention, "memory-bound work": of_kernels}


def _core(found: compute.FittedProducts, write: Numbers) -> dict[str, Any]:
    """Write products of a CPU core."""
    constants = found.constants
    libraries: dict[str, dict[str, Any]] = {
        compute.PYTORCH: {
            "call": write.calibrated(constants["call"], "_seconds"),
            "peak_share": write.calibrated(found.share("rate")),
        }
    }
    if found.second is not None:
        libraries[compute.ONEDNN] = {
            "least_multiplications": found.second[0],
            "least_size": found.second[1],
            "call": write.calibrated(constants["large_call"], "_seconds"),
            "peak_share": write.calibrated(found.share("large_rate")),
            "columns": write.calibrated(constants["columns"], "_bytes_per_second"),
        }
    return {"operands": write.calibrated(constants["operands"], "_bytes_per_second"), "libraries": libraries}


def _links(data: Mapping[str, Any], shared: compute.Sharing, write: Numbers, per_node: int) -> dict[str, Any]:
    inside, outside = (network.wire(data, same_host=same) for same in (True, False))
    compute_slower, collective_slower = network.beside_compute(data, shared)
    none = "no message between hosts was measured" if outside is None else "one switch"
    lone = "one rank of a host" if inside is None else ""
    return {
        "fabric": {
            "port_bandwidth": write.calibrated(inside.rate, "_bytes_per_second")
            if inside
            else write.assumed(1e9, "_bytes_per_second", lone),
            "efficiency": write.assumed(1.0, "", "part of the measured rate"),
            "latency": write.calibrated(inside.start, "_seconds") if inside else write.assumed(1e-5, "_seconds", lone),
        },
        "nic": {
            "devices": [list(range(per_node))],
            "bandwidth": write.calibrated(outside.rate, "_bytes_per_second")
            if outside
            else write.assumed(1e9, "_bytes_per_second", none),
            "efficiency": write.assumed(1.0, "", "part of the measured rate"),
            "latency": write.calibrated(outside.start, "_seconds")
            if outside
            else write.assumed(1e-4, "_seconds", none),
        },
        "network": {
            "nodes_per_switch": {**write.assumed(1, "", none), "value": max(1, data["ranks"] // per_node)},
            "switch_latency": write.assumed(0.0, "_seconds", none),
        },
        "variation": {
            "device_speed_spread": write.assumed(0.0, "", "every rank was at work in each measurement"),
            "compute_slowdown": write.lengthening(compute_slower)
            if shared.cores is None
            else write.assumed(0.0, "", "collectives take their part of the shared cores"),
            "collective_slowdown": write.lengthening(collective_slower),
            "network_noise": write.assumed(0.0, "", "repeats differ; medians are fitted"),
        },
    }


def _beyond(data: Mapping[str, Any], write: Numbers, *, alone: bool) -> dict[str, Any]:
    """Describe a GPU's link to its host where it was measured; and the host, if one rank measured all of it.

    With several ranks on a host its first had only its own cores to measure with.
    """
    link, rates = gpu.host_link(data), gpu.host_rates(data)
    if not link or not rates:
        return {}
    what = {
        "memory_bandwidth": "the fastest of sums and updates by all threads, reads and writes together",
        "core_bandwidth": "sums by one thread, reads and writes together",
        "converting_down": "copies of 16-bit numbers from the device that become fp32 on the host",
        "converting_up": "copies of fp32 numbers of the host that become 16 bits wide on the device",
    }
    host = {name: write.measured(rates[name], "_bytes_per_second", said) for name, said in what.items()}
    host["memory"] = write.measured(data["host_memory_bytes"], "_bytes", "the host's")
    host["memory_share"] = write.assumed(1.0, "", "part of the measured rate")
    host["cores"] = {**write.measured(data["cores"], "", "cores that the first rank may use"), "value": data["cores"]}
    ways = {"host_link": {_key(name)[0]: write.calibrated(one, _key(name)[1]) for name, one in link.items()}}
    return {**ways, "host": host} if alone else ways


def _library(
    data: Mapping[str, Any], raw: dict[str, Any], write: Numbers, quality: dict[str, Quality]
) -> dict[str, Any]:
    if data["backend"] != "gloo" or not data["collectives"]:
        amd = str(data["device"]).startswith("AMD")
        known = "gloo" if data["device_type"] != "cuda" else "rccl" if amd else "nccl"
        return {"library": known, "libraries": {known: known}}
    base = load_machine("laptop")
    described = Machine.model_validate({**raw, "library": "gloo", "libraries": {"gloo": base.libraries["gloo"]}})
    largest = float(data["exchange_bytes"])
    fitted, made, quality["collectives"] = network.fit_library(data, described, largest)
    written = _as_written(made)
    written |= {
        "name": f"{data['name']}-gloo",
        "title": "gloo, as measured",
        "sources": {SOURCE: f"fourfold calibrate, {data['date']}"},
    }
    if made.host_work is not None:
        written["sources"][PYTORCH] = PYTORCHS_THREADS
    return {"library": "gloo", "libraries": {"gloo": _sourced(written, fitted, write)}}


def _sourced(node: Any, fitted: Mapping[str, Fitted], write: Numbers) -> Any:
    """Say of every number in a written library where it comes from."""
    if isinstance(node, dict) and set(node) == {"value", "kind", "source"}:
        constant = fitted.get(node["source"])
        if constant is not None:
            return write.plain(constant)
        if node["source"] in START:
            return write.assumed(node["value"], "", "no measurement tells; where the fit would have begun")
        if node["source"] == PYTORCH:
            return node
        return {**node, "source": f"{SOURCE}: not used, or as the runtime has it"}
    if isinstance(node, dict):
        return {key: _sourced(value, fitted, write) for key, value in node.items() if value is not None}
    return node


def _as_written(spec: Spec) -> dict[str, Any]:
    """Return a description in the keys of its YAML."""
    found: dict[str, Any] = spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def _key(name: str) -> tuple[str, str]:
    for suffix in SUFFIXES:
        if name.endswith(suffix):
            return name[: -len(suffix)], suffix
    return name, ""
