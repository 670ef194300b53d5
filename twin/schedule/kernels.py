"""The kinds of device work an op can be: what its cost depends on, and nothing about the machine.

Letters: m tokens of this rank, n and k the other two sizes of a matrix product.

* `Gemm`: one matrix product (or a batch of equal ones).
* `Attention`: softmax(Q·Kᵀ)·V of one rank's heads, forward or backward.
* `Memory`: element-wise, reductions, copies, optimizer: bounded by memory traffic.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from twin.description.attention import UNFUSED, AttentionForm

Mode = Literal["NN", "NT", "TN"]
"""Operand layout of a GEMM as the (column-major) BLAS library sees it, the field's usual names.

For a linear layer with weight W[n, k] and input x[m, k] stored row-major, the forward product
`x @ W.T` is TN (both operands have leading dimension k), the input gradient `dy @ W` is NN and
the weight gradient `dy.T @ x` is NT.
"""


@dataclass(frozen=True, slots=True)
class Gemm:
    """`batch` products C[m, n] = A[m, k] · B[k, n] of `element_bytes` wide numbers."""

    m: int
    n: int
    k: int
    mode: Mode = "TN"
    batch: int = 1
    element_bytes: int = 2
    adds: bool = False
    """The product is added to what is there, which is read too."""
    result_bytes: int | None = None
    """Bytes of a number of C, where they are not those of A and B."""
    promotes: bool = False
    """Sums of 8-bit numbers are added up in fp32 while they are made."""

    @property
    def flops(self) -> float:
        """Multiply-adds counted as two."""
        return 2.0 * self.batch * self.m * self.n * self.k

    @property
    def bytes(self) -> float:
        """Least traffic to memory: each operand once, and what is added to."""
        results = (1 + self.adds) * self.m * self.n
        if self.result_bytes not in (None, self.element_bytes):
            operands = self.element_bytes * (self.m * self.k + self.k * self.n)
            return float(self.batch * (operands + self.result_bytes * results))
        return float(self.element_bytes * self.batch * (self.m * self.k + self.k * self.n + results))


@dataclass(frozen=True, slots=True)
class Memory:
    """Work bounded by memory: `bytes` moved by `kernels` launches, with a few `flops`.

    `work` says what kind it is, such as `norm/normalize` or `bwd/residual`: a device may have a measured
    rate for it (`Device.kernels`). What is a chain of element-wise kernels, where there is one kernel for the
    same work, is a kind of its own: over features that are split over ranks (`/split`), or not fused (`/steps`).
    """

    bytes: float
    kernels: int = 1
    flops: float = 0.0
    work: str = ""


@dataclass(frozen=True, slots=True)
class Attention:
    """Self-attention of `heads` local heads over `sequences` × `sequence_length` tokens, causal if not said otherwise.

    Backward includes the recomputation that flash attention does.
    """

    sequences: int
    sequence_length: int
    heads: int
    head_size: int
    form: AttentionForm = "flash"
    dropout: bool = False
    backward: bool = False
    element_bytes: int = 2
    kv_heads: int | None = None
    """Local heads of keys and values, where they are fewer."""
    mask: bool = False
    """Whether a mask of each sequence's scores is read, equal for all heads: nothing is known to be zero without it."""
    causal: bool = True
    """False: every token attends to every other one, and no score is left out."""
    key_length: int | None = None
    """Keys and values of a sequence, where they are not as many as its tokens: cross-attention."""

    @property
    def keys(self) -> int:
        """Keys of a sequence."""
        return self.sequence_length if self.key_length is None else self.key_length

    @property
    def flops(self) -> float:
        """Flops of the full score matrix, as the field counts them (no causal discount).

        Forward 4·b·s²·h; backward twice that.
        """
        forward = 4.0 * self.sequences * (self.sequence_length * self.keys) * self.heads * self.head_size
        return 2 * forward if self.backward else forward

    @property
    def bytes(self) -> float:
        """Q, K, V and O once (their gradients too in backward), and the mask if there is one."""
        kv_heads = self.heads if self.kv_heads is None else self.kv_heads
        rows = self.sequences * (self.sequence_length * self.heads + self.keys * kv_heads)
        one = rows * self.head_size * self.element_bytes
        masks = self.mask * self.sequences * self.sequence_length * self.keys * self.element_bytes
        return float(one * (4 if self.backward else 2) + masks)

    @property
    def products(self) -> tuple[Gemm, ...]:
        """The matrix products of unfused attention: two forward, four in backward."""
        batch, s, size, e = self.sequences * self.heads, self.sequence_length, self.head_size, self.element_bytes
        scores = Gemm(s, self.keys, size, "TN", batch, e)  # Q·Kᵀ; in backward dO·Vᵀ
        values = Gemm(s, size, self.keys, "NN", batch, e)  # P·V; in backward dS·K
        turned = Gemm(self.keys, size, s, "NT", batch, e)  # Pᵀ·dO and dSᵀ·Q
        return (scores, values, turned, turned) if self.backward else (scores, values)

    @property
    def score_bytes(self) -> float:
        """Bytes of the whole score matrix."""
        return float(self.sequences * self.heads * self.sequence_length * self.keys * self.element_bytes)

    @property
    def between(self) -> tuple[Memory, ...]:
        """What unfused attention does besides its products: copies, and passes over the scores; nothing if it is fused.

        Q, K, V and O are read and written on their way into and out of the heads' layout; in backward O's gradient
        and those of Q, K and V are. Softmax reads and writes the scores, backward it reads two matrices and writes
        one. The fused causal kernel reads only the unmasked half (of one matrix forward, of two backward) and writes
        all; one with a mask of its own reads all, and the gradient passes that mask. It is taken to have the share
        of PyTorch's softmax, from which it was made. Plain attention scales, and adds its mask, by kernels that read
        and write; backward a mask is element-wise work. Dropout reads and writes, and writes or reads a mask of one
        byte.
        """
        if self.form not in UNFUSED:
            return ()
        back, scores = self.backward, self.score_bytes
        found = [Memory(self.bytes * (1 if back else 2), kernels=2)]
        halved = self.form == "fused_softmax" and self.causal and not self.mask
        passes = {(False, False): 2.0, (False, True): 1.5, (True, False): 3.0, (True, True): 2.0}[back, halved]
        found.append(Memory(passes * scores, work="attention/softmax"))
        if self.form == "plain":
            found.append(Memory(2 * scores))
            if (self.causal or self.mask) and not (back and self.mask):
                found.append(Memory(2 * scores, work="attention/mask"))
        if self.dropout:
            found.append(Memory((2 + 1 / self.element_bytes) * scores))
        return tuple(found)

    @property
    def moved_bytes(self) -> float:
        """All bytes read and written: `bytes` if it is fused, products and what is between them if not."""
        if self.form not in UNFUSED:
            return self.bytes
        return sum(product.bytes for product in self.products) + sum(work.bytes for work in self.between)

    @property
    def kernels(self) -> int:
        """Kernels on the device, copies into and out of the heads' layout included."""
        if self.form not in UNFUSED:
            return 3 if self.backward else 1  # backward: row sums, gradients, conversion of dQ
        return len(self.products) + sum(work.kernels for work in self.between)


Kernel = Gemm | Attention | Memory
