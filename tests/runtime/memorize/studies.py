"""Small studies of what is learnt by heart, for tests."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import yaml

SMALL: dict[str, Any] = {
    "title": "small",
    "job": {
        "model": {"layers": 1, "hidden": 32, "heads": 2, "sequence": 24, "vocabulary": 64},
        "machine": "laptop",
        "ranks": 1,
        "grid": {"data": 1, "z": 1, "y": 1, "x": 1},
        "batch": {"sequences": 8, "micro_sequences": 2},
        "precision": "fp32",
        "recompute": False,
        "train": {"steps": 10, "device": "cpu", "threads": 1, "learning_rate": {"peak": 1.0e-2}, "timeout": "60 s"},
    },
    "texts": {"source": "random", "repeats": {0: 4, 10: 8}, "suffix": 8},
    "masks": {"hash": [2, "inf"]},
    "h": 3,
    "seeds": 1,
}


def write_study(folder: Path, **changes: Any) -> Path:
    """Write a small study; mappings are merged with what is there."""
    path = folder / "study.yaml"
    path.write_text(yaml.safe_dump(merged(SMALL, changes), sort_keys=False), encoding="utf-8")
    return path


def merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """Change some keys, below mappings too; a new `repeats` or `masks` replaces the old."""
    found = dict(old)
    for key, value in new.items():
        deeper = isinstance(value, dict) and isinstance(old.get(key), dict) and key not in {"repeats", "masks"}
        found[key] = merged(old[key], value) if deeper else value
    return found


def results(directory: Path) -> dict[str, Any]:
    """Read what a study found."""
    found: dict[str, Any] = json.loads((directory / "results.json").read_text(encoding="utf-8"))
    return found
