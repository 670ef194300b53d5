"""A time that no step of a job is below, from how long a block and the model's ends take alone.

Of the rank that holds stage r first: the first micro-batch must come through the stages before, all passes of the
rank follow, and the last one's gradient must go back through them. Messages, reductions, the optimizer and what
runs beside compute only add to that; the closer floor has messages as they take alone.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import accumulate

from twin.strategies.megatron.job import SPLIT, MegatronJob
from twin.strategies.megatron.local import Local
from twin.strategies.megatron.orders import Kind, replay
from twin.strategies.megatron.place import Pipeline, Stage

REPLAYED = ("gpipe", "1f1b", "interleaved", "zb_h1", "zb_h2", "zb_v")
"""Schedules that are in order pass by pass."""
PAIRED = ("dualpipe", "dualpipe_v")
"""Schedules of pairs of passes: where one waits for tensor ranks the other goes on, so that only computing adds up."""
Seconds = Callable[[str], float]
"""How long the ops of a micro-batch take at least whose names contain a part, from first begin to last end."""


def rehearsal(job: MegatronJob) -> MegatronJob | None:
    """Return a job of one block with the tensor and context ranks of a job; None on a CPU.

    Of flavour torch one micro-step of one stage is enough, whose gradients nothing is added to.

    Where backward passes are split there are two stages of one block each. Its host takes no time, and neither messages
    there nor those of context ranks slow compute down, so that nothing in it is slower than in the job.
    """
    if job.machine.device.type == "cpu" or job.profiler:
        return None
    stages = 2 if job.order in SPLIT else 1
    grid = job.concrete_grid.model_copy(update={"pipeline": stages, "data": 1})
    micro, machine = job.concrete_micro_sequences, job.machine
    torch = job.flavour == "torch"
    steps = 1 if torch and stages == 1 else 2
    variation, still = machine.variation, stages == 2 or grid.context > 1
    variation = variation.slowed_by(0.0, "a floor") if still else variation.least_slowed()
    machine = machine.model_copy(update={"variation": variation})
    return job.model_copy(
        update={
            "machine": machine,
            "model": job.model.model_copy(update={"layers": stages}),
            "grid": grid,
            "ranks": grid.ranks,
            "batch": job.batch.model_copy(update={"sequences": steps * micro, "micro_sequences": micro}),
            "schedule": "zb_h1" if stages == 2 else "1f1b",
            "chunks": 1,
            "flavour": "torch" if torch else "megatron",
            "weight_shards": 1 if torch else None,
            "reshard_after_forward": None,
            "stage_layers": None,
            "recompute": job.recompute or not job.recompute_attention,
            "recompute_attention": job.recompute_attention,
            "recompute_layers": None,
            "distributed_optimizer": False,
            "overlap_gradients": False,
            "overlap_parameters": False,
            "rank_order": "pipeline_outermost",
            "cuda_graphs": True,
            "stragglers": (),
            "degraded": (),
            "micro_group": None,
            "overlap_messages": None,
            "placement": "contiguous",
        }
    )


def same_rehearsal(job: MegatronJob) -> tuple[object, ...]:
    """Return what a rehearsal depends on."""
    local = Local(job)
    return (
        job.order in SPLIT,
        *(local.grid.tensor, local.grid.context, local.sequences),
        *(job.recompute_attention, job.sequence_parallel, job.tensor_overlap, job.context_exchange),
    )


class _Passes:
    """How long passes take at least, by stage; `seconds` are of the rehearsal."""

    def __init__(self, job: MegatronJob, seconds: Seconds) -> None:
        split, only = job.order in SPLIT, "=" if job.order in PAIRED else ""
        forward, back, weights = f"{only}F", f"{only}{'I' if split else 'B'}", f"{only}W"
        self._forward_block, self._needed_block = seconds(f"{forward}/block0/"), seconds(f"{back}/block0/")
        self._weights_block = seconds(f"{weights}/block0/") if split else 0.0
        if job.recompute_layers is None and (job.recompute or job.recompute_attention):
            self._needed_block += seconds(f"{back}/recompute/block0/")
        self._first = (seconds(f"{forward}/embedding/"), seconds(f"{back}/embedding/"))
        self._last = (
            seconds(f"{forward}/head/"),
            seconds(f"{back}/head/"),
            seconds(f"{weights}/head/") if split else 0.0,
        )

    def forward(self, stage: Stage) -> float:
        """Return what a forward pass takes."""
        return len(stage.layers) * self._forward_block + stage.first * self._first[0] + stage.last * self._last[0]

    def needed(self, stage: Stage) -> float:
        """Return what a backward pass takes, or what of it a gradient waits for."""
        return len(stage.layers) * self._needed_block + stage.first * self._first[1] + stage.last * self._last[1]

    def weights(self, stage: Stage) -> float:
        """Return what weight gradients take that are apart."""
        return len(stage.layers) * self._weights_block + stage.last * self._last[2]

    def of(self, stage: Stage) -> tuple[float, float, float]:
        """Return forward, backward, and what of it a gradient waits for."""
        needed = self.needed(stage)
        return self.forward(stage), needed + self.weights(stage), needed


def floor_seconds(job: MegatronJob, seconds: Seconds) -> float:
    """Return the floor; `seconds` are of the rehearsal."""
    pipeline, of = Pipeline(job), _Passes(job, seconds).of
    micro_steps, both_ways = job.micro_steps, job.order == "dualpipe"
    most, telling = 0.0, _telling(job, pipeline.ranks)
    for rank, through in zip(telling, _through(pipeline, telling, of), strict=True):
        own = [of(stage) for stage in pipeline.stages(rank)]
        share = 0.5 if both_ways else 1.0
        work = share * micro_steps * sum(forward + back for forward, back, _ in own)
        waited = share * micro_steps * sum(forward + needed for forward, _, needed in own)
        most = max(most, work, waited + (0.0 if both_ways else through))
    return most


def messages(job: MegatronJob) -> tuple[tuple[str, ...], float]:
    """Return the communicators of neighbouring stages, and the bytes of a message."""
    pipeline = Pipeline(job)
    sent = (
        pipeline.outgoing(rank, chunk, forward=forward)
        for rank in range(pipeline.ranks)
        for chunk in range(pipeline.chunks)
        for forward in (True, False)
    )
    return tuple(sorted({message.communicator for message in sent if message})), Local(job).message_bytes


def closer_floor_seconds(job: MegatronJob, seconds: Seconds, hop_seconds: Callable[[], float]) -> float:
    """Return when the last pass ends by dependencies alone; 0 where passes run at once, or by DeepSpeed's clock.

    What a schedule leaves empty in the middle is in it. What another rank needs arrives `hop_seconds` later at least.
    """
    if job.order not in REPLAYED:
        return 0.0
    pipeline, passes = Pipeline(job), _Passes(job, seconds)
    stages = {stage.number: stage for rank in range(pipeline.ranks) for stage in pipeline.stages(rank)}

    def takes(kind: Kind, number: int) -> float:
        of = passes.forward if kind == "F" else passes.weights if kind == "W" else passes.needed
        return of(stages[number])

    orders = [pipeline.actions(rank) for rank in range(pipeline.ranks)]
    return replay(orders, lambda rank, chunk: pipeline.stages(rank)[chunk].number, takes, hop_seconds()).seconds


def _telling(job: MegatronJob, ranks: int) -> list[int]:
    """Return the ranks one of which has the largest floor: of equal stages in the middle the last one waits longest."""
    if job.stage_layers is not None:
        return list(range(ranks))
    return sorted({0, max(0, ranks - 2), ranks - 1})


def _through(
    pipeline: Pipeline, ranks: Sequence[int], of: Callable[[Stage], tuple[float, float, float]]
) -> Iterator[float]:
    """Yield how long a micro-batch takes through the stages before the first of each rank, and its gradient back."""

    def both(rank: int) -> float:
        forward, _, needed = of(pipeline.stage(rank, 0))
        return forward + needed

    if pipeline.job.stage_layers is not None:  # of all ranks, which `ranks` then are
        yield from accumulate((both(rank) for rank in ranks[:-1]), initial=0.0)
        return
    for rank in ranks:
        yield both(0) + (rank - 1) * both(min(1, rank - 1)) if rank else 0.0
