"""Which library multiplies fp32 matrices on CPUs, and that it makes no difference but in the last bits."""

from __future__ import annotations

import pytest
import torch

from runtime.parallel.mesh import Mesh
from runtime.step import products
from runtime.step.context import Context
from runtime.step.products import LEAST_SIZE, Products, by_onednn, products_on
from runtime.strategies.four_d.gemm import Gemms
from tests.runtime import parity
from twin.strategies import load_job
from twin.strategies.four_d.grid import AXES, Grid

CPU = torch.device("cpu")
AMD = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\n"
INTEL = AMD.replace("AuthenticAMD", "GenuineIntel")
ARM = "processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\n"


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def operands(m, k, n):
    """The three storage modes of a linear layer's products."""
    yield "forward", numbers(m, k), numbers(n, k, seed=1).t()
    yield "input_gradient", numbers(m, k), numbers(k, n, seed=1)
    yield "weight_gradient", numbers(k, m).t(), numbers(k, n, seed=1)


@pytest.mark.parametrize("sizes", [(256, 128, 128), (300, 77, 191), (16, 512, 640), (4096, 32, 48)])
@pytest.mark.parametrize("biased", [False, True])
def test_onednn_multiplies_to_the_rounding_of_fp32(sizes, biased):
    for _, a, b in operands(*sizes):
        bias = numbers(sizes[2], seed=2) if biased else None
        assert Products(onednn=True).takes(a, b)
        truth = a.double() @ b.double() + (0 if bias is None else bias.double())
        # a sum of k products is off by k roundings at most, of what its terms' magnitudes add up to
        most = (sizes[1] + 1) * 2.0**-24 * (a.double().abs() @ b.double().abs() + 10)
        made = Products(onednn=True).multiply(a, b, bias)
        assert torch.equal(made, by_onednn(a, b, bias))
        assert ((made.double() - truth).abs() <= most).all()


WHOLE = 256, 256
STORED = {
    "rows that repeat": lambda: numbers(1, 256).expand(WHOLE),
    "columns that repeat": lambda: numbers(256, 1).expand(WHOLE),
    "some columns": lambda: numbers(256, 512)[:, 3:259],
    "every second column": lambda: numbers(256, 512)[:, ::2],
    "every second row": lambda: numbers(512, 256)[::2],
    "columns of a transposed": lambda: numbers(512, 256).t()[:, 100:356],
    "from the third number on": lambda: numbers(256 * 256 + 3)[3:].view(WHOLE),
}


@pytest.mark.parametrize("left", STORED)
@pytest.mark.parametrize("right", STORED)
def test_however_operands_are_stored(left, right):
    a, b = STORED[left](), STORED[right]()
    for bias in (None, numbers(512)[::2], numbers(1).expand(256), numbers(300)[7:263]):
        truth = a.double() @ b.double() + (0 if bias is None else bias.double())
        torch.testing.assert_close(by_onednn(a, b, bias).double(), truth, rtol=1e-5, atol=1e-3)


def test_what_is_no_number_stays_none():
    a, b = numbers(*WHOLE), numbers(*WHOLE, seed=1)
    a[0, 0], a[1, 1] = float("nan"), float("inf")
    made = by_onednn(a, b)
    assert made[0].isnan().all()
    assert made[1].isinf().all()
    assert made[2:].isfinite().all()


def test_the_4d_products_and_sums_are_the_same_by_either():
    for pass_, a, b in operands(256, 96, 192):
        by_default, by_other = Gemms(), Gemms(Products(onednn=True))
        torch.testing.assert_close(by_other.product(pass_, a, b), by_default.product(pass_, a, b))
        out = torch.empty(256, 192)
        assert by_other.product(pass_, a, b, out) is out
        assert torch.equal(out, by_other.product(pass_, a, b))
        torch.testing.assert_close(by_other.product(pass_, a, b, scale=0.5), 0.5 * by_default.product(pass_, a, b))
        totals = numbers(256, 192, seed=3), numbers(256, 192, seed=3)
        by_default.accumulate(pass_, a, b, totals[0])
        by_other.accumulate(pass_, a, b, totals[1])
        torch.testing.assert_close(*totals)


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.empty(512, 512, dtype=torch.float64), torch.empty(512, 512, dtype=torch.float64)),
        (torch.empty(512, 512, dtype=torch.bfloat16), torch.empty(512, 512, dtype=torch.bfloat16)),
        (torch.empty(64, 64), torch.empty(64, 64)),  # little work
        (torch.empty(1, 4096), torch.empty(4096, 4096)),  # one token
        (torch.empty(65536, LEAST_SIZE - 1), torch.empty(LEAST_SIZE - 1, 64)),
        (torch.empty(65536, 64), torch.empty(64, LEAST_SIZE - 1)),
        (torch.empty(0, 4096), torch.empty(4096, 4096)),
    ],
)
def test_what_it_would_slow_down_or_cannot_do_is_left_to_pytorch(a, b):
    assert not Products(onednn=True).takes(a, b)
    assert Products(onednn=True).multiply(a, b).shape == (a.shape[0], b.shape[1])


