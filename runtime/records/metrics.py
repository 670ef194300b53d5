"""Speed of a step, and memory that a rank takes."""

from __future__ import annotations

import resource
import sys
from dataclasses import dataclass
from typing import Any

import torch

from runtime.step.context import Context
from runtime.step.trainee import StepFigures
from twin.description.device_names import alike
from twin.description.job import Job
from twin.trace.metrics import job_flops, job_peak_flops_per_second


@dataclass(frozen=True)
class Speed:
    """Speed of a step, against what the machine's description promises."""

    tokens_per_second: float
    model_flops_per_second: float
    """Of all ranks; without recomputation."""
    utilisation: float | None
    """Of the devices' peak, None if the job's machine does not say whose peak that is."""


def speed(job: Job, step_seconds: float, *, peak_known: bool) -> Speed:
    """Turn a step's time into rates."""
    rate = job_flops(job, recompute=False) / step_seconds
    peak = job_peak_flops_per_second(job)
    return Speed(job.tokens_per_step / step_seconds, rate, rate / peak if peak_known else None)


def is_described(job: Job, found: str) -> bool:
    """Tell whether a device that calls itself `found` is the one that the job's machine describes.

    Both names must have a model in common, such as A100 or MI250X, and be cards (PCIe, NVL) or not: utilisation
    against the peak of another device would be a number without meaning.
    """
    return alike(job.machine.device.name, found)


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory this rank ever had: of the device, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


def step_line(context: Context, step: int, figures: StepFigures, rate: float, seconds: float) -> dict[str, Any]:
    """Everything that is written down of a step (counted from 0) that took so long, at this learning rate."""
    job, device = context.job, context.device
    known = device.type == "cuda" and is_described(job, torch.cuda.get_device_name(device))
    fast = speed(job, seconds, peak_known=known)
    return {
        "step": step,
        "loss": float(figures.loss),
        "gradient_norm": float(figures.gradient_norm),
        "learning_rate": rate,
        "tokens": (step + 1) * job.tokens_per_step,
        "seconds": seconds,
        "tokens_per_second": fast.tokens_per_second,
        "model_flops_per_second": fast.model_flops_per_second,
        "model_flops_utilisation": fast.utilisation,
        "memory_bytes": peak_memory_bytes(device),
    }
