"""A job: model + machine + grid + batch + options, and the rules they must keep together.

The same file is read by the twin and by the runtime. `grid: auto` and
`micro_sequences: auto` are resolved by `twin.study.choose` the way the authors of the 4D
algorithm chose theirs.
"""

from __future__ import annotations

from math import gcd
from typing import Annotated, Any, Literal

from pydantic import Field, StrictBool

from twin.description.degraded import Degraded, check_degraded
from twin.description.grid import AXES, Grid, divisors, nearest
from twin.description.machine import Machine
from twin.description.model import Model, Positive
from twin.description.placement import PlacementChoice, check_placement
from twin.description.problems import Problem
from twin.description.spec import Spec

MOST_BLOCKS = 40_000
"""Micro-steps × layers of a step that is written out op by op (some 110 ops a block)."""


class Batch(Spec):
    """How many sequences a step trains on, and how many at a time."""

    sequences: Positive
    """Sequences of the global batch."""
    micro_sequences: Positive | Literal["auto"] = "auto"
    """Sequences a rank works on at once; auto is the most that fit into memory."""


class Overlap(Spec):
    """Which collectives may run beside compute (OAR, ORS, OAG of arXiv 2502.08145)."""

    all_reduce: StrictBool = True
    """OAR: the input gradient's all-reduce hides behind the weight gradient's GEMM."""
    reduce_scatter: StrictBool = True
    """ORS: reduce-scatters over z run on while the backward pass goes on; the last of them are
    waited for at its end."""
    all_gather: StrictBool = True
    """OAG: the all-gather of the next weights is started ahead of their use."""
    prefetch_depth: Annotated[int, Field(ge=1, le=16, strict=True)] = 1
    """How many gather units ahead OAG gathers."""
    scatters_in_flight: Annotated[int, Field(ge=1, le=4096, strict=True)] | None = None
    """Reduce-scatters under way at once under ORS: when one more starts, the oldest is waited for,
    which frees its buffers. By default as many as two blocks start: 8 with `gather_unit: linear`,
    2 with `block`."""


class DataReduction(Spec):
    """How gradients are summed over the data axis."""

    mode: Literal["one_bucket", "overlapped", "sharded"] = "one_bucket"
    """one_bucket: after the backward pass (as published); overlapped: buckets start as the last
    micro-step's gradients become ready; sharded: optimizer states are split over data
    (reduce-scatter, update, all-gather)."""
    bucket_bytes: Annotated[float, Field(gt=0)] = 256 * 2.0**20
    """Least size of an overlapped bucket."""


class Straggler(Spec):
    """One slow device."""

    rank: Annotated[int, Field(ge=0, strict=True)]
    slowdown: Annotated[float, Field(ge=1, le=1000)]
    """How many times longer its compute takes."""


class Job(Spec):
    """What to train, on what, and how."""

    name: str = "job"
    model: Model
    machine: Machine
    ranks: Positive
    grid: Grid | Literal["auto"] = "auto"
    batch: Batch
    precision: Literal["bf16", "fp16", "fp32"] = "bf16"
    recompute: StrictBool = True
    """Activation checkpointing of every block."""
    overlap: Overlap = Overlap()
    cache_gathered_layers: Annotated[int, Field(ge=0, strict=True)] = 0
    """Keep the gathered weights of the first so many blocks from forward to backward."""
    gather_unit: Literal["linear", "block"] = "linear"
    """What one all-gather or reduce-scatter over z carries: one linear's weight, or all four of a
    block: fewer, larger messages, for libraries with slow starts such as gloo."""
    data_reduction: DataReduction = DataReduction()
    attention: Literal["flash", "fused_softmax", "plain"] = "flash"
    """flash: no score matrix in memory; fused_softmax: one kernel between two batched products
    (Megatron's); plain: a kernel each for scale, mask and softmax."""
    dropout: Annotated[float, Field(ge=0, lt=1)] = 0.0
    """Probability of dropout after attention and MLP, and on unfused attention's scores."""
    fused_elementwise: StrictBool = False
    """Bias, dropout and residual in one kernel (hand-written or compiled), as Megatron has them."""
    kernel_tuning: StrictBool = True
    """Time NN, NT and TN for each GEMM and keep the fastest (section 6 of the algorithm)."""
    clip_gradients: StrictBool = True
    library: str | None = None
    """Collective library; the machine's default if absent."""
    slowest_device: StrictBool = True
    """Equal devices differ: let all wait for the slowest one that so many devices are expected
    to contain (`variation.device_speed_spread` of the machine)."""
    stragglers: tuple[Straggler, ...] = ()
    placement: PlacementChoice = "contiguous"
    """Dragonfly groups of the job's nodes: as few as possible, or `{groups: 8, order: blocks}` (or
    `cyclic`): spread over that many."""
    degraded: tuple[Degraded, ...] = ()
    """NICs, links and global links below their rate, such as `{node: 17, nic: 0, rate: 0.5}`."""
    seed: Annotated[int, Field(ge=0, strict=True)] = 0
    """Of all that is random: device speeds, jitter and noise of the all-ranks engine; in the runtime
    weights, dropout and the order of samples."""
    train: dict[str, Any] = Field(default_factory=dict)
    """For the runtime only: data, optimizer, steps, checkpoints."""

    @property
    def element_bytes(self) -> int:
        """Bytes of one number in compute precision."""
        return 4 if self.precision == "fp32" else 2

    @property
    def concrete_grid(self) -> Grid:
        """The grid, which must not be `auto` any more."""
        if self.grid == "auto":
            raise ValueError("grid is auto; resolve the job first (twin.study.choose)")
        return self.grid

    @property
    def concrete_micro_sequences(self) -> int:
        """Sequences of one micro-step of one rank, which must not be `auto` any more."""
        if self.batch.micro_sequences == "auto":
            raise ValueError("micro_sequences is auto; resolve the job first (twin.study.choose)")
        return self.batch.micro_sequences

    @property
    def micro_steps(self) -> int:
        """Forward and backward passes in one step."""
        grid = self.concrete_grid
        return self.batch.sequences // (grid.data * grid.z * self.concrete_micro_sequences)

    @property
    def scatters_in_flight(self) -> int:
        """Reduce-scatters over z that may be under way at once."""
        if not self.overlap.reduce_scatter:
            return 0
        return self.overlap.scatters_in_flight or (2 if self.gather_unit == "block" else 8)

    @property
    def tokens_per_step(self) -> int:
        """Tokens of the global batch."""
        return self.batch.sequences * self.model.sequence