def test_pytorch_multiplies_where_nothing_else_is_said():
    assert not Products().takes(torch.empty(512, 512), torch.empty(512, 512))


@pytest.mark.parametrize(("text", "onednn"), [(AMD, True), (INTEL, False), (ARM, False), ("", False), (None, False)])
def test_the_processor_decides_unless_the_job_does(tmp_path, monkeypatch, text, onednn):
    monkeypatch.setattr(products, "CPU_INFO", tmp_path / "cpuinfo")
    if text is not None:
        (tmp_path / "cpuinfo").write_text(text)
    assert products_on(CPU).onednn == onednn
    assert products_on(CPU, "onednn").onednn
    assert not products_on(CPU, "pytorch").onednn
    assert not products_on(torch.device("cuda"), "onednn").onednn
    assert not products_on(torch.device("meta")).onednn


def test_a_pytorch_without_onednn_multiplies_as_it_can(monkeypatch):
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert not products_on(CPU, "onednn").onednn


STRATEGIES = [
    {"strategy": "four_d", "grid": dict.fromkeys(AXES, 1)},
    {"strategy": "ddp", "grid": {"data": 1}},
    {"strategy": "fsdp", "grid": {"weights": 1}},
    {"strategy": "megatron", "flavour": "torch", "grid": {"tensor": 1}},
]


def job_of(strategy, library):
    return load_job(
        {
            "model": {"layers": 2, "hidden": 128, "heads": 4, "sequence": 64, "vocabulary": 256},
            "machine": "laptop",
            "ranks": 1,
            "precision": "fp32",
            "batch": {"sequences": 16, "micro_sequences": 8},
            "train": {"gemm_library": library},
            **strategy,
        }
    )


@pytest.mark.parametrize("strategy", STRATEGIES, ids=lambda strategy: strategy["strategy"])
def test_a_job_trains_alike_by_either_library(strategy, monkeypatch):
    from runtime.recorder.gpt import batch_of
    from runtime.strategies import ranks_of, trains
    from twin.description.train import Adam

    called = []

    def heard(*operands):
        called.append(1)
        return by_onednn(*operands)

    monkeypatch.setattr(products, "by_onednn", heard)
    monkeypatch.setattr("runtime.strategies.four_d.gemm.by_onednn", heard)
    losses = {}
    for library in ("pytorch", "onednn"):
        job = job_of(strategy, library)
        trainee = trains(job)(job, Mesh.alone(ranks_of(job)), CPU, Adam())
        generator = torch.Generator().manual_seed(5)
        batch = batch_of(job, trainee.context)
        for micro in batch:
            micro.tokens.copy_(torch.randint(0, 256, micro.tokens.shape, generator=generator))
            micro.weights.fill_(1 / (16 * 64))
        losses[library] = [float(trainee.step(batch, 1e-3).loss) for _ in range(4)]
        assert bool(called) == (library == "onednn")
    assert losses["onednn"] == pytest.approx(losses["pytorch"], abs=2e-5)
    assert losses["pytorch"][0] > losses["pytorch"][-1]


def test_what_is_recorded_has_no_numbers_to_multiply():
    trainee = parity.build(parity.describe(dict.fromkeys(AXES, 1)), Mesh.alone(Grid()), torch.float32)
    job = trainee.context.job.model_copy(update={"train": job_of(STRATEGIES[0], "onednn").train})
    assert Context(job, Mesh.alone(Grid()), CPU, torch.float32, torch.float32).products.onednn
    assert not Context(job, Mesh.alone(Grid()), CPU, torch.float32, torch.float32, initialised=False).products.onednn
