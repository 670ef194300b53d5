"""What a strategy is: everything that knows how a job is cut over ranks.

A strategy is a folder of `twin/strategies` whose `__init__` has a `STRATEGY`, or an object that is registered
from elsewhere (`twin.strategies.register`). Nobody else knows the names of its axes.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

from twin.description.grid import Axes, GridSpec, Mesh, divisors
from twin.description.job import Job
from twin.description.offload import Tier
from twin.description.problems import Problem
from twin.schedule.communicator import Communicator, Role
from twin.schedule.ops import Schedule

J = TypeVar("J", bound=Job)


class Variant(ABC):
    """The options of a job that a search varies, with the values of one candidate."""

    @abstractmethod
    def on(self, job: Job) -> Job:
        """Return the job with these options."""

    def but_recomputation(self) -> tuple[Hashable, int]:
        """Return what the options are but for recomputation, and how much they compute again: more where it is larger.

        Of candidates on one grid, with one micro-batch, that are alike but for that, none is faster than the one with
        the least.
        """
        return id(self), 0

    @abstractmethod
    def as_json(self) -> dict[str, Any]:
        """Return the options as they stand in what a search prints."""

    @abstractmethod
    def words(self) -> dict[str, str]:
        """Say the value of each option in a word or two, by name."""

    def words_on(self, grid: Axes) -> dict[str, str]:
        """Say the value of each option that makes a difference on a grid."""
        del grid
        return self.words()

    @abstractmethod
    def columns(self) -> dict[str, str | int]:
        """Return the options as columns of a table: titles and values."""

    @abstractmethod
    def settle(self, raw: dict[str, Any]) -> None:
        """Put the options into the keys of a job file, where it has them or where they are not the default."""


class Strategy(ABC, Generic[J]):
    """Turns jobs into programs. Methods take jobs whose grid and micro-batch are concrete, but for `check`."""

    name: str
    """The word for it in a job file."""
    options: type[J]
    """The job with the strategy's own keys: what a job file of it is checked against."""
    grid: type[GridSpec]
    """The `grid:` of its jobs."""
    ordered_by: str = ""
    """What `rank_key_seconds` is, such as the published communication model; empty: it says nothing."""
    varied: tuple[str, ...] = ()
    """Options that a search may vary, besides the grid and the micro-batch."""
    of_some_grids: tuple[tuple[str, ...], ...] = ()
    """Keys that a grid may have and another not, those together that go together: on other ranks they may be left out.
    What a rank computes of a step must not depend on them but for rounding."""

    @property
    def worth_varying(self) -> tuple[str, ...]:
        """Those of them that a search over strategies varies."""
        return self.varied

    @property
    def makes_room(self) -> tuple[str, ...]:
        """Those that such a search varies too where nothing fits without."""
        return tuple(name for name in self.varied if name == "offload" and name not in self.worth_varying)

    @property
    def axes(self) -> tuple[str, ...]:
        """Names of the axes of its grids, outermost first."""
        return tuple(self.grid.model_fields)

    @abstractmethod
    def check(self, job: J) -> list[Problem]:
        """Return the rules of the strategy that a job breaks; the grid's only where it is not `auto`."""

    def mesh(self, job: J) -> Mesh:
        """Return the axes that the ranks are cut into."""
        return job.concrete_grid.mesh

    @abstractmethod
    def communicators(self, job: J) -> tuple[Communicator, ...]:
        """Return who talks with whom; one that no op names does no harm."""

    def issued_by(self, job: J) -> Mapping[str, str]:
        """Return which software issues the collectives of communicators, as `Device.issue` names it.

        By default none whose host time is known: a loop that starts each by itself.
        """
        del job
        return {}

    def roles(self, job: J) -> tuple[Role, ...]:
        """Divide the ranks by the program they run; by default all run the same one."""
        return (Role.everyone(job.ranks),)

    @abstractmethod
    def schedule(self, job: J, role: Role) -> Schedule:
        """Write the program of one step for the ranks of a role."""

    @abstractmethod
    def memory(self, job: J, role: Role) -> Mapping[str, float]:
        """Return the peak bytes of a rank of a role, by category."""

    def memories(self, job: J) -> Sequence[Mapping[str, float]]:
        """Return those of all roles; of roles with equal ones one is enough."""
        return [self.memory(job, role) for role in self.roles(job)]

    def tiers(self, job: J, role: Role) -> Mapping[Tier, Mapping[str, float]]:
        """Return the bytes of a rank of a role beyond its device, by tier and category; by default none."""
        del job, role
        return {}

    def state_copies(self, job: J) -> int:
        """Return how many ranks hold each part of the optimizer's states; by default all along the outermost axis."""
        grid = job.concrete_grid
        return grid.size(grid.replicated_over)

    @abstractmethod
    def candidates(self, job: J) -> Iterator[GridSpec]:
        """Yield every grid of the job's ranks, those that break a rule too."""

    def variant(self, job: J) -> Variant:
        """Return the options of a job that a search may vary, as they are."""
        del job
        return Unvaried()

    def variant_of(self, raw: Mapping[str, Any]) -> Variant:
        """Read what `Variant.as_json` wrote; raises ValueError naming the key that is wrong."""
        del raw
        return Unvaried()

    def variants(self, job: J, over: frozenset[str]) -> Iterator[Variant]:
        """Yield the job's own options, then what else of `over` makes a difference on its grid."""
        del over
        yield self.variant(job)

    def opened(self, job: J) -> J:
        """Return a job on a grid of a search with what every variant of it there will have, for its rules."""
        return job

    def rehearsal(self, job: J) -> J | None:
        """Return a small job whose pieces take no longer than those of a job; None: there is none to learn from."""
        del job
        return None

    def same_rehearsal(self, job: J) -> tuple[object, ...]:
        """Return what the rehearsal of a job depends on: jobs of a search in which it is equal share it."""
        del job
        return ()

    def floor_seconds(self, job: J, seconds: Callable[[str], float]) -> float:
        """Return a time that no step of a job is below.

        `seconds` says how long the ops of a micro-step of its rehearsal take at least whose names contain a text: from
        the first's begin to the last's end; after `=`, those in which the device computes, all together; after `+`, how
        long they take at most, all together (`*` is any text).
        """
        del job, seconds
        return 0.0

    def closer_floor_seconds(self, job: J, seconds: Callable[[str], float], hop_seconds: Callable[[], float]) -> float:
        """Return another such time, which may take some milliseconds to work out; 0: there is none.

        `hop_seconds` says how long one of its `messages` takes at least.
        """
        del job, seconds, hop_seconds
        return 0.0

    def messages(self, job: J) -> tuple[tuple[str, ...], float]:
        """Return the communicators of two over which passes send each other what they need, and bytes of a message."""
        del job
        return (), 0.0

    def traffic(self, job: J) -> tuple[J, str, int] | None:
        """Return a small job on the same ranks, what names of its ops match, and how often a step has what they move.

        None: there is none to learn from.
        """
        del job
        return None

    def rank_key_seconds(self, job: J) -> float:
        """Return by what candidates are put in order before any is simulated: not a prediction."""
        del job
        return 0.0

    def advice(self, job: J) -> Iterator[tuple[str, J]]:
        """Yield other ways to cut a job that take less memory, in words and as jobs, best first."""
        del job
        yield from ()

    def memory_variants(self, job: J) -> Iterator[tuple[str, J]]:
        """Yield the job with one option changed, where that saves or costs memory, each with its name."""
        del job
        yield from ()

    def axis_choices(self, job: J) -> dict[str, list[int]]:
        """Return the sizes of each axis that the rules of model, batch and ranks allow by themselves."""
        return {axis: divisors(job.ranks) for axis in self.axes}

    def why_not(self, job: J) -> str:
        """Say what to do where no way to cut a job takes little enough memory."""
        return f"use more memory than {job.machine.device.name} has, or a smaller model"


class Unvaried(Variant):
    """No options to vary."""

    def on(self, job: Job) -> Job:
        """Return the job as it is."""
        return job

    def as_json(self) -> dict[str, Any]:
        """Return no options."""
        return {}

    def words(self) -> dict[str, str]:
        """Return no words."""
        return {}

    def columns(self) -> dict[str, str | int]:
        """Return no columns."""
        return {}

    def settle(self, raw: dict[str, Any]) -> None:
        """Leave the keys as they are."""
