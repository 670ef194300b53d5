"""Times that no step of a job is below: all blocks of all micro-steps.

Once without what moves over z and data; once what moves over one axis alone, one collective after the other.
"""

from __future__ import annotations

from collections.abc import Callable

from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.shapes import Shapes


def rehearsal(job: FourDJob) -> FourDJob | None:
    """Return a job of one block on one plane of y and x; None on a CPU, whose host works in the same thread.

    Its host takes no time, and its state is on the device, so that nothing in it is slower than in the job: what a
    block has to await from beyond comes beside others where there are more. Nor do the messages of one half slow the
    products of the other down, which of one block may meet otherwise than of many.
    """
    if job.machine.device.type == "cpu" or job.profiler or job.lora is not None or job.document_mask:
        return None
    grid = job.concrete_grid.model_copy(update={"data": 1, "z": 1})
    micro, machine = job.concrete_micro_sequences, job.machine
    variation = machine.variation
    variation = variation.slowed_by(0.0, "a floor") if job.overlap.halves else variation.least_slowed()
    machine = machine.model_copy(update={"variation": variation})
    return job.model_copy(
        update={
            "machine": machine,
            "model": job.model.model_copy(update={"layers": 1}),
            "grid": grid,
            "ranks": grid.ranks,
            "batch": job.batch.model_copy(update={"sequences": 2 * micro, "micro_sequences": micro}),
            "cache_gathered_layers": 0,
            "recompute_inputs": "device",
            "offload": None,
            "recompute_layers": None,
            "recompute": job.recomputed_layers > 0,
            "cuda_graphs": True,
            "stragglers": (),
            "degraded": (),
            "placement": "contiguous",
        }
    )


def same_rehearsal(job: FourDJob) -> tuple[object, ...]:
    """Return what a rehearsal depends on."""
    grid = job.concrete_grid
    overlap = job.overlap
    again = job.recompute_keeps if job.recomputed_layers else None
    options = (again, job.stops_early, overlap.all_reduce, overlap.halves, job.divide, job.tensor)
    return (grid.y, grid.x, Shapes(job).sequences, *options)


def floor_seconds(job: FourDJob, seconds: Callable[[str], float]) -> float:
    """Return the floor; sums of gradients are left out, of which there are fewer where z cuts them.

    Of halves only what the device computes counts: more blocks hide more of what they wait for.
    """
    only = "=" if job.overlap.halves else ""
    computed = seconds(f"{only}/fwd/block0/") + seconds(f"{only}/bwd/block0/") - seconds("+/bwd/block0/*accumulate")
    again = seconds(f"{only}/recompute/block0/")
    return job.micro_steps * (job.model.layers * max(0.0, computed) + job.recomputed_layers * max(0.0, again))


def traffic(job: FourDJob) -> tuple[FourDJob, str, int]:
    """Return a job of one block on all ranks, the ops of its second micro-step, and how many of these a step has.

    Where some blocks are computed again and others not, it is a block that is not, which moves least.
    """
    sequences = 2 * job.concrete_grid.replicas * job.concrete_micro_sequences
    alike = job.recomputed_layers in (0, job.model.layers)
    small = job.model_copy(
        update={
            "model": job.model.model_copy(update={"layers": 1}),
            "batch": job.batch.model_copy(update={"sequences": sequences}),
            "cache_gathered_layers": min(1, job.cache_gathered_layers),
            **({} if alike else {"recompute": False, "recompute_inputs": "device", "offload": None}),
        }
    )
    return small, "micro1/*/block0/*", job.micro_steps * job.model.layers
