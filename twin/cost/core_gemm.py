"""The time that one matrix product takes on a CPU core: a call, operands, arithmetic, one after the other.

Inside a step a product meets caches that hold what other ops left, so that what it reads does not hide behind what it
computes, as it does on a device that streams: `python -m twin.calibrate` finds the rates from products timed there.

Letters: m tokens, n and k the other sizes.
"""

from __future__ import annotations

from twin.description.device import CoreProducts
from twin.schedule.kernels import Gemm

__all__ = ["core_gemm_seconds"]


def core_gemm_seconds(core: CoreProducts, peak_flops_per_second: float, gemm: Gemm) -> float:
    """Return the seconds of `gemm` on one core.

    Batched products are those of attention, which go to the first library, in one call.
    """
    size = gemm.m * gemm.n * gemm.k
    fitting = [library for library in core.libraries if library.least_multiplications <= size]
    library = core.libraries[0] if gemm.batch > 1 or not fitting else fitting[-1]
    seconds = gemm.bytes / core.operands_bytes_per_second
    seconds += gemm.flops / (peak_flops_per_second * library.peak_share)
    if library.columns_bytes_per_second is not None and gemm.mode[1] == "T":  # the operand of m × k elements
        seconds += gemm.batch * gemm.m * gemm.k * gemm.element_bytes / library.columns_bytes_per_second
    return float(library.call_seconds + seconds)
