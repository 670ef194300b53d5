"""The names of attention: how it may run, of which a job says one."""

from __future__ import annotations

from typing import Literal

AttentionForm = Literal[
    "flash", "flash1", "flash2", "flash3", "triton", "triton2", "cudnn", "ck", "cutlass", "fused_softmax", "plain"
]
"""flash: no score matrix in memory, by the kernel that is usual on the device; flash1, flash2 and flash3
(FlashAttention by version), triton (its first version in Triton), triton2 (Triton's tutorial, after its
second), cudnn, ck (AMD's Composable Kernel), cutlass (xformers): by this one; fused_softmax: batched
products around one kernel that scales, masks and normalises; plain: a kernel for each of these."""
UNFUSED = ("fused_softmax", "plain")
"""Forms that write the score matrix to memory."""
UNNAMED_ATTENTION = ("flash", *UNFUSED)
"""Forms that every device and the runtime have; the others are kernels that were measured on some devices."""
TRAINED_ATTENTION = (*UNNAMED_ATTENTION, "flash2", "cutlass", "cudnn")
"""Forms that the runtime trains with: PyTorch has these kernels, for GPUs."""
