"""Autograd's engine on a small graph inside a step, without what `torch.autograd.grad` does around it.

That checks shapes by symbols: the first call loads sympy, a third of a second of a core in whatever op comes first, and
every call takes 7 µs more. Megatron-LM and apex go this way too. Shapes are the caller's to get right here.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch.autograd import Variable
from torch.autograd.graph import GradientEdge


def gradients(
    of: torch.Tensor | GradientEdge, inputs: Sequence[torch.Tensor], gradient: torch.Tensor
) -> tuple[torch.Tensor, ...]:
    """Return the gradients by inputs, each of its shape, from that of an output; the graph is let go."""
    return Variable._execution_engine.run_backward(
        (of,), (gradient,), False, False, tuple(inputs), allow_unreachable=False, accumulate_grad=False
    )


def go_backward(output: torch.Tensor, gradient: torch.Tensor) -> None:
    """Add to the gradient of each leaf that an output depends on; the graph is let go."""
    Variable._execution_engine.run_backward(
        (output,), (gradient,), False, False, (), allow_unreachable=True, accumulate_grad=True
    )
