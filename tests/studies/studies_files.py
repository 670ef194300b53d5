"""Small study files for the tests of studies."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

TINY: dict[str, Any] = {
    "model": {"layers": 2, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 512},
    "machine": "frontier",
    "ranks": 16,
    "grid": {"data": 2, "z": 8},
    "batch": {"sequences": 32, "micro_sequences": 1},
}


def write_study(folder: Path, name: str = "question.yaml", **keys: Any) -> Path:
    """Write a study file; a tiny sweep unless keys say otherwise."""
    study = {"study": "sweep", "job": TINY} | keys
    path = folder / name
    path.write_text(yaml.safe_dump(study, sort_keys=False), encoding="utf-8")
    return path
