"""How each strategy trains for real: one folder each, of the same name as in `twin.strategies`.

What a strategy trains is asked on login nodes, where there is no PyTorch, and a folder itself says it: keys of which
only one value trains stand in its `TRAINED_WITH`, and what else it does not train, its `refusals(job)` say. Ranks as
those see them who hold parameters, if not the job's grid, are its `ranks_of(job)`. `trainee_in(context, settings)` of
its module `assembly` makes the model and the optimizer of one rank, in a context of `assembly.CONTEXT`.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from twin.description.problems import DescriptionError, Problem, fail
from twin.strategies import named

if TYPE_CHECKING:
    import torch

    from runtime.parallel.mesh import Mesh
    from runtime.step.trainee import Trainee
    from twin.description.grid import GridSpec
    from twin.description.job import Job
    from twin.description.train import Adam

__all__ = ["MakeTrainee", "names", "ranks_of", "recorded_on", "refuse", "trained_with", "trains"]


class MakeTrainee(Protocol):
    """Makes the model of a job, with its optimizer, on one rank."""

    def __call__(
        self,
        job: Job,
        mesh: Mesh,
        device: torch.device,
        settings: Adam,
        *,
        compile_: bool = False,
        initialised: bool = True,
    ) -> Trainee:
        """Make it."""
        ...


def names() -> list[str]:
    """Names of the strategies that train, ascending."""
    return sorted(found.name for found in pkgutil.iter_modules([str(Path(__file__).parent)]) if found.ispkg)


def ranks_of(job: Job) -> GridSpec:
    """Return a job's ranks by axes that those see who hold parameters: its grid, unless its strategy says otherwise."""
    found: GridSpec = getattr(import_module(f"runtime.strategies.{job.strategy}"), "ranks_of", _grid)(job)
    return found


def _grid(job: Job) -> GridSpec:
    return job.concrete_grid


def recorded_on(job: Job) -> str:
    """Return the device on which a step is recorded: `meta`, whose tensors take no memory, wherever that will do."""
    return str(getattr(import_module(f"runtime.strategies.{job.strategy}"), "RECORDED_ON", "meta"))


def trained_with(name: str) -> dict[str, Any]:
    """Return the keys that jobs of a strategy must have to be trained, but for those that they have by default."""
    known = named(name).options.model_fields
    keys: dict[str, Any] = getattr(import_module(f"runtime.strategies.{name}"), "TRAINED_WITH", {})
    return {key: value for key, value in keys.items() if known[key].default != value}


def refuse(job: Job) -> None:
    """Raise DescriptionError if a job's strategy, or a key, is simulated only."""
    if job.strategy not in names():
        raise fail("strategy", f"is simulated only; the runtime trains {', '.join(names())}", job.strategy)
    strategy = import_module(f"runtime.strategies.{job.strategy}")
    for key, trained in getattr(strategy, "TRAINED_WITH", {}).items():
        if getattr(job, key) != trained:
            raise fail(key, f"is for simulation; the runtime trains with {key}: {trained}", getattr(job, key))
    if problems := [*getattr(strategy, "refusals", _none)(job), *_without_place(job)]:
        raise DescriptionError(problems)


def trains(job: Job) -> MakeTrainee:
    """Return what makes the trainee of a job; raises DescriptionError if its strategy, or a key, is simulated only."""
    refuse(job)
    assembly = import_module(f"runtime.strategies.{job.strategy}.assembly")

    def make(
        job: Job, mesh: Mesh, device: torch.device, settings: Adam, *, compile_: bool = False, initialised: bool = True
    ) -> Trainee:
        context = assembly.CONTEXT.of_job(job, mesh, device, compile_=compile_, initialised=initialised)
        trainee: Trainee = assembly.trainee_in(context, settings)
        return trainee

    return make


def _without_place(job: Job) -> list[Problem]:
    """Return what is missing where parts of a job's state lie on drives."""
    offload = getattr(job, "offload", None)
    if offload is None or "disk" not in offload.tiers or offload.directory is not None:
        return []
    return [Problem("offload.directory", "is missing: name a directory on the drives that `disk` means")]


def _none(_job: Job) -> list[Problem]:
    return []
