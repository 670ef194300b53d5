"""The registry of collective algorithms: what a collective can run by.

An algorithm is a function that returns the options it offers for one collective of one group; none where
it does not apply, or where the library has no constants for it. `collective_cost` takes the fastest option
of all. A module in `twin.cost.collectives` is found by itself; one of another package registers when it is imported:

    @register("bruck")
    def bruck_options(group, library, kind, bytes_):
        constants = library.constants("bruck", Bruck)      # of the library file's `algorithms: {bruck: …}`
        if constants is None or kind != "all_gather":
            return []
        …
        return [Option("bruck", "Simple", seconds, …)]
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache

from twin.cost.collective_group import Group
from twin.cost.collective_options import Option, on_cores
from twin.description.library import CollectiveKind, Library
from twin.description.problems import did_you_mean, fail

Offer = Callable[[Group, Library, CollectiveKind, float], list[Option]]
"""Options of a group for a collective of a kind and so many bytes."""
BUILT_IN = "twin.cost.collectives"


@dataclass(frozen=True)
class Algorithm:
    """One entry of the registry."""

    name: str
    offer: Offer
    alone: bool
    """Where it offers something the library has no choice: the runtime exchanges by itself."""


_registered: dict[str, Algorithm] = {}
"""By name. It changes by `register` and `unregister` alone."""


def register(name: str, *, alone: bool = False) -> Callable[[Offer], Offer]:
    """Let a function offer options under a name of its own; see the module.

    Raises ValueError if another function has the name.
    """

    def enter(offer: Offer) -> Offer:
        if name in _registered:
            raise ValueError(f"collective algorithm {name!r} is registered already; choose another name")
        _registered[name] = Algorithm(name, offer, alone)
        return offer

    return enter


def unregister(name: str) -> None:
    """Forget an algorithm, as tests do with theirs."""
    del _registered[name]


def registered() -> tuple[Algorithm, ...]:
    """Return all algorithms, in the order of their names: the same whichever module was imported first."""
    _find_built_in()
    return tuple(_registered[name] for name in sorted(_registered))


@cache
def _find_built_in() -> None:
    package = importlib.import_module(BUILT_IN)
    for module in pkgutil.iter_modules(package.__path__):
        importlib.import_module(f"{BUILT_IN}.{module.name}")


def options(group: Group, library: Library, kind: CollectiveKind, bytes_: float) -> list[Option]:
    """Return every way in which the library can run this collective.

    Raises DescriptionError if the library has constants for an algorithm that there is none of.
    """
    algorithms = registered()
    if library.algorithms:
        _check_names(library, [a.name for a in algorithms])
    found: list[Option] = []
    for algorithm in algorithms:
        offered = algorithm.offer(group, library, kind, bytes_)
        if offered and algorithm.alone:
            return [on_cores(group, option) for option in offered]
        found += offered
    return [on_cores(group, option) for option in found]


def _check_names(library: Library, known: list[str]) -> None:
    for name in library.algorithms:
        if name not in known:
            raise fail(f"machine.libraries.{library.name}.algorithms.{name}", did_you_mean(name, known))
