"""A time that no step of a job is below, from how long a block and the model's ends take alone.

Of the rank that holds stage r first: the first micro-batch must come through the stages before, all passes of the
rank follow, and the last one's gradient must go back through them. Messages, reductions, the optimizer and what
runs beside compute only add to that.
"""

from __future__ import annotations

from collections.abc import Callable

from twin.description.parameter import Parameter
from twin.strategies.megatron.job import SPLIT, MegatronJob
from twin.strategies.megatron.local import Local
from twin.strategies.megatron.place import Pipeline, Stage

Seconds = Callable[[str], float]
"""How long the ops of a micro-batch take at least whose names contain a part, from first begin to last end."""


def rehearsal(job: MegatronJob) -> MegatronJob | None:
    """Return a job of one block with the tensor and context ranks of a job; None on a CPU.

    Of flavour torch one micro-step of one stage is enough, whose gradients nothing is added to.

    Where backward passes are split there are two stages of one block each. Its host takes no time, and messages there
    do not slow compute down, so that nothing in it is slower than in the job.
    """
    if job.machine.device.type == "cpu" or job.profiler:
        return None
    stages = 2 if job.order in SPLIT else 1
    grid = job.concrete_grid.model_copy(update={"pipeline": stages, "data": 1})
    micro, machine = job.concrete_micro_sequences, job.machine
    torch = job.flavour == "torch"
    steps = 1 if torch and stages == 1 else 2
    if stages == 2:
        still = machine.variation.model_copy(update={"compute_slowdown": Parameter(0.0, "assumed", "a floor")})
        machine = machine.model_copy(update={"variation": still})
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
            "recompute": job.recompute or not job.recomputes_scores,
            "recompute_attention": job.recomputes_scores,
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
        *(job.recomputes_scores, job.sequence_parallel, job.tensor_overlap, job.context_exchange),
    )


def floor_seconds(job: MegatronJob, seconds: Seconds) -> float:
    """Return the floor; `seconds` are of the rehearsal."""
    pipeline = Pipeline(job)
    split = job.order in SPLIT
    back = "I" if split else "B"
    forward_block, needed_block = seconds("F/block0/"), seconds(f"{back}/block0/")
    weights = seconds("W/block0/") if split else 0.0
    again = seconds(f"{back}/recompute/block0/")
    ends = {
        "first": (seconds("F/embedding/"), seconds(f"{back}/embedding/"), 0.0),
        "last": (seconds("F/head/"), seconds(f"{back}/head/"), seconds("W/head/") if split else 0.0),
    }
    if job.recompute_layers is not None or not (job.recompute or job.recomputes_scores):
        again = 0.0  # of some layers only, or of none

    def of(stage: Stage) -> tuple[float, float, float]:
        """Forward, backward, and what of it a gradient waits for."""
        layers = len(stage.layers)
        forward = layers * forward_block + stage.first * ends["first"][0] + stage.last * ends["last"][0]
        needed = layers * (needed_block + again)
        needed += stage.first * ends["first"][1] + stage.last * ends["last"][1]
        return forward, needed + layers * weights + stage.last * ends["last"][2], needed

    micro_steps, both_ways = job.micro_steps, job.order == "dualpipe"
    most = 0.0
    for rank in _telling(job, pipeline.ranks):
        own = [of(stage) for stage in pipeline.stages(rank)]
        share = 0.5 if both_ways else 1.0
        work = share * micro_steps * sum(forward + back for forward, back, _ in own)
        waited = share * micro_steps * sum(forward + needed for forward, _, needed in own)
        most = max(most, work, waited + (0.0 if both_ways else _through(pipeline, rank, of)))
    return most


def _telling(job: MegatronJob, ranks: int) -> list[int]:
    """Return the ranks one of which has the largest floor: of equal stages in the middle the last one waits longest."""
    if job.stage_layers is not None:
        return list(range(ranks))
    return sorted({0, max(0, ranks - 2), ranks - 1})


def _through(pipeline: Pipeline, rank: int, of: Callable[[Stage], tuple[float, float, float]]) -> float:
    """Return how long a micro-batch takes through the stages before a rank's first, and its gradient back."""
    if pipeline.job.stage_layers is not None or rank == 0:
        before = [of(pipeline.stage(other, 0)) for other in range(rank)]
        return sum(forward + needed for forward, _, needed in before)
    first, inner = (
        forward + needed for forward, _, needed in (of(pipeline.stage(n, 0)) for n in (0, min(1, rank - 1)))
    )
    return first + (rank - 1) * inner
