"""What attention and its projection gave, kept from a block's first run for its second (`recompute_keeps: attention`).

The second run makes the graph of attention anew, around what its kernel gave the first time: output and sums of rows.
"""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import torch
from torch.utils.checkpoint import create_selective_checkpoint_contexts

from runtime.parallel.region import Region

_NAMES = (
    "_scaled_dot_product_flash_attention",
    "_scaled_dot_product_flash_attention_for_cpu",
    "_scaled_dot_product_efficient_attention",
    "_scaled_dot_product_cudnn_attention",
    "_scaled_dot_product_fused_attention_overrideable",
)
_FOUND = (getattr(torch.ops.aten, name, None) for name in _NAMES)
KERNELS = list(chain.from_iterable((getattr(op, kind) for kind in op.overloads()) for op in _FOUND if op is not None))
"""Of `scaled_dot_product_attention`, each in one piece. Where PyTorch takes none of them it runs again."""


class KeptAttention:
    """Of one block and micro-step: filled by the first run, which has no graph, and taken by the second, which has."""

    def __init__(self) -> None:
        self._fill, self._take = create_selective_checkpoint_contexts(KERNELS)
        self._projected: torch.Tensor | None = None

    @property
    def filled(self) -> bool:
        """Whether the first run is over."""
        return self._projected is not None

    def attention(self, region: Region) -> Region:
        """Return attention that fills or takes."""
        run = region.run

        def first(*inputs: torch.Tensor) -> torch.Tensor:
            # with a graph, which is let go: kernels are chosen, and keep sums of rows, as in the second run
            with self._fill, torch.enable_grad():
                return run(*(part.detach().requires_grad_() for part in inputs)).detach()

        def second(*inputs: torch.Tensor) -> torch.Tensor:
            with self._take:
                return run(*inputs)

        return replace(region, run=second, given=True) if self.filled else replace(region, run=first)

    def fill(self, projected: torch.Tensor) -> None:
        """Keep what the projection gave (m, h/G_x); attention was before it."""
        self._projected = projected

    def take(self) -> torch.Tensor:
        """Return what the projection gave, which is let go."""
        found = self._projected
        assert found is not None
        self._projected = None
        return found
