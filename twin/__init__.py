"""The digital twin: what one training step of a GPT costs on a machine, before it runs.

From Python, five functions; each is loaded when it is first used:

    from twin import load_job, simulate, search, validate, compare

    print(simulate("examples/gpt-320b-frontier-32768.yaml").step_seconds)

The twin reads a job file, generates the schedule every rank would execute, prices each
operation on the machine, and plays the schedule in a discrete-event simulator. It imports
neither torch nor dash.

* `twin.api`: the functions above, and what they return.
* `twin.description`: machine, model, grid and job, as data.
* `twin.schedule`, `twin.strategies`: what one rank does, in program order; how a job is cut over ranks.
* `twin.cost`: how long one operation takes, and how much memory and energy a step needs.
* `twin.engine`: when everything happens.
* `twin.trace`: what happened, as a table of events.
* `twin.search`, `twin.studies`, `twin.validate`, `twin.calibrate`, `twin.compare`, `twin.diagnose`, `twin.goodput`: a
  question each, asked of all of the above. Those that are functions of the API too are called as such:
  `twin.search(job)`.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from twin.rooms import call_rooms

if TYPE_CHECKING:
    from twin.api import DescriptionError, Job, Prediction, compare, load_job, search, simulate, validate

__version__ = "0.1.0"
__all__ = ["DescriptionError", "Job", "Prediction", "compare", "load_job", "search", "simulate", "validate"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("twin.api"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


call_rooms(__name__, __all__)
