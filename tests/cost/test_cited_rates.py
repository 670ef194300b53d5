"""Machines that were put together from single published figures give those figures back."""

from __future__ import annotations

import pytest

from twin.description.library import CollectiveKind
from twin.engine.single import collective_answer

GB = 1e9
CITED = [
    ("hgx-mi300x", "all_reduce", 8, 4 * 2.0**30, 314.5),
    ("dgx-2", "all_reduce", 12, 8 * 2.0**30, 124),
    ("jean-zay-v100", "all_reduce", 4, 2.0**30, 124),
    ("l40s-8", "all_reduce", 2, 2.0**29, 20.1),
    ("gb200-nvl72", "all_reduce", 4, 2.0**29, 628),
    ("polaris", "all_gather", 8, 2.0**30, 36.1),
    ("polaris", "all_reduce", 8, 2.0**30, 36.4),
    ("polaris", "all_reduce", 32, 2.0**30, 36.2),
]
"""Machine, collective, ranks, bytes, and the bus bandwidth that its file names a source for, GB/s."""


@pytest.mark.parametrize(("machine", "kind", "ranks", "size", "cited"), CITED, ids=str)
def test_a_machine_gives_its_sources_back(
    machine: str, kind: CollectiveKind, ranks: int, size: float, cited: float
) -> None:
    answer = collective_answer(machine, kind, ranks, f"{size:.0f} B", 1, None)
    assert answer["bus_bandwidth_bytes_per_second"] / GB == pytest.approx(cited, rel=0.06)
