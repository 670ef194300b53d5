"""Which strategies there are: the folders beside this module, and what is registered from elsewhere."""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from pathlib import Path
from typing import Any

from twin.description.job import AUTO, DEFAULT_STRATEGY, Job
from twin.description.problems import fail
from twin.strategies.strategy import Strategy

_REGISTERED: dict[str, Strategy[Any]] = {}
"""The only state: what was registered, and folders that were read once."""


def names() -> list[str]:
    """Names of all strategies, ascending."""
    folders = [found.name for found in pkgutil.iter_modules([str(Path(__file__).parent)]) if found.ispkg]
    return sorted({*folders, *_REGISTERED})


def named(name: str) -> Strategy[Any]:
    """Return the strategy of this name; raises KeyError for an unknown one."""
    if name not in _REGISTERED:
        if name not in names():
            raise KeyError(name)
        register(import_module(f"twin.strategies.{name}").STRATEGY)
    return _REGISTERED[name]


def known_axes() -> tuple[str, ...]:
    """Names of the axes of all strategies, outermost first, the default strategy's first."""
    ordered = sorted(names(), key=lambda name: (name != DEFAULT_STRATEGY, name))
    return tuple(dict.fromkeys(axis for name in ordered for axis in named(name).axes))


def strategy_of(job: Job) -> Strategy[Any]:
    """Return the strategy that a job is cut by; raises DescriptionError where that is left open."""
    if job.strategy == AUTO:
        remedy = "is settled by simulate, search, goodput and train; name one here, such as `fourfold search` finds"
        raise fail("strategy", remedy, AUTO)
    return named(job.strategy)


def register(strategy: Strategy[Any]) -> None:
    """Make a strategy known; raises ValueError if another one has its name, or if the name means another thing."""
    if strategy.name == AUTO:
        raise ValueError(f"{AUTO!r} stands for the fastest of all strategies; choose another name")
    if _REGISTERED.get(strategy.name, strategy) is not strategy:
        raise ValueError(f"strategy {strategy.name!r} is registered already; choose another name")
    _REGISTERED[strategy.name] = strategy


@contextmanager
def registered(strategy: Strategy[Any]) -> Iterator[None]:
    """Make a strategy known for a while, as tests do."""
    register(strategy)
    try:
        yield
    finally:
        del _REGISTERED[strategy.name]
