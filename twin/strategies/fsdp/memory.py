"""Memory of one rank, by category."""

from __future__ import annotations

from twin.description.offload import Tier
from twin.strategies.beyond import Held
from twin.strategies.four_d.job import FourDJob
from twin.strategies.four_d.memory import activation_bytes
from twin.strategies.fsdp.job import FsdpJob
from twin.strategies.fsdp.step import Step
from twin.strategies.fsdp.units import part
from twin.strategies.held_weights import most_gathered
from twin.strategies.sizes import FP32_BYTES, MOMENTS_BYTES


def memory_by_category(job: FsdpJob) -> dict[str, float]:
    """Count the peak bytes of a rank.

    FSDP keeps its part of the weights in fp32, gradients and moments of the same part (16 bytes each over `weights`);
    DeepSpeed 2-byte weights, 2-byte gradients, and 12 bytes of optimizer states, each cut over its own ranks.
    """
    step = Step(job)
    grid, e, units = job.concrete_grid, job.element_bytes, step.units
    total = units.total
    weights, gradients, own = (units.own(parts) for parts in (grid.weights, grid.gradient_parts, grid.optimizer_parts))
    fsdp = job.flavour != "deepspeed" and grid.weights > 1
    wide = FP32_BYTES if job.flavour != "deepspeed" else e
    # of DeepSpeed's first stage each rank has whole gradients anyway
    whole = (
        job.accumulate == "whole" and job.micro_steps > 1 and (job.flavour != "deepspeed" or grid.gradient_parts > 1)
    )
    unreduced = job.kept_bytes
    master = 0 if fsdp or e == FP32_BYTES else FP32_BYTES
    used = {
        "weights": float((FP32_BYTES if fsdp else e) * weights),
        "gradients": float(wide * gradients + (unreduced * total if whole else 0)),
        "optimizer": float((MOMENTS_BYTES + master) * own),
        "activations": activation_bytes(_computed(step), step.shapes, loss_in_place=not job.copies_logits),
        "gathered weights": _gathered(step),
        "buffers": _buffers(step),
    }
    if job.secondary is not None:
        used["second copy"] = float(e * part(total, job.secondary))
    if job.offload is None:
        return used
    stay = job.flavour != "deepspeed"
    return _held(step).on_device(job.offload, used, states_bytes=_states_bytes(job), gradients_stay=stay)


def tiers(job: FsdpJob) -> dict[Tier, dict[str, float]]:
    """Count the bytes of a rank beyond its device."""
    if job.offload is None:
        return {}
    stay = job.flavour != "deepspeed"
    return _held(Step(job)).tiers(job.offload, states_bytes=_states_bytes(job), gradients_stay=stay)


def _states_bytes(job: FsdpJob) -> int:
    """Bytes of an element's states that may lie beyond the device: moments, and master weights that are rounded."""
    rounds = job.flavour == "deepspeed" or (job.concrete_grid.weights == 1 and job.element_bytes < FP32_BYTES)
    return MOMENTS_BYTES + (FP32_BYTES if rounds else 0)


def _computed(step: Step) -> FourDJob:
    """Return what a rank computes; nothing of it again, where all blocks are swapped whole."""
    return step.inner.model_copy(update={"recompute": any(map(step.recomputed, step.layers))})


def _held(step: Step) -> Held:
    job, units = step.job, step.units
    grid = job.concrete_grid
    unit = max(units.largest, units.first.elements, 0 if units.last is None else units.last.elements)
    return Held(
        element_bytes=job.element_bytes,
        own=units.own(grid.optimizer_parts),
        weights=units.own(grid.weights) - units.persistent,
        unit=part(unit, grid.weights),
        kept_bytes=[step.kept_bytes(layer) for layer in step.layers],
        bucket=part(min(job.bucket, units.total), grid.optimizer_parts),
        lands=job.machine.device.type != "cpu",
        micro_steps=job.micro_steps,
        spans=None if job.flavour == "deepspeed" else [end - begin for begin, end in units.spans(grid.optimizer_parts)],
    )


def _gathered(step: Step) -> float:
    """What is whole for a while: the unit at work, the next one, and what is kept."""
    job, units = step.job, step.units
    if job.concrete_grid.weights == 1:
        return 0.0
    e = job.element_bytes
    if job.flavour != "deepspeed":
        blocks = [unit for layer in step.layers for unit in units.block(layer)]
        order = [units.first, *blocks, *([] if units.last is None else [units.last])]
        # what a pass keeps is there when the next one begins: the head goes first, and lets go
        again = [units.first] if units.first.keep else []
        again += [unit for unit in order[::-1] if not unit.keep]
        copies = 2 if job.flavour == "fsdp2" else 1  # before and after it is copied out
        passes = [[(unit.elements, unit.keep) for unit in one] for one in (order, again)]
        return float(e * max(most_gathered(one, copies) for one in passes))
    last = 0 if units.last is None else units.last.elements
    pieces = 2 if job.waits_for_gathers else 1
    ahead = 0 if job.waits_for_gathers else max(units.largest, min(job.prefetch, units.total))
    return float(e * (units.persistent + max(units.largest * pieces + ahead, last + units.largest)))


def _buffers(step: Step) -> float:
    """Gradients on their way: those of the unit at work, and what is packed."""
    job, units = step.job, step.units
    grid = job.concrete_grid
    if job.flavour == "deepspeed":
        return _bucket_bytes(step)
    largest = max(units.largest, units.first.elements, 0 if units.last is None else units.last.elements)
    if grid.replicas == 1:  # nobody to reduce with: gradients wait to be added to their sums
        return float(job.element_bytes * (units.first.elements + units.largest if units.together else largest))
    sent = job.element_bytes + job.reduce_bytes
    if units.together:  # the root's begins with the head's gradient, and ends with the table's
        root = units.first.elements
        return float(max(root * sent, root * job.element_bytes + units.largest * sent))
    return float(largest * sent)


def _bucket_bytes(step: Step) -> float:
    """DeepSpeed's buckets, which it makes in their full size, on one rank too, and a gradient on its way into one.

    Its third stage has one, and joins what is in it by rank before it is sent; the first two have a second one where
    reductions run beside the backward pass, and a copy where they travel in another type (`contiguous_gradients`).
    A gradient that is larger than a bucket is sent by itself.
    """
    job, units = step.job, step.units
    filled = min(job.bucket, units.total)
    largest = max(units.table, units.head_weight, *(n * k for n, k in units.linears.values()))
    buffer = job.element_bytes * job.bucket
    if job.concrete_grid.weights > 1 or job.concrete_grid.replicas == 1:
        buffers = buffer + job.reduce_bytes * filled
    else:
        copy = 0 if job.reduce_bytes == job.element_bytes else job.reduce_bytes * filled
        buffers = (2 if job.overlaps_reduction else 1) * buffer + copy
    return float(buffers + job.element_bytes * largest)
