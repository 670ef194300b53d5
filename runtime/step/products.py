"""Products of fp32 matrices on CPUs, by the library that multiplies fastest there.

PyTorch has two: it gives fp32 products to Intel's MKL, and those of bf16 to oneDNN. On processors that are not Intel's
MKL keeps to AVX2, whatever else they have, where oneDNN goes by what they say that they can: `fourfold train` on an
EPYC with AVX-512 multiplies 1.7 to 2.3 times as fast by it (docs/explanation/performance.md). Small products stay with
MKL, for oneDNN takes some 10 µs a call.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch

__all__ = ["GemmLibrary", "Products", "products_on"]

GemmLibrary = Literal["auto", "pytorch", "onednn"]
CPU_INFO = Path("/proc/cpuinfo")
LEAST_WORK = 4_000_000
"""Multiplications of a product from which on oneDNN's greater rate outweighs its call, with AVX2 alone too."""
LEAST_SIZE = 16
"""Rows, columns and sums shorter than this are a matter of memory, for which oneDNN's packing is a loss."""


@dataclass(frozen=True)
class Products:
    """How a rank multiplies."""

    onednn: bool = False
    """Take it for what is large enough; else all is PyTorch's choice."""

    def takes(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        """Tell whether oneDNN multiplies a (m, k) by b (k, n)."""
        if not self.onednn or a.dtype is not torch.float32:
            return False
        (m, k), n = a.shape, b.shape[1]
        return m * k * n >= LEAST_WORK and min(m, k, n) >= LEAST_SIZE

    def multiply(self, a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
        """Multiply a (m, k) by b (k, n), and add a bias (n,), by whichever library takes them."""
        if self.takes(a, b):
            return by_onednn(a, b, bias)
        return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


def by_onednn(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply a (m, k) by b (k, n), and add a bias (n,): float32 on the CPU, exact to its rounding.

    PyTorch has no public name for it; this is the op that its own compiler calls on CPUs.
    """
    if bias is not None:
        bias = bias.contiguous()  # of which the op takes the first number's place alone
    made: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(a, b.t(), bias, "none", [], "")
    return made


def products_on(device: torch.device, wanted: GemmLibrary = "auto") -> Products:
    """Choose how a rank on a device multiplies; `wanted` is `train.gemm_library`, which concerns CPUs alone."""
    on_cpu = device.type == "cpu" and torch.backends.mkldnn.is_available()
    return Products(onednn=on_cpu and (wanted == "onednn" or (wanted == "auto" and _mkl_holds_back())))


def _mkl_holds_back() -> bool:
    """Tell whether this is a processor of which MKL uses a part alone: any that is not Intel's."""
    try:
        with CPU_INFO.open(encoding="utf-8") as file:
            first_core = file.read(4096)
    except OSError:  # no Linux
        return False
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", first_core, re.MULTILINE)
    return vendor is not None and vendor[1] != "GenuineIntel" and torch.backends.mkl.is_available()
