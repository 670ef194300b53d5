"""What a run's collectives took, and what the twin's library model says about them."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Any

import numpy as np

from dashboards.catalog import Catalog, Entry
from dashboards.events import Events, events_of
from dashboards.members import Members, job_of, members_of
from dashboards.standing import EACH_ONE, Weights, over, per_event, quantile, seconds_by_name, total_of, weights_of
from dashboards.waiting import held, queues
from twin.compare.kinds import MESSAGE, OWN, collective_kind
from twin.cost.collective import collective_cost
from twin.cost.placement import Placement
from twin.cost.tiers import host_link_rate
from twin.description.grid import Axis
from twin.description.job import Job
from twin.description.library import CollectiveKind
from twin.engine.priced import Priced
from twin.engine.program import START
from twin.engine.single import BUS_FACTOR

CURVE_BYTES = tuple(float(2**n) for n in range(10, 33))
LINK_NAMES = {
    "nic": "NIC",
    "nic_out": "NIC, messages out",
    "nic_in": "NIC, messages in",
    "link": "link inside a node",
    "port": "switch port",
    "uplink": "global links of a group",
    "memory": "memory of a host's socket",
    "drives": "drives of a node",
}
HOST_LINK = {
    "host link, down": ("to_host", "cast_to_host", "device_to_disk"),
    "host link, up": ("to_device", "cast_to_device", "disk_to_device"),
}
"""Copies that cross the link between a device and its host, by direction: no rank shares it with another."""

MICRO_BATCH = re.compile(r"^(messages/)micro\d+/")


@dataclass(frozen=True)
class Row:
    """Collectives of one name and size, messages of all micro-batches together.

    Times are medians over ranks, layers and steps, nanoseconds; totals are over all of them. A rank counts as often as
    it stands for ranks of the job.
    """

    name: str
    kind: str
    axis: str
    stream: str
    members: int | None
    """Of a group; None where nobody knows."""
    bytes: float
    count: float
    """Of one rank in one step."""
    transfer_ns: float
    transfer_p90_ns: float
    skew_ns: float
    """For which the rank stands still until the last member comes."""
    queue_ns: float
    """From a rank's own arrival until what it has begun before on the same stream is done."""
    total_transfer_ns: float
    total_skew_ns: float
    total_queue_ns: float
    ahead_ns: float = 0.0
    """From a rank's arrival until the last member comes, while it does other things: it has asked ahead of its need."""
    total_ahead_ns: float = 0.0

    @property
    def bus_bytes_per_second(self) -> float | None:
        """Bus bandwidth of the median transfer, of a message its bytes a second.

        None of what uses no bus, and where nobody knows over how many ranks it runs.
        """
        if self.members is None or self.members < 2 or not self.transfer_ns:
            return None
        share = 1.0 if self.kind == MESSAGE else BUS_FACTOR.get(self.kind, 1.0) * (self.members - 1) / self.members
        return share * self.bytes / (self.transfer_ns / 1e9)


@dataclass(frozen=True)
class Collectives:
    """All collectives of a run by name and size."""

    rows: tuple[Row, ...]
    ranks: int
    """For which those that were written stand."""
    steps: int
    over: str = "ranks"
    """Whose times these are: `ranks`, or such as `4 of 64 ranks` where they do not stand for the others."""
    peers_seconds: float | None = None
    """For which a rank of all stands still in a step, as a simulation wrote it down, where these are not of all."""

    @property
    def transfer_seconds_per_rank(self) -> float:
        """Of one rank in one step, overlapping or not."""
        return sum(row.total_transfer_ns for row in self.rows) / 1e9 / max(self.ranks * self.steps, 1)

    @property
    def skew_seconds_per_rank(self) -> float:
        """Of one rank in one step, which stands still until last members come."""
        return sum(row.total_skew_ns for row in self.rows) / 1e9 / max(self.ranks * self.steps, 1)

    @property
    def queued_seconds_per_rank(self) -> float:
        """Of one rank in one step, in which collectives, copies and updates queue behind what it began before."""
        return sum(row.total_queue_ns for row in self.rows) / 1e9 / max(self.ranks * self.steps, 1)

    @property
    def ahead_seconds_per_rank(self) -> float:
        """Of one rank in one step, in which what was asked for ahead waits for last members and nobody for it."""
        return sum(row.total_ahead_ns for row in self.rows) / 1e9 / max(self.ranks * self.steps, 1)


