"""The time that one matrix product takes on a CPU core: a call, operands, arithmetic, one after the other.

Inside a step a product meets caches that hold what other ops left, so that what it reads does not hide behind what it
computes, as it does on a device that streams: `python -m twin.calibrate` finds the rates from products timed there.

Letters: m tokens, n and k the other sizes.
"""

from __future__ import annotations

from twin.description.device import CoreLibrary, CoreProducts, Device
from twin.description.train import GemmLibrary
from twin.schedule.kernels import Gemm

__all__ = ["core_gemm_seconds", "with_library"]

_FP32_BYTES = 4


def with_library(device: Device, wanted: GemmLibrary) -> Device:
    """Return a device whose products are those of a job with this `train.gemm_library`.

    Only `pytorch` makes a difference: what was measured is what `auto` takes, and there is no other to take.
    """
    core = device.gemm.core
    if core is None or wanted != "pytorch" or len(core.libraries) == 1:
        return device
    usual = {name: library for name, library in core.libraries.items() if library.least_multiplications == 1}
    gemm = device.gemm.model_copy(update={"core": core.model_copy(update={"libraries": usual})})
    return device.model_copy(update={"gemm": gemm})


def core_gemm_seconds(core: CoreProducts, peak_flops_per_second: float, gemm: Gemm) -> float:
    """Return the seconds of `gemm` on one core, its operands stored as its mode says: nothing is tuned here."""
    library = _library_of(core, gemm)
    seconds = gemm.bytes / core.operands_bytes_per_second
    seconds += gemm.flops / (peak_flops_per_second * library.peak_share)
    if library.columns_bytes_per_second is not None and gemm.mode[1] == "T":  # the operand of m × k elements
        seconds += gemm.batch * gemm.m * gemm.k * gemm.element_bytes / library.columns_bytes_per_second
    return float(library.call_seconds + seconds)


def _library_of(core: CoreProducts, gemm: Gemm) -> CoreLibrary:
    """Return who multiplies: as `runtime.step.products` chooses, where batches are attention's and PyTorch's own."""
    linear = gemm.batch == 1 and gemm.element_bytes == _FP32_BYTES
    size, least = gemm.m * gemm.n * gemm.k, min(gemm.m, gemm.n, gemm.k)
    fitting = [
        library
        for library in core.libraries.values()
        if library.least_multiplications == 1
        or (linear and library.least_multiplications <= size and library.least_size <= least)
    ]
    return max(fitting, key=lambda library: library.least_multiplications)
