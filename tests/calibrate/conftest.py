"""What tests of calibration share."""

from __future__ import annotations

from typing import Any

import pytest

from tests.calibrate.known_machine import measurements, read, with_collectives
from twin.calibrate import machine_from
from twin.description.machine import Machine


@pytest.fixture(scope="session")
def exact() -> tuple[dict[str, Any], Machine]:
    """Measurements of the known machine without noise, and the machine that they make."""
    pytest.importorskip("scipy")
    data = with_collectives(measurements())
    return data, read(machine_from(data))
