"""4D beyond the published algorithm on the test bed: what the new options gain, predicted and measured."""

from __future__ import annotations

from collections.abc import Iterator
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
WAYS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "kept": ({"recompute": False}, {"recompute": False, **BEYOND}),
    "recomputed": ({"recompute": True}, {"recompute": True, "recompute_layers": 1, **BEYOND}),
}
"""Options as published, and beyond: with all activations kept, and with all or one of the blocks computed again."""
PAIRS = [(f"{grid}, {way}", f"{grid}, {way}, beyond") for grid in GRIDS for way in WAYS]


class BeyondScenario(Scenario):
    """Every grid in each of these ways."""

    def jobs(self, ranks: int, machine: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each way's label, and the job as a mapping."""
        for grid, axes in GRIDS.items():
            sizes = {axis: axes.get(axis, 1) for axis in ("data", "z", "y", "x")}
            for way, both in WAYS.items():
                for ending, options in zip(("", ", beyond"), both, strict=True):
                    label = f"{grid}, {way}{ending}"
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


SCENARIO = BeyondScenario(
    "beyond",
    "4D as published and beyond: GPT of 4 layers, 512 wide",
    {"model": {"layers": 4, "hidden": 512, "heads": 8, "sequence": 128, "vocabulary": 512}},
    RATE,
)


def gains(rows: list[dict[str, Any]]) -> list[tuple[str, float, float]]:
    """Return of each pair how many times faster the second is, predicted and measured."""
    by_label = {row["grid"]: row for row in rows}
    return [
        (
            before,
            by_label[before]["predicted_seconds"] / by_label[after]["predicted_seconds"],
            by_label[before]["measured_seconds"] / by_label[after]["measured_seconds"],
        )
        for before, after in PAIRS
    ]