def read_collectives(catalog: Catalog, entry: Entry) -> Collectives:
    """Group the collectives of a run, or take what was found before. Raises DescriptionError."""

    def made() -> Collectives:
        events = events_of(catalog, entry)
        found = collectives_of(events, members_of(entry, events), weights_of(catalog, entry, events))
        whose = over(entry, len(events.ranks), found.ranks)
        figures = entry.head.get("figures")
        peers = {}
        if whose != "ranks" and entry.kind == "predicted" and isinstance(figures, dict):
            peers = seconds_by_name(figures.get("peers_by_axis"))
        return replace(found, over=whose, peers_seconds=sum(peers.values()) if peers else None)

    return catalog.kept(entry, "collectives", made)


def collectives_of(events: Events, members: Members, weights: Weights = EACH_ONE) -> Collectives:
    """Group a run's collectives by name, stream and size; `members` says over how many ranks a stream's run.

    `weights` says for how many ranks of the job each written one stands, one each where it does not.
    """
    ranks, steps, counts = total_of(events, weights), len(events.steps), per_event(events, weights)
    chosen = np.flatnonzero(events.kind.are("collective"))
    if not len(chosen):
        return Collectives((), ranks, steps)
    queued = queues(events, chosen)
    all_queues, all_held = np.zeros((2, len(events)), dtype=np.int64)
    all_queues[chosen], all_held[chosen] = queued, held(events, chosen, queued)
    names = [without_micro_batch(word) for word in events.name.words]
    number = {name: code for code, name in enumerate(dict.fromkeys(names))}
    name_code = np.array([number[name] for name in names])[events.name.code[chosen]]
    keys = np.stack([name_code, events.stream.code[chosen]], axis=1).astype(np.float64)
    _, inverse = np.unique(np.column_stack([keys, events.bytes[chosen]]), axis=0, return_inverse=True)
    order = np.argsort(inverse.reshape(-1), kind="stable")
    bounds = np.flatnonzero(np.diff(inverse.reshape(-1)[order], prepend=-1, append=-2))
    rows = []
    for a, b in pairwise(bounds):
        at = chosen[order[a:b]]
        times = counts[at]
        transfer = events.end_ns[at] - events.start_ns[at]
        waiting = np.maximum(events.start_ns[at] - events.arrival_ns[at], 0)
        first = int(at[0])
        axis, name = events.axis[first], without_micro_batch(events.name[first])
        kind = collective_kind(name, axis)
        queue = waiting if axis in OWN else all_queues[at]
        skew = all_held[at] if axis not in OWN else np.zeros_like(queue)
        ahead = waiting - queue - skew
        rows.append(
            Row(
                name=name,
                kind=kind,
                axis=axis,
                stream=events.stream[first],
                members=1 if axis in OWN else 2 if kind == MESSAGE else members.get(events.stream[first]),
                bytes=float(events.bytes[first]),
                count=float(times.sum()) / max(ranks * steps, 1),
                transfer_ns=quantile(transfer, times, 0.5),
                transfer_p90_ns=quantile(transfer, times, 0.9),
                skew_ns=quantile(skew, times, 0.5),
                queue_ns=quantile(queue, times, 0.5),
                total_transfer_ns=float(transfer @ times),
                total_skew_ns=float(skew @ times),
                total_queue_ns=float(queue @ times),
                ahead_ns=quantile(ahead, times, 0.5),
                total_ahead_ns=float(ahead @ times),
            )
        )
    return Collectives(tuple(sorted(rows, key=lambda r: -r.total_transfer_ns)), ranks, steps)


def without_micro_batch(name: str) -> str:
    """Return the name that messages of one chunk have in common, whichever their micro-batch.

    >>> without_micro_batch("messages/micro12/B2/receive"), without_micro_batch("qkv/all_gather_z")
    ('messages/B2/receive', 'qkv/all_gather_z')
    """
    return MICRO_BATCH.sub(r"\1", name)