def check(job: Job) -> list[Problem]:
    """Return every rule that the job as a whole breaks."""
    machine, model = job.machine, job.model
    problems = []
    capacity = machine.nodes * machine.devices_per_node
    if job.ranks > capacity:
        problems.append(
            Problem(
                "ranks",
                f"{machine.name} has {capacity:,} devices ({machine.nodes:,} "
                f"nodes × {machine.devices_per_node}); use at most that many",
                job.ranks,
            )
        )
    problems += _check_heads(model)
    if job.library is not None and job.library not in machine.libraries:
        problems.append(Problem("library", f"{machine.name} has {', '.join(machine.libraries)}", job.library))
    if job.cache_gathered_layers > model.layers:
        problems.append(
            Problem(
                "cache_gathered_layers",
                f"the model has {model.layers} layers; use at most that many",
                job.cache_gathered_layers,
            )
        )
    for i, straggler in enumerate(job.stragglers):
        if straggler.rank in {s.rank for s in job.stragglers[:i]}:
            problems.append(Problem(f"stragglers.{i}.rank", "is given twice; keep one", straggler.rank))
        if straggler.rank >= job.ranks:
            problems.append(Problem(f"stragglers.{i}.rank", f"ranks are 0 to {job.ranks - 1}", straggler.rank))
    misplaced = check_placement(machine, job.ranks, job.placement)
    problems += misplaced
    if not misplaced:
        problems += check_degraded(machine, job.ranks, job.placement, job.degraded)
    if isinstance(job.grid, Grid):
        problems += check_grid(job, job.grid)
    return problems


def _check_heads(model: Model) -> list[Problem]:
    """Heads share hidden evenly; rotary positions turn pairs of a head's elements."""
    hidden, rotary = model.hidden, model.positions == "rotary"
    if rotary and hidden % 2:
        remedy = "rotary positions need an even head size, so an even hidden; or set positions to learned"
        return [Problem("model.hidden", remedy, hidden)]
    choices = [heads for heads in divisors(hidden) if not rotary or hidden // heads % 2 == 0]
    if model.heads in choices:
        return []
    rule = f"must divide hidden {hidden}" + (" into heads of even size" if rotary else "")
    remedy = f"{rule}; nearest is {nearest(model.heads, choices)}"
    return [Problem("model.heads", remedy, model.heads)]


def check_grid(job: Job, grid: Grid) -> list[Problem]:
    """Return the rules that one grid breaks for this job (section 3 of the algorithm)."""
    model = job.model
    problems = []
    if grid.ranks != job.ranks:
        inside = grid.z * grid.y * grid.x
        remedy = (
            f"set data to {job.ranks // inside}"
            if job.ranks % inside == 0
            else f"z·y·x = {inside} does not divide {job.ranks}: choose axes among its divisors "
            f"{_some(divisors(job.ranks))}"
        )
        problems.append(Problem("grid", f"has {grid.ranks} ranks ({grid}), but ranks is {job.ranks}; {remedy}"))
    rules = (
        ("x", grid.x, model.hidden, f"hidden {model.hidden}"),
        (
            "y",
            grid.y,
            gcd(model.hidden, model.heads, model.mlp_hidden),
            f"hidden {model.hidden}, heads {model.heads} and MLP width {model.mlp_hidden}",
        ),
    )
    for axis, size, total, what in rules:
        if total % size:
            problems.append(
                Problem(f"grid.{axis}", f"must divide {what}; nearest is {nearest(size, divisors(total))}", size)
            )
    replicas = grid.data * grid.z
    micro = job.batch.micro_sequences
    if job.batch.sequences % replicas:
        below = job.batch.sequences // replicas * replicas
        near = below if below and below + replicas > 2 * job.batch.sequences - below else below + replicas
        problems.append(
            Problem(
                "batch.sequences", f"must be a multiple of data·z = {replicas}; nearest is {near}", job.batch.sequences
            )
        )
    elif micro != "auto" and job.batch.sequences % (replicas * micro):
        local = job.batch.sequences // replicas
        problems.append(
            Problem(
                "batch.micro_sequences",
                f"must divide the {local} sequences of each rank; nearest is {nearest(micro, divisors(local))}",
                micro,
            )
        )
    elif micro != "auto" and (steps := job.batch.sequences // (replicas * micro)) * model.layers > MOST_BLOCKS:
        problems.append(
            Problem(
                "batch.micro_sequences",
                f"makes {steps:,} micro-steps of {model.layers} layers, "
                f"more than the {MOST_BLOCKS:,} blocks that can be simulated; use larger ones",
                micro,
            )
        )
    return problems


def _some(numbers: list[int], most: int = 12) -> str:
    shown = ", ".join(map(str, numbers[:most]))
    return shown if len(numbers) <= most else shown + ", …"


__all__ = ["AXES", "Batch", "DataReduction", "Degraded", "Job", "Overlap", "Straggler", "check", "check_grid"]
