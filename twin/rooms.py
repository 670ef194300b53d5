"""Packages that are asked by their name: `twin.search` is a package, and `twin.search(job)` searches.

Python binds a subpackage to its name in its parent when it is imported, in place of a function of that name. So
that `from twin import search` gives the same thing whatever was imported before, such subpackages can be called.
"""

from __future__ import annotations

import sys
from collections.abc import Collection
from importlib import import_module
from types import ModuleType
from typing import Any


class Room(ModuleType):
    """A package that stands for the function of its name in the `api` module of its parent."""

    def __call__(self, *arguments: Any, **options: Any) -> Any:
        """Call that function."""
        parent, _, name = self.__name__.rpartition(".")
        return getattr(import_module(f"{parent}.api"), name)(*arguments, **options)


def call_rooms(package: str, names: Collection[str]) -> None:
    """Let the subpackages of these names be called, as soon as they are imported."""

    class House(ModuleType):
        """The package, which sees its subpackages come."""

        def __setattr__(self, name: str, value: Any) -> None:
            if name in names and isinstance(value, ModuleType):
                value.__class__ = Room
            super().__setattr__(name, value)

    sys.modules[package].__class__ = House
