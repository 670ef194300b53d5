"""What a search varies besides the grid: what is computed twice, and what is gathered twice."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

from twin.description.job import Job
from twin.description.offload import Offload
from twin.strategies import offload_choices
from twin.strategies.fsdp.job import FsdpJob, check
from twin.strategies.strategy import Variant

VARIED = ("recompute", "reshard", "offload")
TRUTHS = ("recompute", "reshard_after_forward")
EARLY = "recompute_stops_early"
"""What a job that recomputes blocks may say further."""


@dataclass(frozen=True, slots=True)
class Options(Variant):
    """The values of one candidate."""

    recompute: bool
    reshard_after_forward: bool
    offload: Offload | None = None

    @classmethod
    def of(cls, job: FsdpJob) -> Options:
        """Read them from a job."""
        return cls(job.recompute, job.reshard_after_forward, job.offload)

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Options:
        """Read what `as_json` wrote, or nothing, as searches of before did; raises ValueError naming a wrong key."""
        fields = FsdpJob.model_fields
        found = {key: raw.get(key, fields[key].default) for key in TRUTHS}
        if wrong := [key for key, value in found.items() if type(value) is not bool]:
            raise ValueError(f"options.{wrong[0]}: expected true or false")
        return cls(**found, offload=offload_choices.read(raw))

    def but_recomputation(self) -> tuple[Hashable, int]:
        """Blocks kept, or recomputed. What is kept may have to travel where it lies beyond the device: not compared."""
        return (self, 0) if self.offload is not None else (replace(self, recompute=False), int(self.recompute))

    def as_json(self) -> dict[str, Any]:
        """Return the options as they stand in what a search prints."""
        way = offload_choices.written(self.offload)
        return {key: getattr(self, key) for key in TRUTHS} | ({} if self.offload is None else {"offload": way})

    def words(self) -> dict[str, str]:
        """Say the value of each option in a word or two, by name."""
        return {
            "recompute": "recomputed" if self.recompute else "no recomputation",
            "reshard_after_forward": "weights dropped" if self.reshard_after_forward else "weights stay",
            **({} if self.offload is None else {"offload": offload_choices.in_words(self.offload)}),
        }

    def columns(self) -> dict[str, str | int]:
        """Return the options as columns of a table: titles and values."""
        return {
            "recompute": "on" if self.recompute else "off",
            "gathered weights": "dropped" if self.reshard_after_forward else "stay",
            "offload": offload_choices.in_words(self.offload),
        }

    def settle(self, raw: dict[str, Any]) -> None:
        """Put the options into the keys of a job file, where it has them or where they are not the default."""
        for key in TRUTHS:
            value = getattr(self, key)
            if key in raw or value != FsdpJob.model_fields[key].default:
                raw[key] = value
        if not self.recompute:
            raw.pop(EARLY, None)
        offload_choices.settle(self.offload, raw)

    def on(self, job: Job) -> FsdpJob:
        """Return the job with these options."""
        assert isinstance(job, FsdpJob)
        changes = {key: getattr(self, key) for key in (*TRUTHS, "offload")}
        changes |= {} if self.recompute else {EARLY: FsdpJob.model_fields[EARLY].default}
        return job.model_copy(update=changes)


def variants(job: FsdpJob, over: frozenset[str]) -> Iterator[Options]:
    """Yield the job's own options, then the others as far as they differ on this grid."""
    own = Options.of(job)
    recomputes, reshards = [own.recompute], [own.reshard_after_forward]
    if "recompute" in over:
        recomputes.append(not own.recompute)
    if "reshard" in over and job.flavour != "deepspeed" and job.concrete_grid.weights > 1:
        reshards.append(not own.reshard_after_forward)
    offloads = offload_choices.choices(job) if "offload" in over else [own.offload]
    for recompute, reshard, offload in product(recomputes, reshards, offloads):
        found = Options(recompute, reshard, offload)
        if found == own or offload is None or not check(found.on(job)):
            yield found
