"""What the test bed is asked: every grid of so many ranks, for jobs that differ in one thing."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import product
from typing import Any

from twin.strategies.four_d.grid import Grid

RATE = 400e6
"""Bits per second of a host's link, unless a scenario has another."""
BASE: dict[str, Any] = {
    "model": {"layers": 2, "hidden": 256, "heads": 8, "sequence": 128, "vocabulary": 512},
    "batch": {"sequences": 16},
    "precision": "fp32",
    "recompute": False,
}
MAX_SEQUENCES = 8
"""Of one micro-step."""


@dataclass(frozen=True)
class Scenario:
    """A job to try on every grid."""

    name: str
    title: str
    changes: dict[str, Any] = field(default_factory=dict)
    rate_bits_per_second: float = RATE

    def job(self, grid: Grid, machine: Any) -> dict[str, Any]:
        """The job on one grid, as a mapping."""
        raw = {**BASE, **self.changes}
        local = raw["batch"]["sequences"] // (grid.data * grid.z)
        sizes = {axis: grid.size(axis) for axis in ("data", "z", "y", "x")}
        return {
            **raw,
            "name": f"{self.name}-{'x'.join(map(str, grid.sizes))}",
            "machine": machine,
            "ranks": grid.ranks,
            "grid": sizes,
            "batch": {**raw["batch"], "micro_sequences": min(local, MAX_SEQUENCES)},
        }

    def jobs(self, ranks: int, machine: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each grid's label, and the job as a mapping."""
        for grid in grids(ranks):
            yield "x".join(map(str, grid.sizes)), self.job(grid, machine)


SCENARIOS = (
    Scenario("base", "as calibrated"),
    Scenario(
        "model",
        "another model: SwiGLU, rotary positions, recomputation, gathered by block",
        {
            "model": {
                "layers": 3,
                "hidden": 192,
                "heads": 8,
                "sequence": 96,
                "vocabulary": 1000,
                "activation": "swiglu",
                "positions": "rotary",
            },
            "recompute": True,
            "gather_unit": "block",
        },
    ),
    Scenario("link", "links of half the rate", rate_bits_per_second=RATE / 2),
    Scenario("batch", "half the batch", {"batch": {"sequences": 8}}),
)


def grids(ranks: int) -> Iterator[Grid]:
    """Every grid of so many ranks."""
    sizes = [size for size in range(1, ranks + 1) if ranks % size == 0]
    for data, z, y in product(sizes, repeat=3):
        inside = data * z * y
        if ranks % inside == 0:
            yield Grid(data=data, z=z, y=y, x=ranks // inside)
