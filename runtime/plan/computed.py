"""Keys of a job that the twin simulates and the runtime does not compute, whatever the strategy."""

from __future__ import annotations

from twin.description.attention import TRAINED_ATTENTION
from twin.description.job import Job
from twin.description.problems import fail


def check_computed(job: Job) -> None:
    """Raise DescriptionError if a job has one."""
    if job.precision == "fp16":
        raise fail(
            "precision", "the runtime trains in bf16 or fp32; fp16 needs loss scaling, which it does not have", "fp16"
        )
    if job.attention not in TRAINED_ATTENTION:
        raise fail(
            "attention",
            f"the runtime trains with {', '.join(TRAINED_ATTENTION)}; other kernels are for simulation, and "
            "PyTorch chooses among its own for flash",
            job.attention,
        )
    if job.cuda_graphs:
        raise fail("cuda_graphs", "is for simulation; the runtime launches its kernels one by one", True)
    if job.profiler:
        raise fail("profiler", "is for simulation; use the runtime's own traces: --trace", True)
