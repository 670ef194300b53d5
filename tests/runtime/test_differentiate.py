"""Small graphs differentiated inside a step, against `torch.autograd`; and what that loads."""

import subprocess
import sys

import pytest
import torch
from torch.autograd.graph import get_gradient_edge

from runtime.parallel.differentiate import go_backward, gradients


def graph() -> tuple[list[torch.Tensor], torch.Tensor]:
    torch.manual_seed(3)
    leaves = [torch.randn(4, 3, requires_grad=True), torch.randn(3, 5, requires_grad=True)]
    return leaves, torch.nn.functional.gelu(leaves[0] @ leaves[1]) * leaves[0].sum()


def test_gradients_are_those_of_autograd_by_a_tensor_or_an_edge():
    leaves, output = graph()
    seed = torch.randn(4, 5)
    expected = torch.autograd.grad(output, leaves, seed)
    for by in (lambda made: made, get_gradient_edge):
        leaves, output = graph()
        found = gradients(by(output), leaves, seed)
        assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))
        assert all(leaf.grad is None for leaf in leaves)


def test_going_backward_adds_to_leaves():
    leaves, output = graph()
    seed = torch.randn(4, 5)
    expected = torch.autograd.grad(output, leaves, seed)
    leaves, output = graph()
    leaves[0].grad = torch.ones(4, 3)
    go_backward(output, seed)
    assert torch.equal(leaves[0].grad, 1 + expected[0])
    assert leaves[1].grad is not None
    assert torch.equal(leaves[1].grad, expected[1])


@pytest.mark.process
def test_a_traced_steps_first_op_loads_no_algebra_system():
    """`torch.autograd.grad` loads sympy where it is first called: a third of a second inside an op that is timed."""
    code = (
        "import sys, torch\n"
        "from runtime.parallel.ops import Ops, Place\n"
        "from runtime.parallel.region import Region\n"
        "from runtime.tracing.listener import HostListener\n"
        "from twin.schedule.kernels import Memory\n"
        "ops = Ops(HostListener(0))\n"
        "work = lambda: Memory(1.0)\n"
        "region = Region(ops, Place('block0'), 'gelu', torch.nn.functional.gelu, work, work)\n"
        "x = torch.randn(3, requires_grad=True)\n"
        "region(x).sum().backward()\n"
        "assert x.grad is not None\n"
        "print(sorted({name.partition('.')[0] for name in sys.modules} & {'sympy', 'mpmath'}))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
