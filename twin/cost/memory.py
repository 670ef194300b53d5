"""Memory of the rank that needs most, by category, against the device's capacity."""

from __future__ import annotations

from dataclasses import dataclass, field

from twin.description.grid import divisors
from twin.description.job import Job
from twin.description.offload import Tier
from twin.description.units import format_memory
from twin.strategies import check_grid, strategy_of


@dataclass(frozen=True)
class TierUse:
    """Bytes of the ranks of one node in a tier beyond their devices, by category, and what the node offers."""

    by_category: dict[str, float]
    capacity_bytes: float | None
    """None if the machine does not say."""

    @property
    def node_bytes(self) -> float:
        """All categories together."""
        return sum(self.by_category.values())

    @property
    def fits(self) -> bool:
        """True if the node has so much, or nobody knows how much it has."""
        return self.capacity_bytes is None or self.node_bytes <= self.capacity_bytes


@dataclass(frozen=True)
class MemoryUse:
    """Peak bytes of one rank by category, and what the device offers."""

    by_category: dict[str, float]
    capacity_bytes: float
    """Device memory less what context, allocator and libraries take."""
    tiers: dict[Tier, TierUse] = field(default_factory=dict)
    """What lies beyond the devices of a node."""

    @property
    def per_rank_bytes(self) -> float:
        """All categories together."""
        return sum(self.by_category.values())

    @property
    def fits(self) -> bool:
        """True if the job can run."""
        return self.fits_device and self.full is None

    @property
    def fits_device(self) -> bool:
        """True if what lies on the device has room there."""
        return self.per_rank_bytes <= self.capacity_bytes

    @property
    def full(self) -> Tier | None:
        """The tier that has too little room, if there is one."""
        return next((tier for tier, use in self.tiers.items() if not use.fits), None)

    @property
    def largest_category(self) -> str:
        """The category that needs most."""
        return max(self.by_category, key=lambda name: self.by_category[name])


def memory_use(job: Job) -> MemoryUse:
    """Count the peak memory of a rank: of the role that needs most."""
    strategy, device = strategy_of(job), job.machine.device
    most = max(strategy.memories(job), key=lambda by_category: sum(by_category.values()))
    capacity = float(device.memory_bytes - device.reserved_memory_bytes)
    return MemoryUse(dict(most), capacity, _tiers(job))


def _tiers(job: Job) -> dict[Tier, TierUse]:
    """Count what the ranks of a node hold beyond their devices; of several roles each node has the fullest."""
    strategy, machine = strategy_of(job), job.machine
    ranks, found = min(job.ranks, machine.devices_per_node), dict[Tier, TierUse]()
    room: dict[Tier, float | None] = {
        # a job whose devices are not CPUs is refused before if its machine says nothing of them
        "host": None if machine.host is None else float(machine.host.memory_bytes),
        "disk": None if machine.disk is None else float(machine.disk.drives * machine.disk.capacity_bytes),
    }
    for role in strategy.roles(job):
        for tier, of in strategy.tiers(job, role).items():
            use = TierUse({name: ranks * size for name, size in of.items()}, room[tier])
            if tier not in found or use.node_bytes > found[tier].node_bytes:
                found[tier] = use
    return found


def largest_micro_sequences(job: Job) -> int | None:
    """Return the largest micro-batch that fits into memory, or None; under a pipeline the smallest that may be.

    Of few micro-batches a pipeline stands empty for most of the time, and its schedule may have rules for their number.
    """
    grid, strategy = job.concrete_grid, strategy_of(job)
    choices = divisors(job.batch.sequences // grid.replicas)
    for micro in choices if grid.depth > 1 else reversed(choices):
        placed = with_micro_sequences(job, micro)
        if not strategy.check(placed) and memory_use(placed).fits:
            return micro
    return None


def with_micro_sequences(job: Job, micro: int) -> Job:
    """Return the same job with another micro-batch."""
    return job.model_copy(update={"batch": job.batch.model_copy(update={"micro_sequences": micro})})


def tier_advice(tier: Tier, use: TierUse) -> str:
    """Say what lies in a tier that has too little room, and what would help."""
    assert use.capacity_bytes is not None, tier
    over = format_memory(use.node_bytes - use.capacity_bytes)
    most = max(use.by_category, key=lambda name: use.by_category[name])
    where, remedy = (
        ("host has", "lay it on disk, or use more nodes") if tier == "host" else ("drives have", "use more nodes")
    )
    return f"needs {over} more than a node's {where}, most of it for {most}; {remedy}"


def advice(job: Job, use: MemoryUse) -> str:
    """Say in one sentence which category is too much and what would fit."""
    if (tier := use.full) is not None and use.fits_device:
        return tier_advice(tier, use.tiers[tier])
    over = format_memory(use.per_rank_bytes - use.capacity_bytes)
    head = f"needs {over} more than the device has, most of it for {use.largest_category}"
    own = job.concrete_micro_sequences
    if (micro := _fitting(job, own)) is not None:
        return f"{head}; micro_sequences {micro} would fit"
    if not job.recompute:
        again = job.model_copy(update={"recompute": True})
        if (micro := _fitting(again)) is not None:
            return f"{head}; recompute: true with micro_sequences {micro} would fit"
    strategy = strategy_of(job)
    for words, other in strategy.advice(job):
        if (micro := _fitting(other, own)) is not None:
            smaller = "" if micro == own else f" and micro_sequences {micro}"
            return f"{head}; {words}{smaller} would fit"
    return f"{head}; {strategy.why_not(job)}"


def _fitting(job: Job, own: int | None = None) -> int | None:
    """Return a micro-batch that fits and breaks no rule: with `own` that one or a smaller one; None if none does.

    Of several the largest, under a pipeline the smallest.
    """
    grid = job.concrete_grid
    choices = [m for m in divisors(job.batch.sequences // grid.replicas) if own is None or m <= own]
    for micro in sorted(choices, key=lambda m: (m != own, m if grid.depth > 1 else -m)):
        placed = with_micro_sequences(job, micro)
        if not check_grid(placed) and memory_use(placed).fits:
            return micro
    return None
