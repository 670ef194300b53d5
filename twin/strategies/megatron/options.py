"""What a search varies besides the grid, and which variants differ on a grid."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from itertools import product
from typing import Any, Literal, get_args

from twin.description.attention import UNFUSED
from twin.description.grid import Axes, divisors
from twin.description.job import Job
from twin.strategies.megatron.job import Exchange, MegatronJob, Schedule
from twin.strategies.megatron.orders import problems
from twin.strategies.megatron.rules import check_context, evenly
from twin.strategies.strategy import Variant

VARIED = ("recompute", "sharding", "schedule", "sequence", "context")
Recompute = Literal["none", "attention", "full"]
RECOMPUTED: dict[Recompute, str] = {
    "none": "no recomputation",
    "attention": "attention recomputed",
    "full": "recomputed",
}
ORDERS: tuple[Schedule, ...] = ("1f1b", "interleaved", "zb_h1", "zb_v")
"""Those that a search tries; GPipe and DualPipe hold more and are no faster."""
FINER = ("recompute_layers", "recompute_keeps")
"""What a job that recomputes blocks may say further."""
MOST_CHUNKS = 3
"""Numbers of chunks that a search tries, the most first."""


@dataclass(frozen=True, slots=True)
class Options(Variant):
    """The values of one candidate."""

    recompute: Recompute
    distributed_optimizer: bool
    schedule: Schedule
    chunks: int
    sequence_parallel: bool
    context_exchange: Exchange
    overlap_gradients: bool
    overlap_parameters: bool
    stage_layers: tuple[int, ...] | None = None
    flavour: str = "megatron"
    """The job's; it is not varied, but decides what the others mean."""

    @classmethod
    def of(cls, job: MegatronJob) -> Options:
        """Read them from a job."""
        recompute: Recompute = "full" if job.recompute else "attention" if job.recompute_attention else "none"
        return cls(
            recompute,
            job.distributed_optimizer,
            job.schedule,
            job.chunks,
            job.sequence_parallel,
            job.context_exchange,
            job.overlap_gradients,
            job.overlap_parameters,
            job.stage_layers,
            job.flavour,
        )

    @classmethod
    def read(cls, raw: Mapping[str, Any]) -> Options:
        """Read what `as_json` wrote; raises ValueError naming the key that is wrong."""
        kinds: dict[str, type] = {
            "recompute": str,
            "distributed_optimizer": bool,
            "schedule": str,
            "chunks": int,
            "sequence_parallel": bool,
            "context_exchange": str,
            "overlap_gradients": bool,
            "overlap_parameters": bool,
        }
        for key, kind in kinds.items():
            if type(raw.get(key)) is not kind:
                raise ValueError(f"options.{key}: expected a {kind.__name__}")
        layers = raw.get("stage_layers")  # of a search before there were any it is absent
        if layers is not None and not (isinstance(layers, list | tuple) and all(type(n) is int for n in layers)):
            raise ValueError("options.stage_layers: expected numbers of layers")
        flavour = raw.get("flavour", "megatron")
        if flavour not in get_args(MegatronJob.model_fields["flavour"].annotation):
            raise ValueError("options.flavour: is no flavour of megatron")
        known: dict[str, Any] = {key: raw[key] for key in kinds}
        return cls(**known, stage_layers=None if layers is None else tuple(layers), flavour=flavour)

    def but_recomputation(self) -> tuple[Hashable, int]:
        """Nothing computed again, attention's scores, or whole blocks."""
        levels: tuple[Recompute, ...] = get_args(Recompute)
        return replace(self, recompute="none"), levels.index(self.recompute)

    def as_json(self) -> dict[str, Any]:
        """Return the options as they stand in what a search prints."""
        return asdict(self)

    def words(self) -> dict[str, str]:
        """Say the value of each option in a word or two, by name."""
        return {
            "recompute": RECOMPUTED[self.recompute],
            "distributed_optimizer": "weights sharded"
            if self.flavour == "torch"
            else "optimizer sharded"
            if self.distributed_optimizer
            else "replicas",
            "schedule": self.schedule
            + (f" of {self.chunks}" if self.schedule == "interleaved" else "")
            + (" with stage_layers" if self.stage_layers else ""),
            "sequence_parallel": "sequence parallel" if self.sequence_parallel else "no sequence parallelism",
            "context_exchange": self.context_exchange.replace("_", " "),
        }

    def words_on(self, grid: Axes) -> dict[str, str]:
        """Say the value of each option whose ranks there are."""
        sizes = dict(zip(grid.axes, grid.sizes, strict=True))
        needs = {
            "distributed_optimizer": sizes["data"] * sizes["context"],
            "schedule": sizes["pipeline"],
            "sequence_parallel": sizes["tensor"],
            "context_exchange": sizes["context"],
        }
        return {name: word for name, word in self.words().items() if needs.get(name, 2) > 1}

    def columns(self) -> dict[str, str | int]:
        """Return the options as columns of a table: titles and values."""
        return {
            "recompute": self.recompute,
            "optimizer": "sharded" if self.distributed_optimizer or self.flavour == "torch" else "whole",
            "schedule": self.schedule,
            "chunks": self.chunks,
            "stages": "equal" if self.stage_layers is None else " ".join(map(str, self.stage_layers)),
            "sequence parallel": "on" if self.sequence_parallel else "off",
            "context": self.context_exchange,
        }

    def settle(self, raw: dict[str, Any]) -> None:
        """Put the options into the keys of a job file, where it has them or where they are not the default."""
        for key, value in self._keys().items():
            if key in raw or value != MegatronJob.model_fields[key].default:
                raw[key] = list(value) if isinstance(value, tuple) else value
        for key in self._without:
            raw.pop(key, None)

    def on(self, job: Job) -> MegatronJob:
        """Return the job with these options."""
        assert isinstance(job, MegatronJob)
        plain = {key: MegatronJob.model_fields[key].default for key in self._without}
        return job.model_copy(update={**self._keys(), **plain})

    @property
    def _without(self) -> tuple[str, ...]:
        """Keys that mean nothing with these options."""
        finer = () if self.recompute == "full" else FINER
        return (*finer, *(() if self.sequence_parallel else ("tensor_overlap",)))

    def _keys(self) -> dict[str, Any]:
        return {
            "recompute": self.recompute == "full",
            "recompute_attention": self.recompute == "attention",
            "distributed_optimizer": self.distributed_optimizer,
            "overlap_gradients": self.overlap_gradients,
            "overlap_parameters": self.overlap_parameters,
            "schedule": self.schedule,
            "chunks": self.chunks,
            "stage_layers": self.stage_layers,
            "sequence_parallel": self.sequence_parallel,
            "context_exchange": self.context_exchange,
        }


