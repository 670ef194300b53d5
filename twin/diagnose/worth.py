"""What mending culprits is worth: the twin runs the job with the faults and without."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from twin.description.job import Job
from twin.description.problems import DescriptionError
from twin.diagnose.finding import Finding
from twin.diagnose.observed import Observed, nodes_of
from twin.engine.simulate import MANY_CLASSES, simulate
from twin.strategies import load_job

SLOWEST = 1e-3
"""Share of its rate that a degraded NIC has at least; what is slower than one of several can be, several are."""
Faults = dict[str, list[dict[str, Any]]]
"""Keys of a job that say what is slow in it: `stragglers`, `degraded`."""


def worth(finding: Finding, observed: Observed, job: Job, healthy_seconds: float) -> Finding:
    """Add what a step would be shorter by without the fault, were it the only one, where the twin can have it."""
    return replace(finding, saved_share=saved_share((finding,), observed, job, healthy_seconds))


def saved_share(findings: Sequence[Finding], observed: Observed, job: Job, healthy_seconds: float) -> float | None:
    """Return what a step is shorter by without any of these faults; None where the twin cannot have one of them.

    What several are worth is no sum and no product of what each is by itself: of two ranks that are equally slow,
    which all others wait for, mending one saves nothing.
    """
    step = float(np.median(observed.step_seconds))
    loading = [each for each in findings if each.kind == "loading"]
    waits = max((each.seconds for each in loading if each.ranks), default=0.0)  # at once, or for each other
    waits += sum(each.seconds for each in loading if not each.ranks)
    left = 1.0 - min(1.0, waits / step)
    others = [each for each in findings if each.kind != "loading"]
    faults = [_fault(each, observed, job) for each in others]
    if any(fault is None for fault in faults):
        return None
    if not faults:
        return 1.0 - left
    try:
        changed = load_job({**job.model_dump(mode="json", by_alias=True), **_joined([f for f in faults if f])})
        seconds = simulate(changed, max_classes=MANY_CLASSES).step_seconds
    except DescriptionError:  # too many classes of ranks
        return None
    return 1.0 - left * min(1.0, healthy_seconds / seconds)


def _joined(faults: Sequence[Faults]) -> Faults:
    """Put faults into one job: of what two of them say is slow, as slow as the worse of them says."""
    ranks: dict[int, float] = {}
    nics: dict[tuple[int, int], float] = {}
    for fault in faults:
        for each in fault.get("stragglers", []):
            ranks[each["rank"]] = max(each["slowdown"], ranks.get(each["rank"], 1.0))
        for each in fault.get("degraded", []):
            place = (each["node"], each["nic"])
            nics[place] = min(each["rate"], nics.get(place, 1.0))
    return {
        "stragglers": [{"rank": rank, "slowdown": slowdown} for rank, slowdown in sorted(ranks.items())],
        "degraded": [{"node": node, "nic": nic, "rate": rate} for (node, nic), rate in sorted(nics.items())],
    }


def _fault(finding: Finding, observed: Observed, job: Job) -> Faults | None:
    if finding.kind in {"device", "host"}:
        return {"stragglers": [{"rank": rank, "slowdown": finding.slowdown} for rank in finding.ranks]}
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
    return {"degraded": [{"node": finding.hosts[0], "nic": nic, "rate": rate} for nic in nics]}
