"""What a job may ask of the twin's 4D algorithm and the runtime does not do."""

from __future__ import annotations

from twin.description.problems import Problem
from twin.strategies.four_d.job import FourDJob


def refusals(job: FourDJob) -> list[Problem]:
    """Return one problem for each such key, with what to write instead."""
    if job.offload is None or job.offload.parameters is None:
        return []
    remedy = "is for simulation; the runtime keeps weights on the device: leave it out"
    return [Problem("offload.parameters", remedy, job.offload.parameters)]
