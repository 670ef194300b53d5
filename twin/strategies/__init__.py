"""Strategies: how a job is cut over ranks, one folder each.

* `strategy.Strategy`: what each of them answers; `registry`: which there are.
* `jobs.load_job`: job files are read here, since a strategy says which keys its jobs have.
* `auto`: jobs that leave their strategy open, and what was chosen for one.
* `four_d`: AxoNN's algorithm; `ddp`: plain data parallelism.
"""

from __future__ import annotations

from twin.description.job import AUTO
from twin.schedule.communicator import Communicator, Role
from twin.strategies.auto import AutoJob, Chosen
from twin.strategies.jobs import check, check_grid, generated, load_job, under
from twin.strategies.loosened import loosened, of_its_grid, said_of, without_keys
from twin.strategies.registry import known_axes, named, names, register, registered, strategy_of
from twin.strategies.strategy import Strategy, Unvaried, Variant

__all__ = [
    "AUTO",
    "AutoJob",
    "Chosen",
    "Communicator",
    "Role",
    "Strategy",
    "Unvaried",
    "Variant",
    "check",
    "check_grid",
    "generated",
    "known_axes",
    "load_job",
    "loosened",
    "named",
    "names",
    "of_its_grid",
    "register",
    "registered",
    "said_of",
    "strategy_of",
    "under",
    "without_keys",
]
