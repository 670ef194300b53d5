"""What a search varies besides the grid: what is computed twice, and what is gathered twice."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from itertools import product
from typing import Any

from twin.description.job import Job
from twin.strategies.fsdp.job import FsdpJob
from twin.strategies.strategy import Variant

VARIED = ("recompute", "reshard")


@dataclass(frozen=True, slots=True)
class Options(Variant):
    """The values of one candidate."""

    recompute: bool
    reshard_after_forward: bool

    @classmethod
    def of(cls, job: FsdpJob) -> Options:
        """Read them from a job."""
        return cls(job.recompute, job.reshard_after_forward)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Options:
        """Read what `as_json` wrote, or nothing, as searches of before did; raises ValueError naming a wrong key."""
        fields = FsdpJob.model_fields
        found = {key: raw.get(key, fields[key].default) for key in ("recompute", "reshard_after_forward")}
        if wrong := [key for key, value in found.items() if type(value) is not bool]:
            raise ValueError(f"options.{wrong[0]}: expected true or false")
        return cls(**found)

    def as_json(self) -> dict[str, Any]:
        """Return the options as they stand in what a search prints."""
        return asdict(self)

    def words(self) -> dict[str, str]:
        """Say the value of each option in a word or two, by name."""
        return {
            "recompute": "recomputed" if self.recompute else "no recomputation",
            "reshard_after_forward": "weights dropped" if self.reshard_after_forward else "weights stay",
        }

    def columns(self) -> dict[str, str | int]:
        """Return the options as columns of a table: titles and values."""
        return {
            "recompute": "on" if self.recompute else "off",
            "gathered weights": "dropped" if self.reshard_after_forward else "stay",
        }

    def settle(self, raw: dict[str, Any]) -> None:
        """Put the options into the keys of a job file, where it has them or where they are not the default."""
        for key, value in asdict(self).items():
            if key in raw or value != FsdpJob.model_fields[key].default:
                raw[key] = value

    def on(self, job: Job) -> FsdpJob:
        """Return the job with these options."""
        assert isinstance(job, FsdpJob)
        return job.model_copy(update=asdict(self))


def variants(job: FsdpJob, over: frozenset[str]) -> Iterator[Options]:
    """Yield the job's own options, then the others as far as they differ on this grid."""
    own = Options.of(job)
    recomputes, reshards = [own.recompute], [own.reshard_after_forward]
    if "recompute" in over:
        recomputes.append(not own.recompute)
    if "reshard" in over and job.flavour != "deepspeed" and job.concrete_grid.weights > 1:
        reshards.append(not own.reshard_after_forward)
    for recompute, reshard in product(recomputes, reshards):
        yield Options(recompute, reshard)
