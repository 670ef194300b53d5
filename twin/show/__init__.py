"""How answers look on a terminal: rich tables, or one JSON object for programs."""

from twin.show.compare import comparison
from twin.show.console import answer, print_json, progress
from twin.show.machines import machine, machine_list, models
from twin.show.step import choice, own_step, step
from twin.show.validation import measurements, published

__all__ = [
    "answer", "choice", "comparison", "machine", "machine_list", "measurements", "models", "own_step", "print_json",
    "progress", "published", "step",
]  # fmt: skip