def predicted_curve(entry: Entry) -> list[dict[str, Any]]:
    """Bus bandwidth against bytes of each collective and axis, alone on this run's placement."""
    job = job_of(entry)
    if job is None or job.grid == "auto":
        return []
    library = job.machine.libraries[job.library or job.machine.library]
    work = Priced.of(job)
    used = dict.fromkeys((kind, work.cast.communicators[c]) for c, kind, _ in work.calls if kind in BUS_FACTOR)
    # a message has no bus; communicators of one axis may have groups of their own
    drawn: dict[tuple[CollectiveKind, Axis, Placement], int] = {}
    for kind, communicator in used:
        groups = work.groups[communicator.partition]
        drawn.setdefault((kind, communicator.axis, groups.placements[groups.pattern[0]]), groups.members.shape[1])
    curves = []
    for (kind, axis, placement), members in drawn.items():
        found = [collective_cost(job.machine, library, kind, size, placement) for size in CURVE_BYTES]
        factor = BUS_FACTOR[kind] * (members - 1) / members
        others = sum(one[:2] == (kind, axis) for one in drawn) > 1
        nodes = f"{placement.node_count} {'node' if placement.node_count == 1 else 'nodes'}"
        curves.append(
            {
                "kind": kind,
                "axis": axis,
                "members": members,
                "name": f"{kind}, {axis}" + (f", {members} members on {nodes}" if others else ""),
                "bytes": list(CURVE_BYTES),
                "bus": [factor * size / one.seconds for size, one in zip(CURVE_BYTES, found, strict=True)],
                "algorithm": [f"{one.algorithm}, {one.protocol}" for one in found],
            }
        )
    return curves


def link_loads(entry: Entry) -> list[dict[str, Any]]:
    """Bytes that a step moves over each kind of link, and for how much of the step that is work at full rate."""
    job, figures = job_of(entry), entry.head.get("figures")
    step = figures.get("step_seconds") if isinstance(figures, dict) else None
    if job is None or job.grid == "auto" or not isinstance(step, int | float) or step <= 0:
        return []
    work = Priced.of(job)
    prices, calls = work.prices, np.zeros(len(work.calls))
    for program in work.programs:
        started = [t for c, t in zip(program.code, program.target, strict=True) if c == START]
        # members of a group start a call together: what several roles have counts once
        calls = np.maximum(calls, np.bincount(started, minlength=len(calls)))
    moved = np.zeros(len(prices.capacity))
    for axis, edges in prices.edges.items():
        per_label = [sum(size * calls[call] for call, size in label.items()) for label in prices.label_bytes[axis]]
        if len(edges.label):
            np.add.at(moved, edges.resource, np.array(per_label)[edges.label])
    rows = []
    kinds = np.array([prices.kind_of(r) for r in range(len(moved))]) if len(moved) < 2_000_000 else np.array([])
    for kind, name in LINK_NAMES.items():
        at = np.flatnonzero((kinds == kind) & (moved > 0)) if len(kinds) else np.zeros(0, dtype=np.int64)
        if len(at):
            worst = at[np.argmax(moved[at] / prices.capacity[at])]
            rows.append(
                {
                    "link": name,
                    "loaded ones": len(at),
                    "a step, mean (B)": float(moved[at].mean()),
                    "a step, most (B)": float(moved[at].max()),
                    "rate (B/s)": float(prices.capacity[worst]),
                    "share of the step (%)": round(100 * float(moved[worst] / prices.capacity[worst]) / step, 2),
                }
            )
    return [*rows, *_host_links(job, work, step)]


def _host_links(job: Job, work: Priced, step_seconds: float) -> list[dict[str, Any]]:
    """The same of the links between devices and their hosts, which are each of one device."""
    rows = []
    sizes = np.array([size for _, _, size in work.calls])
    kinds = [kind for _, kind, _ in work.calls]
    for name, crossing in HOST_LINK.items():
        chosen = np.array([kind in crossing for kind in kinds])
        if not chosen.any():
            continue
        moved = []
        for program in work.programs:  # of each role
            started = [t for c, t in zip(program.code, program.target, strict=True) if c == START]
            moved.append(float((np.bincount(started, minlength=len(sizes)) * sizes)[chosen].sum()))
        rate = host_link_rate(job.machine, down=name.endswith("down"))
        rows.append(
            {
                "link": name,
                "loaded ones": job.ranks,
                "a step, mean (B)": float(np.mean(moved)),
                "a step, most (B)": max(moved),
                "rate (B/s)": rate,
                "share of the step (%)": round(100 * max(moved) / rate / step_seconds, 2),
            }
        )
    return rows
