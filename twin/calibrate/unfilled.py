"""Devices as they multiply operands that hold no data.

Zeros switch few transistors, so the power limit does not bite. Tables of products that were measured so say
nothing about training; what was fitted to them judges them, and nothing else.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

from twin.description.device import Device, GemmModel
from twin.description.strict_yaml import read_yaml

DATA = Path(__file__).parent / "data" / "unfilled.yaml"
EMPTY = ("activation 0", "zero")
"""How tables begin to name operands that hold nothing; older tables do not say, and theirs never did."""


def holds_data(operands: str | None) -> bool:
    """Tell from what a table says of its operands whether they hold data."""
    return bool(operands) and not str(operands).startswith(EMPTY)


def with_empty_operands(device: Device) -> Device:
    """Return the device as it multiplies operands that hold nothing, where that is known to differ."""
    changed = constants().get(device.name)
    if changed is None:
        return device
    gemm = GemmModel.model_validate({**device.gemm.model_dump(mode="json", by_alias=True), **changed})
    return device.model_copy(update={"gemm": gemm})


@cache
def constants() -> dict[str, Any]:
    """Read the constants that differ, by device."""
    found: dict[str, Any] = read_yaml(DATA)["devices"]
    return found
