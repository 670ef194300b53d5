"""What mending a culprit is worth: the twin runs the job with the fault and without."""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from twin.description.job import Job
from twin.description.problems import DescriptionError
from twin.diagnose.finding import Finding
from twin.diagnose.observed import Observed, nodes_of
from twin.engine.simulate import MANY_CLASSES, simulate
from twin.strategies import load_job

SLOWEST = 1e-3
"""Share of its rate that a degraded NIC has at least; what is slower than one of several can be, several are."""


def worth(finding: Finding, observed: Observed, job: Job, healthy_seconds: float) -> Finding:
    """Add what a step would be shorter by without the fault, where the twin can have it."""
    if finding.kind == "loading":
        return replace(finding, saved_share=min(1.0, finding.seconds / float(np.median(observed.step_seconds))))
    changed = _with_fault(finding, observed, job)
    if changed is None:
        return finding
    try:
        seconds = simulate(changed, max_classes=MANY_CLASSES).step_seconds
    except DescriptionError:  # too many classes of ranks
        return finding
    return replace(finding, saved_share=max(0.0, 1.0 - healthy_seconds / seconds))


def _with_fault(finding: Finding, observed: Observed, job: Job) -> Job | None:
    if finding.kind in {"device", "host"}:
        slow = [{"rank": rank, "slowdown": finding.slowdown} for rank in finding.ranks]
        return _changed(job, stragglers=slow)
    placed_alike = bool(np.array_equal(observed.host_of_rank, nodes_of(job)))
    if finding.kind != "link" or len(finding.hosts) != 1 or not placed_alike:
        return None
    served = job.machine.nic.devices
    first = finding.hosts[0] * job.machine.devices_per_node
    local = {rank - first for rank in finding.ranks} or set(range(job.machine.devices_per_node))
    nics = [number for number, devices in enumerate(served) if local & set(devices)]
    # of several side by side one is slow, and all together were seen to be
    rate = job.machine.nic.slow_one(1.0 / finding.slowdown)
    if rate < SLOWEST:
        return None
    return _changed(job, degraded=[{"node": finding.hosts[0], "nic": nic, "rate": rate} for nic in nics])


def _changed(job: Job, **keys: object) -> Job:
    return load_job({**job.model_dump(mode="json", by_alias=True), **keys})
