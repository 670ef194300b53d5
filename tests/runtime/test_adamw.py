"""AdamW's kernel over flat tensors against PyTorch's own loop over parameters, and what it does when told to stop."""

from __future__ import annotations

import subprocess
import sys

import pytest
import torch

from runtime.step import adamw
from twin.description.train import Adam

SETTINGS = Adam(beta1=0.8, beta2=0.9, epsilon=1e-6)
SIZES = (130, 7)


def parts_of(seed: int) -> list[adamw.Tensors]:
    """Weights, and moments of zero."""
    source = torch.Generator().manual_seed(seed)
    weights = [torch.randn(size, generator=source, dtype=torch.float64) for size in SIZES]
    return [(each, torch.zeros_like(each), torch.zeros_like(each)) for each in weights]


@pytest.mark.parametrize("decay", [0.0, 0.1])
def test_it_is_what_pytorch_computes_parameter_by_parameter(decay):
    parts, source = parts_of(1), torch.Generator().manual_seed(2)
    expected = [torch.nn.Parameter(weight.clone()) for weight, _, _ in parts]
    reference = torch.optim.AdamW(
        expected, betas=(SETTINGS.beta1, SETTINGS.beta2), eps=SETTINGS.epsilon, weight_decay=decay, foreach=False
    )
    steps, go_on = torch.zeros(()), torch.zeros(())
    for rate in (1e-2, 3e-2, 5e-3):
        gradients = [torch.randn(size, generator=source, dtype=torch.float64) for size in SIZES]
        for parameter, gradient in zip(expected, gradients, strict=True):
            parameter.grad = gradient.clone()
        reference.param_groups[0]["lr"] = rate
        reference.step()
        alike = adamw.Alike(decay, parts, gradients)
        adamw.update([alike], steps, SETTINGS, learning_rate=rate, stopped=go_on)
    assert steps == 3
    for (weight, first, second), parameter in zip(parts, expected, strict=True):
        torch.testing.assert_close(weight, parameter.detach(), rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(first, reference.state[parameter]["exp_avg"], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(second, reference.state[parameter]["exp_avg_sq"], rtol=1e-12, atol=1e-14)


def test_nothing_changes_once_it_is_stopped():
    parts = parts_of(3)
    before = [[tensor.clone() for tensor in tensors] for tensors in parts]
    gradients = [torch.full((size,), float("nan"), dtype=torch.float64) for size in SIZES]
    steps, alike = torch.ones(()), adamw.Alike(0.1, parts, gradients)
    adamw.update([alike], steps, SETTINGS, learning_rate=1.0, stopped=torch.ones(()))
    assert steps == 1
    for tensors, earlier in zip(parts, before, strict=True):
        assert all(torch.equal(now, then) for now, then in zip(tensors, earlier, strict=True))


def test_a_rank_that_owns_padding_alone_updates_nothing():
    steps = torch.zeros(())
    adamw.update([], steps, SETTINGS, learning_rate=1.0, stopped=torch.zeros(()))
    assert steps == 1


@pytest.mark.process
@pytest.mark.parametrize("strategy", ["four_d", "fsdp", "ddp"])
def test_a_rank_loads_neither_the_compiler_nor_what_writes_traces(strategy):
    """They would take a quarter of its start. Ranks of megatron have PyTorch's pipelines, which load the first."""
    script = (
        "import sys, torch\n"
        f"import runtime.train.run, runtime.strategies.{strategy}.assembly\n"
        "from runtime.step import adamw\n"
        "from twin.description.train import Adam\n"
        "one = torch.ones(4)\n"
        "alike = adamw.Alike(0.1, [(one, one.clone(), one.clone())], [one.clone()])\n"
        "adamw.update([alike], torch.zeros(()), Adam(), learning_rate=1e-3, stopped=torch.zeros(()))\n"
        "sys.exit(' '.join({'torch._dynamo', 'pyarrow'} & set(sys.modules)) or 0)\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
