"""What is not kept for a weight's gradient, because it is quickly made a second time.

With `recompute_keeps: products` the outputs of norms and of the MLP's activation are let go after the forward pass.
What they are made of is kept for their own gradients anyway.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from runtime.strategies.four_d.context import FourDContext

Make = Callable[[], torch.Tensor]


class Again:
    """How the input of one linear is made a second time, where nothing keeps it.

    What makes it says how in the forward pass; the linear asks once, in its backward pass.
    """

    def __init__(self, context: FourDContext) -> None:
        self._context = context
        self._make: Make | None = None

    def by(self, make: Make) -> None:
        """Say how: as it was made the first time, on the same numbers."""
        self._make = make

    def __call__(self) -> torch.Tensor:
        """Make it; what it was made of is let go."""
        assert self._make is not None
        make, self._make = self._make, None
        with self._context.ops.recomputing(), torch.no_grad():
            return make()
