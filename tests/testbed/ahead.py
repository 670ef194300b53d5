"""Ways to sum gradients over data and to share the optimizer's states, on the test bed: predicted and measured."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from tests.testbed.scenarios import RATE, Scenario

MODES = ("one_bucket", "overlapped", "sharded", "sharded_overlapped")
DATA, Y, SEQUENCES = 4, 2, 16


class DataScenario(Scenario):
    """One grid, in every way."""

    def jobs(self, ranks: int, machine: Any) -> Iterator[tuple[str, dict[str, Any]]]:
        """Each way's label, and the job as a mapping."""
        for mode in MODES:
            yield (
                mode,
                {
                    **self.changes,
                    "name": f"{self.name}-{mode}",
                    "machine": machine,
                    "ranks": ranks,
                    "grid": {"data": DATA, "z": 1, "y": Y, "x": 1},
                    "precision": "fp32",
                    "recompute": False,
                    "data_reduction": {"mode": mode, "bucket": "4 MiB"},
                    "batch": {"sequences": SEQUENCES, "micro_sequences": SEQUENCES // DATA},
                },
            )


SCENARIO = DataScenario(
    "ahead",
    "Gradients over data in four ways, on data 4 × y 2: GPT of 4 layers, 512 wide",
    {"model": {"layers": 4, "hidden": 512, "heads": 8, "sequence": 128, "vocabulary": 512}},
    RATE,
)
