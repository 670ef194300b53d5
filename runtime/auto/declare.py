"""What a user declares inside `auto_parallelize`, and which of its linears can be cut.

PyTorch's global registration hooks tell which modules get parameters or submodules while the
block runs. What they cannot tell is looked up at the end: names, copies that were made without
registering anything, and weights that two modules share.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count

import torch
from torch import nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)

from runtime.auto.linear import ParallelLinear
from runtime.weights.shards import ParameterSpec
from twin.description.problems import fail
from twin.strategies.four_d.grid import Axis, Grid

ORIENTATIONS: tuple[tuple[Axis, Axis], tuple[Axis, Axis]] = (("y", "x"), ("x", "y"))
"""Output and contraction axis: normal, transposed."""


class Watch:
    """Modules seen so far, in order, as long as someone else holds them."""

    def __init__(self) -> None:
        self._seen: weakref.WeakKeyDictionary[nn.Module, None] = weakref.WeakKeyDictionary()

    def see(self, module: nn.Module, _name: str, part: object) -> None:
        """Take note of a module and of the part that is registered in it."""
        self._seen[module] = None
        if isinstance(part, nn.Module):
            self._seen[part] = None

    def roots(self) -> list[nn.Module]:
        """Modules that are no part of another one."""
        gc.collect()  # what was thrown away counts on no rank, whenever the collector came by
        alive = list(self._seen)
        parts = {part for module in alive for part in module.modules() if part is not module}
        return [module for module in alive if module not in parts]


@contextmanager
def watching() -> Iterator[Watch]:
    """Watch what is declared inside."""
    watch = Watch()
    hooks = [
        register_module_parameter_registration_hook(watch.see),
        register_module_module_registration_hook(watch.see),
    ]
    try:
        yield watch
    finally:
        for hook in hooks:
            hook.remove()


@dataclass(frozen=True)
class CutPlan:
    """Which linears to cut, how, and why others stay serial."""

    cuts: Mapping[nn.Linear, ParameterSpec]
    serial: Mapping[str, list[str]]
    """Names of linears by the reason why they stay as they are."""

    @property
    def notes(self) -> list[str]:
        """One line for each reason."""
        return [
            f"{', '.join(names)} {'stays' if len(names) == 1 else 'stay'} serial: {reason}"
            for reason, names in self.serial.items()
        ]


@dataclass
class Declared:
    """All modules of some models, by name."""

    roots: list[nn.Module]
    names: dict[nn.Module, str] = field(init=False)

    def __post_init__(self) -> None:
        self.names = {}
        used: set[str] = set()
        for root in self.roots:
            own = unique(type(root).__name__, used)
            used.add(own)
            for path, module in root.named_modules():
                name = path if len(self.roots) == 1 else f"{own}.{path}".rstrip(".")
                self.names.setdefault(module, name or own)

    @cached_property
    def owners(self) -> dict[nn.Parameter, list[str]]:
        """Where each parameter is registered."""
        found: dict[nn.Parameter, list[str]] = {}
        for module, name in self.names.items():
            for own, parameter in module._parameters.items():
                if parameter is not None:
                    found.setdefault(parameter, []).append(f"{name}.{own}")
        return found

    def plan(self, grid: Grid) -> CutPlan:
        """Decide on every linear; raises DescriptionError for what can belong to no grid."""
        cuts: dict[nn.Linear, ParameterSpec] = {}
        serial: dict[str, list[str]] = {}
        for module, name in self.names.items():
            if isinstance(module, ParallelLinear):
                raise fail(name, "is parallel already; a layer belongs to one auto_parallelize block and one grid")
            if not isinstance(module, nn.Linear) or grid.x * grid.y * grid.z == 1:
                continue
            reason = self._obstacle(module, name)
            if reason is None:
                axes = orientation(module, grid, len(cuts))
                if axes is not None:
                    shape = (module.out_features, module.in_features)
                    cuts[module] = ParameterSpec(f"{name}.weight", shape, axes, cut="z", decay=True)
                    continue
                reason = (
                    f"{module.in_features} → {module.out_features} features do not divide by "
                    f"x = {grid.x} and y = {grid.y}, either way round"
                )
            serial.setdefault(reason, []).append(name)
        return CutPlan(cuts, serial)

    def _obstacle(self, linear: nn.Linear, name: str) -> str | None:
        """Say what other than its shape keeps a linear from being cut."""
        if type(linear) is not nn.Linear:
            return f"{type(linear).__name__} is a class of its own, not nn.Linear"
        weight = linear._parameters.get("weight")
        if weight is None or not weight.is_floating_point():
            return "its weight is computed from other parameters"
        if "forward" in vars(linear):
            return "its forward method was replaced"
        others = [owner for owner in self.owners[weight] if owner != f"{name}.weight"]
        return f"its weight is shared with {', '.join(others)}" if others else None

    @cached_property
    def parameters(self) -> list[tuple[str, nn.Parameter]]:
        """Every parameter once, with the first of its names."""
        return [(names[0], parameter) for parameter, names in self.owners.items()]

    def tensors(self) -> list[tuple[str, torch.Tensor]]:
        """Every parameter and buffer, with its name."""
        buffers = [
            (f"{name}.{own}", buffer)
            for module, name in self.names.items()
            for own, buffer in module.named_buffers(recurse=False)
        ]
        return [*self.parameters, *buffers]


def unique(name: str, used: set[str]) -> str:
    """Number a name if it is taken.

    >>> unique("Sequential", {"Sequential"})
    'Sequential2'
    """
    numbered = (f"{name}{number}" for number in count(2))
    return name if name not in used else next(n for n in numbered if n not in used)


def orientation(linear: nn.Linear, grid: Grid, index: int) -> tuple[Axis, Axis] | None:
    """Return the axes that cut n and k: normal and transposed in turn, if both divide.

    None if neither does.
    """
    first = index % 2
    for output, contraction in (ORIENTATIONS[first], ORIENTATIONS[1 - first]):
        if not (linear.out_features % grid.size(output) or linear.in_features % grid.size(contraction)):
            return output, contraction
    return None
