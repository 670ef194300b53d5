"""Matrix products of linear layers, on CPUs by the library that is fastest there.

For fp32 PyTorch on x86 takes Intel's MKL, which keeps to AVX2 on processors of other makers. oneDNN, which PyTorch
brings too and gives its bf16 products to, goes by what a processor says that it can: with AVX-512 it multiplies up to
2.3 times as fast (docs/explanation/performance.md). Small products stay with MKL, whose calls are quicker.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from twin.description.train import GemmLibrary

__all__ = ["MatrixProducts", "by_onednn", "products_on"]

CPU_INFO = Path("/proc/cpuinfo")
LEAST_WORK = 4_000_000
"""Multiplications of a product from which on oneDNN's greater rate outweighs its call, as both are met among other ops:
240 GFLOP/s and some 65 µs with cold caches, where MKL has 88 and 11."""
LEAST_SIZE = 16
"""Rows, columns and sums shorter than this are a matter of memory, for which oneDNN's packing is a loss."""
MOST_BESIDE = 2**19
"""Numbers, 2 MB of them, that a product needs memory for besides operands and result, unless `LEAST_ROWS` need more:
4 MB for sums of 2,048, or more columns than that. PyTorch needs none."""
LEAST_ROWS = 256
"""oneDNN packs the second operand for every call: fewer rows a call do not pay for that."""
_PLAIN = (torch.Tensor, torch.nn.Parameter)
"""What has numbers of its own; tensors that are recorded, or that stand for those of many ranks, are of other types."""


@dataclass(frozen=True)
class MatrixProducts:
    """How a rank multiplies: by PyTorch's choice of libraries, or by oneDNN what that is good at."""

    onednn: bool = False

    def takes(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        """Tell whether oneDNN multiplies a (m, k) by b (k, n)."""
        if not self.onednn or a.numel() * b.numel() < LEAST_WORK * LEAST_SIZE:  # small ones are told at once
            return False
        if a.dtype is not torch.float32 or type(a) not in _PLAIN or not a.is_cpu:
            return False
        (m, k), n = a.shape, b.shape[1]
        return m * k * n >= LEAST_WORK and min(m, k, n) >= LEAST_SIZE

    def multiply(
        self,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        bias: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> torch.Tensor:
        """Return scale · a · b + bias of a (m, k), b (k, n) and bias (n,): (m, n), in `out` if given."""
        if not self.takes(a, b):
            return _by_pytorch(a, b, out, bias, scale)
        if out is None and (a.is_contiguous() or 2 * a.numel() <= MOST_BESIDE):
            return _by_onednn(_stored_by_rows(a), b, bias, scale)
        out = a.new_empty(a.shape[0], b.shape[1]) if out is None else out
        for rows in _blocks(a, b):
            out[rows] = _by_onednn(_stored_by_rows(a[rows]), b, bias, scale)
        return out

    def add(self, a: torch.Tensor, b: torch.Tensor, total: torch.Tensor) -> None:
        """Add the product of a (m, k) and b (k, n) to a sum (m, n)."""
        if not self.takes(a, b):
            torch.addmm(total, a, b, out=total)
            return
        for rows in _blocks(a, b):
            total[rows] += by_onednn(_stored_by_rows(a[rows]), b)


def _blocks(a: torch.Tensor, b: torch.Tensor) -> Iterator[slice]:
    """Cut a (m, k) into rows whose copies and product with b (k, n) stay within `MOST_BESIDE`, if that is enough."""
    (m, k), n = a.shape, b.shape[1]
    most = max(MOST_BESIDE // max(2 * k, k + n), LEAST_ROWS)
    blocks = max(-(-m // most), 1)
    for block in range(blocks):  # of about equal size
        yield slice(block * m // blocks, (block + 1) * m // blocks)


def _stored_by_rows(a: torch.Tensor) -> torch.Tensor:
    """Copy what is not; by way of one that fills its memory, which PyTorch transposes several times as fast."""
    return (a.t().contiguous().t() if a.stride(0) == 1 else a).contiguous()


def _by_pytorch(
    a: torch.Tensor, b: torch.Tensor, out: torch.Tensor | None, bias: torch.Tensor | None, scale: float
) -> torch.Tensor:
    if bias is not None:
        return torch.addmm(bias, a, b, alpha=scale, out=out)
    if scale != 1.0:
        return torch.addmm(a.new_zeros(()), a, b, beta=0, alpha=scale, out=out)
    return torch.mm(a, b) if out is None else torch.mm(a, b, out=out)


def _by_onednn(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None, scale: float) -> torch.Tensor:
    if scale == 1.0:
        return by_onednn(a, b, bias)
    made = by_onednn(a, b).mul_(scale)
    return made if bias is None else made.add_(bias)


def by_onednn(a: torch.Tensor, b: torch.Tensor, bias: torch.Tensor | None = None) -> torch.Tensor:
    """Multiply a (m, k) by b (k, n), and add a bias (n,): float32 on the CPU, exact to its rounding.

    It copies `a` if that is not stored row by row. PyTorch has no public name for it; this is the op that its own
    compiler calls on CPUs.
    """
    if bias is not None:
        bias = bias.contiguous()  # of which the op takes the first number's place alone
    made: torch.Tensor = torch.ops.mkldnn._linear_pointwise.default(a, b.t(), bias, "none", [], "")
    return made


def products_on(device: torch.device, wanted: GemmLibrary = "auto") -> MatrixProducts:
    """Choose how a rank on a device multiplies; `wanted` is `train.gemm_library`, which concerns CPUs alone."""
    there = device.type == "cpu" and torch.backends.mkldnn.is_available()
    return MatrixProducts(onednn=there and (wanted == "onednn" or (wanted == "auto" and _mkl_leaves_avx512())))


def _mkl_leaves_avx512() -> bool:
    """Tell whether this is a processor of which MKL uses the narrower half: with AVX-512, and not Intel's."""
    if torch.backends.cpu.get_cpu_capability() != "AVX512" or not torch.backends.mkl.is_available():
        return False
    try:
        with CPU_INFO.open(encoding="utf-8") as file:
            first_core = file.read(4096)
    except OSError:  # no Linux
        return False
    vendor = re.search(r"^vendor_id\s*:\s*(\S+)", first_core, re.MULTILINE)
    return vendor is not None and vendor[1] != "GenuineIntel"
