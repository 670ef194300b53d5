"""4D beyond the published algorithm on the test bed: what the new options gain, predicted and measured."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.testbed.scenarios import RATE, Scenario

GRIDS: dict[str, dict[str, int]] = {
    "z2 y4": {"z": 2, "y": 4},
    "z2 y2 x2": {"z": 2, "y": 2, "x": 2},
    "z4 y2": {"z": 4, "y": 2},
    "z2 x4": {"z": 2, "x": 4},
    "y4 x2": {"y": 4, "x": 2},
    "y8": {"y": 8},
}
SEQUENCES = 16
BEYOND: dict[str, Any] = {"overlap": {"halves": True, "across_blocks": True}}
KEPT: dict[str, Any] = {"recompute": False}
RECOMPUTED: dict[str, Any] = {"recompute": True}
Ways = Mapping[str, Mapping[str, Any]]


@dataclass(frozen=True)
class BeyondScenario(Scenario):
    """Every grid in each of these ways."""

    ways: Ways = field(default_factory=dict)
    """Options of each way."""
    over_x: Ways = field(default_factory=dict)
    """And of those that only grids over x have."""
    compared: tuple[tuple[str, str], ...] = ()
    """Pairs of ways, of which the second is to be the faster."""

    def ways_on(self, grid: str) -> dict[str, Mapping[str, Any]]:
        """Return the ways that there are on a grid."""
        return {**self.ways, **(self.over_x if "x" in GRIDS[grid] else {})}

    def jobs(self, ranks: int, machine: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each way's label, and the job as a mapping."""
        for grid, axes in GRIDS.items():
            sizes = {axis: axes.get(axis, 1) for axis in ("data", "z", "y", "x")}
            for way, options in self.ways_on(grid).items():
                label = f"{grid}, {way}"
                yield (
                    label,
                    {
                        **self.changes,
                        **options,
                        "name": f"{self.name}-{label.replace(',', '').replace(' ', '-')}",
                        "machine": machine,
                        "ranks": ranks,
                        "grid": sizes,
                        "precision": "fp32",
                        "batch": {"sequences": SEQUENCES, "micro_sequences": SEQUENCES // sizes["z"]},
                    },
                )

    def gains(self, rows: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
        """Return of each pair how many times faster the second is, predicted and measured."""
        by_label = {row["grid"]: row for row in rows}
        found = []
        for grid in GRIDS:
            for one, other in self.compared:
                if other in self.ways_on(grid):
                    before, after = by_label[f"{grid}, {one}"], by_label[f"{grid}, {other}"]
                    times = [
                        before[f"{which}_seconds"] / after[f"{which}_seconds"] for which in ("predicted", "measured")
                    ]
                    found.append((after["grid"], *times))
        return found


_MODEL = {"model": {"layers": 4, "hidden": 512, "heads": 8, "sequence": 128, "vocabulary": 512}}
SCENARIO = BeyondScenario(
    "beyond",
    "4D as published and beyond: GPT of 4 layers, 512 wide",
    _MODEL,
    RATE,
    ways={
        "kept": KEPT,
        "kept, beyond": KEPT | BEYOND,
        "recomputed": RECOMPUTED,
        "recomputed, beyond": {**RECOMPUTED, "recompute_layers": 1, **BEYOND},
    },
    compared=(("kept", "kept, beyond"), ("recomputed", "recomputed, beyond")),
)
"""As published and beyond: with all activations kept, and with all or one of the blocks computed again."""
FURTHER = BeyondScenario(
    "further",
    "4D further beyond: products kept, divided, flat: GPT of 4 layers, 512 wide",
    _MODEL,
    RATE,
    ways={"kept": KEPT, "recomputed": RECOMPUTED, "products kept": {**RECOMPUTED, "recompute_keeps": "products"}},
    over_x={
        "kept, divided": {**KEPT, "divide": {"attention": True, "mlp": True}},
        "kept, flat": {**KEPT, "tensor": "1d"},
    },
    compared=(("recomputed", "products kept"), ("kept", "kept, divided"), ("kept", "kept, flat")),
)
SCENARIOS = (SCENARIO, FURTHER)
