"""Where parts of a job's state may lie: the choices of a search that varies `offload:`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from twin.description.job import Job
from twin.description.offload import Offload, OptimizerOffload

HOST, STRIDE, DISK = OptimizerOffload(), OptimizerOffload(stride=2), OptimizerOffload(to="disk")
IN_MEMORY = (
    Offload(optimizer=HOST),
    Offload(optimizer=HOST, activations="host"),
    Offload(optimizer=STRIDE),
    Offload(optimizer=HOST, parameters="host"),
    Offload(optimizer=HOST, parameters="host", activations="host"),
    Offload(parameters="host", activations="host"),
)
ON_DRIVES = (
    Offload(optimizer=DISK),
    Offload(optimizer=DISK, activations="host"),
    Offload(optimizer=DISK, parameters="host", activations="host"),
    Offload(optimizer=DISK, parameters="disk", activations="host"),
)
WORDS = {"host": "in host memory", "disk": "on drives"}


def choices(job: Job) -> list[Offload | None]:
    """Return the job's own way and, if its machine's hosts are described, the others that its machine has room for.

    Whether one goes with a job's other options is for the rules of its strategy.
    """
    own: Offload | None = getattr(job, "offload", None)
    if job.machine.host is None:
        return [own]
    directory = None if own is None else own.directory
    there = (*IN_MEMORY, *(() if job.machine.disk is None else ON_DRIVES))
    ways = [None, *(way.model_copy(update={"directory": directory}) for way in there)]
    return [own, *(way for way in ways if way != own)]


def in_words(offload: Offload | None) -> str:
    """Say what lies where.

    >>> in_words(Offload(optimizer=OptimizerOffload(stride=2), activations="host"))
    'optimizer (1 of 2 updated on the device), activations in host memory'
    """
    if offload is None:
        return "all on the device"
    by_tier: dict[str, list[str]] = {}
    if (optimizer := offload.optimizer) is not None:
        stride = optimizer.stride
        nth = "" if stride is None else f" (1 of {stride} updated on the device)"
        by_tier.setdefault(optimizer.to, []).append(f"optimizer{nth}")
    for what in ("parameters", "activations"):
        if (tier := getattr(offload, what)) is not None:
            by_tier.setdefault(tier, []).append("weights" if what == "parameters" else what)
    return "; ".join(f"{', '.join(what)} {WORDS[tier]}" for tier, what in by_tier.items())


def written(offload: Offload | None) -> dict[str, Any]:
    """Return it as it stands in a job file, without what is the default."""
    return {} if offload is None else offload.model_dump(mode="json", by_alias=True, exclude_defaults=True)


def settle(offload: Offload | None, raw: dict[str, Any]) -> None:
    """Put it into the keys of a job file; where files are made stays as it was."""
    if offload is None:
        raw.pop("offload", None)
    else:
        raw["offload"] = written(offload)


def read(raw: Mapping[str, Any]) -> Offload | None:
    """Read what a search wrote of its options; raises ValueError if that is no way to offload."""
    given = raw.get("offload")
    if given is None:
        return None
    try:
        return Offload.model_validate(given)
    except ValidationError as error:
        raise ValueError(f"options.offload: {error.errors()[0]['msg']}") from None
