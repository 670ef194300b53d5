"""Name the culprit: what one finding explains is no evidence for another."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np

from twin.compare.jobs import differences
from twin.compare.side import Side, read_side
from twin.description.job import Job
from twin.description.problems import DescriptionError, fail
from twin.description.strangers import refuse_paths
from twin.description.train import without_training
from twin.diagnose.axes import CHANGE, MODEL_ERROR, is_calibrated, slow_axes
from twin.diagnose.devices import MIN_RANKS, slow_devices
from twin.diagnose.expected import Expected, expected, from_reference
from twin.diagnose.finding import CERTAIN, Diagnosis, Finding, NotLocated, Yardstick, some
from twin.diagnose.interference import allowance, interference_of, is_explained
from twin.diagnose.links import slow_links
from twin.diagnose.loading import slow_loading
from twin.diagnose.observed import Ints, Observed, from_side, groups_of_ranks
from twin.diagnose.probe import Probe, read_probe
from twin.diagnose.worth import saved_share, worth
from twin.engine.simulate import MANY_CLASSES, simulate
from twin.strategies import load_job

MIN_HOSTS = 8
"""Up to so many hosts, most groups cross the slow host's link, and few are left to hold them against."""
MIN_STEPS = 3
"""The median of fewer steps is moved by a single one that was disturbed."""


def diagnose(
    observed: Observed, job: Job, should: Expected, probe: Probe | None = None, reference: Observed | None = None
) -> Diagnosis:
    """Name the culprits, with what each is worth, and say what this rests on.

    Args:
        observed: what the run took.
        job: what it ran, on the machine as it should be.
        should: what the twin says that a healthy step takes.
        probe: how fast messages between its hosts were.
        reference: an earlier, healthy run on the same ranks.
    """
    named, beside = _looked_for(observed, job, should, probe, reference)
    found = [worth(each, observed, job, should.step_seconds) for each in named]
    together = found[0].saved_share if len(found) == 1 else saved_share(named, observed, job, should.step_seconds)
    found.sort(key=lambda each: (-(each.saved_share or 0.0), -each.seconds, each.kind, each.ranks))
    return Diagnosis(
        tuple(found),
        (*_notes(observed, job, probe, reference), *_beside_collectives(named, beside)),
        len(observed.step_seconds),
        observed.grid.ranks,
        float(np.median(observed.step_seconds)),
        should.step_seconds,
        _not_located(together if found else 0.0, observed, job, should, reference),
        together if found else None,
    )


def _not_located(
    saved: float | None, observed: Observed, job: Job, should: Expected, reference: Observed | None
) -> NotLocated | None:
    """Say how much longer a step is than it should be, if that is far more than the model errs, or steps differ.

    Without what findings are worth together, `saved` of a step; where the twin cannot say that, nothing is told.
    """
    if saved is None:
        return None
    left = float(np.median(observed.step_seconds)) * (1.0 - saved)
    usual = should.step_seconds if reference is None else float(np.median(reference.step_seconds))
    if usual <= 0 or left < (MODEL_ERROR if reference is None else CHANGE) * usual:
        return None
    guessed = reference is None and not is_calibrated(job.machine)
    by: Yardstick = "the model" if reference is None else "the reference"
    return NotLocated(left / usual, left - usual, by, guessed)


def culprits(
    observed: Observed, job: Job, should: Expected, probe: Probe | None = None, reference: Observed | None = None
) -> list[Finding]:
    """Name the culprits; arguments as `diagnose` has them."""
    return _looked_for(observed, job, should, probe, reference)[0]


def _looked_for(
    observed: Observed, job: Job, should: Expected, probe: Probe | None, reference: Observed | None
) -> tuple[list[Finding], list[Finding]]:
    """Look for every kind of culprit in turn; returns them, and devices that long collectives explain.

    A rank without its share of the processor is slow in compute, loads slowly, and its messages are late too: so
    devices come first, and links are judged without them. But those that are slowed by collectives beside their
    compute are evidence of a link. What a slow link explains is not told again as a slow axis.
    """
    usual = should if reference is None else from_reference(reference)
    devices, beside = _devices(observed, job, usual, reference)
    slow = {rank for each in devices for rank in each.ranks}
    loading = [
        each
        for each in slow_loading(observed)
        if each.confidence >= CERTAIN and not (each.ranks and slow >= set(each.ranks))
    ]
    links = slow_links(observed, usual, nic_of_rank(observed, job), probe, slow)
    axes = []
    if not links:
        around = _beside(observed, slow)
        if reference is not None:
            axes = slow_axes(observed, usual, around, by="the reference")
        elif is_calibrated(job.machine):
            axes = slow_axes(observed, should, around)
    return [*devices, *loading, *links, *axes], beside


def _devices(
    observed: Observed, job: Job, usual: Expected, reference: Observed | None
) -> tuple[list[Finding], list[Finding]]:
    """Find slow devices, and apart from them those that are no slower than their long collectives may make them."""
    found = slow_devices(observed, reference)
    interference = interference_of(job.compute_slowdown)
    allowed = allowance(observed, usual, interference) if found else None
    slow: list[Finding] = []
    beside: list[Finding] = []
    for each in found:
        explained = allowed is not None and is_explained(each, allowed, interference)
        (beside if explained else slow).append(each)
    return slow, beside


