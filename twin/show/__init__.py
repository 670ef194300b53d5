"""Answers on a terminal: rich tables, or one JSON object for programs."""

from twin.show.compare import comparison
from twin.show.console import answer, print_json, progress
from twin.show.diagnosis import diagnosis
from twin.show.goodput import goodput
from twin.show.machines import machine, machine_list, models
from twin.show.search import search, search_object
from twin.show.step import choice, every_rank, own_step, step
from twin.show.study import study, study_object
from twin.show.validation import measurements, published

__all__ = [
    "answer",
    "choice",
    "comparison",
    "diagnosis",
    "every_rank",
    "goodput",
    "machine",
    "machine_list",
    "measurements",
    "models",
    "own_step",
    "print_json",
    "progress",
    "published",
    "search",
    "search_object",
    "step",
    "study",
    "study_object",
]