def variants(job: MegatronJob, over: frozenset[str]) -> Iterator[Options]:
    """Yield the job's own options and, as far as they differ on this grid, those to vary."""
    own, grid = Options.of(job), job.concrete_grid
    recomputes: list[Recompute] = [own.recompute]
    if "recompute" in over:
        more: list[Recompute] = ["none", *(["attention"] if job.attention in UNFUSED else []), "full"]  # type: ignore[list-item]
        recomputes = list(dict.fromkeys([*more, own.recompute]))
    shards = (own.distributed_optimizer, own.overlap_gradients, own.overlap_parameters)
    if "sharding" in over and job.flavour != "torch" and grid.data * grid.context > 1:
        # states that are divided beside compute take no longer and less memory
        beside = job.flavour == "megatron"
        shards = (True, beside, beside)
    sequence = [own.sequence_parallel]
    if (
        "sequence" in over
        and job.flavour != "deepspeed"
        and grid.tensor > 1
        and not job.model.sequence % (grid.tensor * grid.context)
    ):
        sequence = [False, True]
    exchanges: list[Exchange] = [own.context_exchange]
    if "context" in over and grid.context > 1:
        exchanges = ["ring", "all_gather"]
        placed = job.model_copy(update={"context_exchange": "all_to_all"})
        exchanges += [] if check_context(placed, grid) else ["all_to_all"]
        near = job.model_copy(update={"context_exchange": "hierarchical"}).traders
        exchanges += ["hierarchical"] if 1 < near < grid.context else []
        exchanges += ["balanced"] if own.context_exchange == "balanced" else []
    orders: list[tuple[Schedule, int]] = [(own.schedule, own.chunks)]
    if "schedule" in over and job.flavour != "deepspeed":
        orders = (list(_orders(job)) or orders) if grid.pipeline > 1 else [("1f1b", 1)]
    sharded, gradients, parameters = shards
    for recompute, (order, chunks), split, exchange in product(recomputes, orders, sequence, exchanges):
        placed = job.model_copy(update={"schedule": order, "chunks": chunks})
        layers = stage_layers(placed)
        yield Options(recompute, sharded, order, chunks, split, exchange, gradients, parameters, layers, job.flavour)


def _orders(job: MegatronJob) -> Iterator[tuple[Schedule, int]]:
    """Yield schedules that the stages allow, with their chunks; micro-batches are not known yet."""
    grid = job.concrete_grid
    most = job.batch.sequences // grid.data
    possible = _chunks(job)
    for order in ORDERS:
        choices = {"interleaved": [c for c in possible if c > 1][:MOST_CHUNKS], "zb_v": [2]}.get(order, [1])
        for chunks in choices:
            if chunks in possible and not any(
                k != "batch.micro_sequences" for k, _, _ in problems(order, grid.pipeline, most, chunks)
            ):
                yield order, chunks


def stage_layers(job: MegatronJob) -> tuple[int, ...] | None:
    """Return the layers of a job's stages: those given, or ones that differ by one where they cannot be equal."""
    layers, stages = job.model.layers, job.stages
    if job.stage_layers is not None or layers % stages == 0 or stages > layers:
        return job.stage_layers
    return tuple(evenly(layers, stages))


def _chunks(job: MegatronJob) -> list[int]:
    """Return the numbers of chunks that a rank's layers may be cut into, descending; stages given say which it is.

    Of layers that do not divide one chunk, two, and as many as each rank has layers for.
    """
    ranks = job.concrete_grid.pipeline
    if job.stage_layers is not None:
        chunks, left = divmod(len(job.stage_layers), ranks)
        return [] if left else [chunks]
    each, left = divmod(job.model.layers, ranks)
    possible = {1, each} if left else set(divisors(each))
    return sorted((c for c in possible | {2} if c <= each), reverse=True)