def diagnose_trace(path: Path, machine: str | None = None, reference: Path | None = None) -> tuple[Diagnosis, Job]:
    """Read a trace and diagnose it.

    `machine` (a name or a file) is taken in place of the trace's own; `reference` is the trace of an
    earlier run on the same ranks. Raises DescriptionError if a trace is damaged or lacks ranks.
    """
    side = read_side(path, "trace")
    job = _job(side, machine)
    before = None
    if reference is not None:
        earlier = read_side(reference, "reference")
        before = from_side(earlier, _job(earlier, machine))
        _check_alike(side, earlier, from_side(side, job), before)
    return diagnose_side(side, job, before), job


def _check_alike(side: Side, earlier: Side, observed: Observed, before: Observed) -> None:
    """Refuse a reference of other work, or of other hosts."""
    if different := differences(earlier.work, side.work):
        raise DescriptionError(different, f"--reference {earlier.origin} is of another job")
    hosts = [(each.host_names, each.host_of_rank.tolist()) for each in (before, observed)]
    if hosts[0] != hosts[1]:
        raise fail("--reference", "is of ranks on other hosts", earlier.origin)


def diagnose_side(side: Side, job: Job, reference: Observed | None = None) -> Diagnosis:
    """Diagnose a trace that was read; raises DescriptionError if it lacks ranks."""
    observed = from_side(side, job)
    return diagnose(observed, job, expectation(job), _probe(side, observed), reference)


def _probe(side: Side, observed: Observed) -> Probe | None:
    return read_probe(side.manifest, int(observed.host_of_rank.max()) + 1, side.origin)


def _job(side: Side, machine: str | None) -> Job:
    """The job as it should run: what it was told to be slow is to be found, not expected.

    Of `train:` what decides predictions is kept: an older version may have known other keys there.
    """
    raw = without_training(side.manifest["job"])
    if machine is not None:
        raw["machine"] = machine
    else:
        refuse_paths(side.origin, raw)
    return load_job({**raw, "stragglers": [], "degraded": []})


def expectation(job: Job) -> Expected:
    """Return what the twin says that a healthy step of the job takes."""
    return expected(simulate(job, max_classes=MANY_CLASSES))


def nic_of_rank(observed: Observed, job: Job) -> Ints:
    """Number the NIC that serves each rank, (ranks,), alike on all hosts.

    Ranks fill the devices of their host in order; where a host has not as many ranks as the machine
    has devices in a node, nobody knows, and all are taken to share one.
    """
    devices = job.machine.devices_per_node
    of_device = np.zeros(devices, dtype=np.int64)
    for number, served in enumerate(job.machine.nic.devices):
        of_device[list(served)] = number
    found = np.zeros(observed.grid.ranks, dtype=np.int64)
    for host in np.unique(observed.host_of_rank).tolist():
        here = np.flatnonzero(observed.host_of_rank == host)
        if len(here) == devices:
            found[here] = of_device
    return found


def _beside(observed: Observed, slow: Collection[int]) -> set[int]:
    """Ranks that share a group with a slow one: inside collectives they wait for it."""
    found = set(slow)
    if slow:
        for axis in observed.axes:
            group = groups_of_ranks(observed.grid, axis)
            found |= set(np.flatnonzero(np.isin(group, group[list(slow)])).tolist())
    return found


def _beside_collectives(named: list[Finding], beside: list[Finding]) -> Iterator[str]:
    """Say who computes longer beside long collectives, where no link was found that makes them long."""
    if beside and not any(each.kind in {"link", "axis"} for each in named):
        ranks = tuple(sorted(rank for each in beside for rank in each.ranks))
        longest = max(each.slowdown for each in beside)
        yield (
            f"compute of rank{'s' if len(ranks) > 1 else ''} {some(ranks)} takes up to {100 * (longest - 1):.0f} % "
            "longer, no more than collectives beside it may explain that take longer there"
        )


def _notes(observed: Observed, job: Job, probe: Probe | None, reference: Observed | None) -> list[str]:
    """What could not be looked at, or only badly."""
    notes, hosts = [], len(np.unique(observed.host_of_rank))
    if (ranks := observed.grid.ranks) < MIN_RANKS:
        notes.append(f"{ranks} rank{'s are' if ranks > 1 else ' is'} too few to tell which is slow")
    if reference is None and not is_calibrated(job.machine):
        notes.append(
            f"constants of {job.machine.name} are assumed, so what all ranks share is not judged; calibrate "
            "the machine, or give a reference"
        )
    if observed.loading is None:
        notes.append("the trace does not say how long data took to load")
    if 1 < hosts <= MIN_HOSTS and (probe is None or probe.pairs(()) is None):
        why = "did not probe their links" if probe is None else "are too few for a probe of their links"
        notes.append(f"{hosts} hosts {why}: collectives alone may not tell whose is slow")
    if (steps := len(observed.step_seconds)) < MIN_STEPS:
        notes.append(f"only {steps} step{'s' if steps > 1 else ''}; with more, chance is told better from cause")
    return notes
