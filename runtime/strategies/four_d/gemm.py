"""Matrix products, and the choice of how their operands are stored (section 6 of the algorithm).

A mode names the storage of both operands as the column-major BLAS library sees it. Of
C[m, n] = A[m, k] · B[k, n]: first letter T if B is stored as (n, k), second T if A is stored as
(k, m). A linear layer's forward is TN, its input gradient NN, its weight gradient NT; some
libraries are many times slower in one mode than in another, so that even a transposing copy pays.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

import torch

from runtime.step.products import MatrixProducts, products_on
from twin.description.train import GemmLibrary
from twin.schedule.kernels import Gemm, Mode

__all__ = ["MODES", "Gemms", "Mode", "Pass", "Signature"]

MODES: tuple[Mode, ...] = ("NN", "NT", "TN")
Pass = Literal["forward", "input_gradient", "weight_gradient"]
NATURAL: dict[Pass, Mode] = {"forward": "TN", "input_gradient": "NN", "weight_gradient": "NT"}
REPEATS = 5


@dataclass(frozen=True)
class Signature:
    """What a choice is made for."""

    pass_: Pass
    m: int
    n: int
    k: int

    def __str__(self) -> str:
        return f"{self.pass_} {self.m}×{self.n}×{self.k}"


@dataclass
class Gemms:
    """The products of a rank, each in its mode; the natural one unless another was chosen."""

    products: MatrixProducts = field(default_factory=MatrixProducts)
    modes: dict[Signature, Mode] = field(default_factory=dict)

    @classmethod
    def on(cls, device: torch.device, wanted: GemmLibrary = "auto") -> Gemms:
        """Make those of a rank on a device."""
        return cls(products_on(device, wanted))

    def kernel(self, pass_: Pass, a: torch.Tensor, b: torch.Tensor, *, adds: bool = False) -> Gemm:
        """Describe the product of a (m, k) and b (k, n) in its mode; `adds`: to what is there."""
        (m, k), n = a.shape, b.shape[1]
        mode = self.modes.get(Signature(pass_, m, n, k), NATURAL[pass_])
        return Gemm(m, n, k, mode, element_bytes=a.element_size(), adds=adds)

    def product(
        self,
        pass_: Pass,
        a: torch.Tensor,
        b: torch.Tensor,
        out: torch.Tensor | None = None,
        *,
        bias: torch.Tensor | None = None,
        scale: float = 1.0,
    ) -> torch.Tensor:
        """Multiply a (m, k) by b (k, n); add a bias (n,), or multiply by a number, before the result is written."""
        if self.modes:
            a, b = self._stored(pass_, a, b)
        return self.products.multiply(a, b, out, bias=bias, scale=scale)

    def accumulate(self, pass_: Pass, a: torch.Tensor, b: torch.Tensor, total: torch.Tensor) -> None:
        """Add the product of a (m, k) and b (k, n) to a sum (m, n)."""
        if self.modes:
            a, b = self._stored(pass_, a, b)
        self.products.add(a, b, total)

    def _stored(self, pass_: Pass, a: torch.Tensor, b: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Store a (m, k) and b (k, n) in the mode that was chosen for them, if one was."""
        mode = self.modes.get(Signature(pass_, a.shape[0], b.shape[1], a.shape[1]))
        return (a, b) if mode is None else arrange(a, b, mode)


def arrange(a: torch.Tensor, b: torch.Tensor, mode: Mode) -> tuple[torch.Tensor, torch.Tensor]:
    """Store the operands as the mode says; copies only what is stored otherwise."""
    return _stored(a, transposed=mode[1] == "T"), _stored(b, transposed=mode[0] == "T")


def _stored(matrix: torch.Tensor, *, transposed: bool) -> torch.Tensor:
    return matrix.t().contiguous().t() if transposed else matrix.contiguous()


def natural_operands(
    signature: Signature, dtype: torch.dtype, device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Make operands stored as the layers have them, of normal numbers, always the same ones.

    Of equal numbers a GPU draws so little power that it multiplies them faster than any that hold data.
    """
    m, n, k = signature.m, signature.n, signature.k
    generator = torch.Generator(device).manual_seed(0)
    a, b = (torch.randn(shape, generator=generator, dtype=dtype, device=device) for shape in ((m, k), (k, n)))
    return arrange(a, b, NATURAL[signature.pass_])


def time_modes(signature: Signature, dtype: torch.dtype, device: torch.device, products: MatrixProducts) -> list[float]:
    """Seconds of the product in each of `MODES`, copies of operands included: the fastest run."""
    a, b = natural_operands(signature, dtype, device)
    synchronize: Callable[[], None] = torch.cuda.synchronize if device.type == "cuda" else lambda: None
    seconds = []
    for mode in MODES:
        best = float("inf")
        for _ in range(REPEATS + 1):  # one more to warm up
            synchronize()
            begin = time.perf_counter()
            products.multiply(*arrange(a, b, mode))
            synchronize()
            best = min(best, time.perf_counter() - begin)
        seconds.append(best)
    return seconds
