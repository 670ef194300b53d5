"""Parameters moved one at a time: which of a machine's numbers decides the step.

By default every parameter of the machine that can change the step is moved, those of the library
that the job uses included; the bandwidths of the links inside a node are moved together. Ranking
tables, counts and numbers that are 0 stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from twin.description.job import Job
from twin.description.parameter import Kind, Parameter
from twin.description.problems import did_you_mean, fail
from twin.description.spec import Spec
from twin.description.units import format_si, split_name

SOURCE = "sensitivity study"
LINKS = "machine.fabric.links"
LEFT_OUT = {"machine.ranking", "machine.libraries"}
"""Parts of a machine that are not walked through: the job's library is taken by itself."""
STILL = ("machine.reliability.", "machine.device.idle", "machine.device.busy")
"""Keys that decide no step, but long runs and energy: moved only if they are named."""
WATTS = ("machine.device.power.",)
"""Keys that decide the clock that a power cap leaves: for a job without one moved only if they are named."""
DRAWN = ("machine.variation.compute_jitter", "machine.variation.network_noise")
"""Keys that only the all-ranks engine uses: with another one moved only if they are named."""
TILES = tuple(
    f"machine.device.gemm.{name}"
    for name in (
        "tile",
        "main_loop_share",
        "feed_bytes_per_flop",
        "write_bytes_per_flop",
        "wave_smoothing",
        "launch",
        "split",
        "cache",
        "memory_share",
        "sustained_share",
    )
)
"""Keys of products in tiles: for a device whose products are a core's (`gemm.core`) moved only if they are named."""
BEYOND = ("machine.host_link.", "machine.host.", "machine.disk.")
"""Keys of what lies behind the devices: for a job that puts nothing there moved only if they are named."""


@dataclass(frozen=True)
class Side:
    """One value of a parameter."""

    name: str
    """low or high: which end of the range, not which result."""
    shown: str
    settings: dict[str, Any]
    """Keys of the job and their values."""


@dataclass(frozen=True)
class Lever:
    """A parameter with the values that it is moved to."""

    key: str
    sides: tuple[Side, ...]


def levers(
    job: Job,
    wanted: Sequence[str] | Mapping[str, Sequence[Any]] | None,
    change: float | Mapping[Kind, float],
    *,
    draws: bool = False,
) -> list[Lever]:
    """Return what is moved, and to which values.

    `wanted` names keys, or gives two values for each; `change` is relative, or one for each kind
    of parameter (kinds that it does not name stay as they are). `draws`: the engine is the one that
    uses jitter and noise.
    """
    if isinstance(wanted, Mapping):
        return [_given(key, values) for key, values in wanted.items()]
    known = {**dict(parameters_of(job)), LINKS: None}
    if not job.machine.fabric.links:
        del known[LINKS]
    for key in wanted or []:
        if key not in known:
            raise fail(
                "parameters",
                f"is no parameter of {job.machine.name}; {did_you_mean(key, known)}, "
                "or give two values: {KEY: [low, high]}",
                key,
            )
    found = []
    left_out: tuple[str, ...] = STILL if draws else STILL + DRAWN
    if getattr(job, "offload", None) is None and getattr(job, "recompute_inputs", "device") == "device":
        left_out += BEYOND
    if job.power_cap_watts is None:
        left_out += WATTS
    if job.machine.device.gemm.core is not None:
        left_out += TILES
    for key in wanted or [key for key in known if not key.startswith(left_out)]:
        lever = _links(job, change) if key == LINKS else _relative(key, known[key], change)
        if lever.sides:
            found.append(lever)
    return found


def parameters_of(job: Job) -> Iterator[tuple[str, tuple[str, Parameter]]]:
    """Yield key, field name and value of every parameter of the job's machine."""
    machine = job.machine
    yield from _walk(machine, "machine")
    library = job.library or machine.library
    yield from _walk(machine.libraries[library], f"machine.libraries.{library}")


def _walk(part: Spec, prefix: str) -> Iterator[tuple[str, tuple[str, Parameter]]]:
    for name, field in type(part).model_fields.items():
        key, value = f"{prefix}.{field.alias or name}", getattr(part, name)
        if key in LEFT_OUT:
            continue
        if isinstance(value, Parameter):
            yield key, (name, value)
        elif isinstance(value, Spec):
            yield from _walk(value, key)
        elif isinstance(value, Mapping):
            for inner, one in value.items():
                if isinstance(one, Parameter):
                    yield f"{key}.{inner}", (name, one)
                elif isinstance(one, Spec):
                    yield from _walk(one, f"{key}.{inner}")


def _given(key: str, values: Sequence[Any]) -> Lever:
    if len(values) != 2:
        raise fail(f"parameters.{key}", "expected two values: [low, high]", list(values))
    low, high = values
    return Lever(key, (Side("low", str(low), {key: low}), Side("high", str(high), {key: high})))


def _relative(key: str, named: tuple[str, Parameter] | None, change: float | Mapping[Kind, float]) -> Lever:
    assert named is not None
    name, value = named
    by = change if isinstance(change, float) else change.get(value.kind, 0.0)
    unit = dimension.si if (dimension := split_name(name)[1]) else ""
    sides = []
    for side, factor in (("low", 1 - by), ("high", 1 + by)):
        moved = _within(name, float(value) * factor)
        if moved != value:
            setting = {"value": moved, "kind": "assumed", "source": SOURCE}
            shown = format_si(moved, unit).replace(" us", " µs") if unit else f"{moved:.4g}"
            sides.append(Side(side, shown, {key: setting}))
    return Lever(key, tuple(sides))


def _within(name: str, value: float) -> float:
    """Keep shares at most 1 and spreads below 1."""
    if name.endswith(("efficiency", "_share", "_shares", "_smoothing", "all_gather", "reduce_scatter", "all_reduce")):
        return min(value, 1.0)
    return min(value, 0.999) if name.endswith("_spread") else value


def _links(job: Job, change: float | Mapping[Kind, float]) -> Lever:
    links = job.machine.fabric.links
    kind = links[0].bandwidth_bytes_per_second.kind
    by = change if isinstance(change, float) else change.get(kind, 0.0)
    sides = []
    for side, factor in (("low", 1 - by), ("high", 1 + by)):
        moved = [
            {
                "devices": list(link.devices),
                "bandwidth": {"value": link.bandwidth_bytes_per_second * factor, "kind": "assumed", "source": SOURCE},
            }
            for link in links
        ]
        if by:
            sides.append(Side(side, f"all × {factor:g}", {LINKS: moved}))
    return Lever(LINKS, tuple(sides))
