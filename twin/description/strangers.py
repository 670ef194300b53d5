"""Jobs that strangers' runs hold: they may name what comes with Fourfold, but no file."""

from __future__ import annotations

from typing import Any

from twin.description.load import names
from twin.description.problems import fail


def refuse_paths(label: str, raw: dict[str, Any]) -> None:
    """Refuse a job whose machine is a file: a run that a stranger wrote opens no other file.

    Devices and libraries can only be named. Raises DescriptionError.
    """
    machine = raw.get("machine")
    named = machine.get("extends", names()[0]) if isinstance(machine, dict) else machine
    if named not in names():
        raise fail(f"{label}: machine", "is not one that comes with Fourfold; only those are opened here")
