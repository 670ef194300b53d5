"""Which library multiplies fp32 matrices on CPUs, and that it makes no difference but in the last bits."""

from __future__ import annotations

import pytest
import torch
from torch._subclasses import FakeTensorMode

from runtime import auto_parallelize
from runtime.auto.context import AutoContext
from runtime.parallel.mesh import Mesh
from runtime.recorder.gpt import batch_of
from runtime.step import products
from runtime.step.products import LEAST_SIZE, MatrixProducts, by_onednn, products_on
from runtime.strategies import ranks_of, trains
from runtime.strategies.four_d.gemm import Gemms, Signature, time_modes
from tests.runtime.live import Live
from twin.description.problems import DescriptionError
from twin.description.train import Adam
from twin.strategies import load_job
from twin.strategies.four_d.grid import AXES, Grid

pytestmark = pytest.mark.skipif(not torch.backends.mkldnn.is_available(), reason="this PyTorch has no oneDNN")

CPU = torch.device("cpu")
BY_IT = MatrixProducts(onednn=True)
AMD = "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\n"
INTEL = AMD.replace("AuthenticAMD", "GenuineIntel")
ARM = "processor\t: 0\nBogoMIPS\t: 2000.00\nCPU implementer\t: 0x41\n"


def numbers(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def assert_rounded(made, a, b, *, scale=1.0, more=None):
    """Compare with the product in float64: a sum of k terms is off by k roundings at most of what they add up to."""
    more = torch.zeros(()) if more is None else more
    truth = scale * (a.double() @ b.double()) + more.double()
    size = abs(scale) * (a.double().abs() @ b.double().abs()) + more.double().abs()
    assert ((made.double() - truth).abs() <= (a.shape[1] + 3) * 2.0**-24 * size).all()


def operands(m, k, n):
    """The three storage modes of a linear layer's products."""
    yield "forward", numbers(m, k), numbers(n, k, seed=1).t()
    yield "input_gradient", numbers(m, k), numbers(k, n, seed=1)
    yield "weight_gradient", numbers(k, m).t(), numbers(k, n, seed=1)


@pytest.fixture
def heard(monkeypatch):
    """The shapes that oneDNN was asked for."""
    shapes = []

    def listening(a, b, bias=None):
        shapes.append((*a.shape, b.shape[1]))
        return by_onednn(a, b, bias)

    monkeypatch.setattr(products, "by_onednn", listening)
    return shapes


@pytest.mark.parametrize("sizes", [(256, 128, 128), (300, 77, 191), (16, 512, 640), (4096, 32, 48), (513, 96, 96)])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("scale", [1.0, -0.5])
def test_products_are_exact_to_the_rounding_of_fp32(sizes, biased, scale, heard):
    for _, a, b in operands(*sizes):
        bias = numbers(sizes[2], seed=2) if biased else None
        assert_rounded(BY_IT.multiply(a, b, bias=bias, scale=scale), a, b, scale=scale, more=bias)
        assert heard
        out = torch.empty(sizes[0], sizes[2])
        assert BY_IT.multiply(a, b, out, bias=bias, scale=scale) is out
        assert_rounded(out, a, b, scale=scale, more=bias)
        assert_rounded(MatrixProducts().multiply(a, b, bias=bias, scale=scale), a, b, scale=scale, more=bias)


@pytest.mark.parametrize("sizes", [(256, 96, 192), (1535, 64, 80)])
def test_products_are_added_to_sums_that_may_be_a_part_of_something(sizes, heard):
    for _, a, b in operands(*sizes):
        for whole in (numbers(sizes[0], sizes[2], seed=3), numbers(sizes[0], 2 * sizes[2], seed=3)):
            total = whole[:, : sizes[2]]
            before, beside = total.clone(), whole[:, sizes[2] :].clone()
            BY_IT.add(a, b, total)
            assert_rounded(total, a, b, more=before)
            assert torch.equal(whole[:, sizes[2] :], beside)
    assert heard


BESIDES = {(4096, 1024, 512): 2.1e6, (20000, 128, 256): 2.1e6, (256, 128, 20000): 20.7e6, (512, 4096, 300): 8.4e6}
"""Bytes by sizes: 2 MiB; where 256 rows need more, their product of 20,000 columns, or two copies of 4,096 numbers."""


@pytest.mark.parametrize("sizes", BESIDES)
@pytest.mark.parametrize("compute", [BY_IT.multiply, BY_IT.add])
def test_products_need_little_memory_besides(sizes, compute, heard):
    m, k, n = sizes
    for _, a, b in operands(m, k, n):
        live = Live()
        with live:
            total = torch.zeros(m, n)
            compute(a, b, total)
            assert live.peak - live.now <= BESIDES[sizes]
        assert_rounded(total, a, b)
        assert sum(asked[0] for asked in heard) == m
        heard.clear()
        assert_rounded(BY_IT.multiply(a, b), a, b)
        assert sum(asked[0] for asked in heard) == m
        heard.clear()


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
        assert_rounded(by_onednn(a, b, bias), a, b, more=bias)


def test_what_is_no_number_stays_none():
    a, b = numbers(*WHOLE), numbers(*WHOLE, seed=1)
    a[0, 0], a[1, 1] = float("nan"), float("inf")
    made = by_onednn(a, b)
    assert made[0].isnan().all()
    assert made[1].isinf().all()
    assert made[2:].isfinite().all()


@pytest.mark.parametrize(
    ("a", "b"),
    [
        (torch.empty(512, 512, dtype=torch.float64), torch.empty(512, 512, dtype=torch.float64)),
        (torch.empty(512, 512, dtype=torch.bfloat16), torch.empty(512, 512, dtype=torch.bfloat16)),
        (torch.empty(512, 512, device="meta"), torch.empty(512, 512, device="meta")),
        (torch.empty(64, 64), torch.empty(64, 64)),  # little work
        (torch.empty(1, 4096), torch.empty(4096, 4096)),  # one token
        (torch.empty(65536, LEAST_SIZE - 1), torch.empty(LEAST_SIZE - 1, 64)),
        (torch.empty(65536, 64), torch.empty(64, LEAST_SIZE - 1)),
        (torch.empty(0, 4096), torch.empty(4096, 4096)),
    ],
)
def test_what_it_would_slow_down_or_cannot_do_is_left_to_pytorch(a, b, heard):
    assert BY_IT.multiply(a, b).shape == (a.shape[0], b.shape[1])
    assert not heard


def test_what_is_recorded_has_no_numbers_to_multiply(heard):
    with FakeTensorMode():
        BY_IT.multiply(torch.empty(512, 512), torch.empty(512, 512))
    assert not heard


def test_pytorch_multiplies_where_nothing_else_is_said(heard):
    MatrixProducts().multiply(numbers(512, 512), numbers(512, 512))
    assert not heard


@pytest.mark.parametrize(
    ("text", "capability", "onednn"),
    [
        (AMD, "AVX512", True),
        (AMD, "AVX2", False),
        (INTEL, "AVX512", False),
        (ARM, "DEFAULT", False),
        ("", "AVX512", False),
        (None, "AVX512", False),
    ],
)
def test_the_processor_decides_unless_the_job_does(tmp_path, monkeypatch, text, capability, onednn):
    monkeypatch.setattr(products, "CPU_INFO", tmp_path / "cpuinfo")
    monkeypatch.setattr(torch.backends.mkl, "is_available", lambda: True)
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: capability)
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


def test_modes_are_timed_by_the_library_that_multiplies(heard):
    time_modes(Signature("forward", 256, 128, 128), torch.float32, CPU, BY_IT)
    assert set(heard) == {(256, 128, 128)}


@pytest.mark.parametrize("mode", ["NN", "NT", "TN"])
def test_chosen_modes_change_no_result(mode, heard):
    for pass_, a, b in operands(256, 96, 192):
        gemms = Gemms(BY_IT, {Signature(pass_, 256, 192, 96): mode})
        assert_rounded(gemms.product(pass_, a, b), a, b)
        total = torch.zeros(256, 192)
        gemms.accumulate(pass_, a, b, total)
        assert_rounded(total, a, b)
    assert heard


STRATEGIES = [
    {"strategy": "four_d", "grid": dict.fromkeys(AXES, 1)},
    {"strategy": "four_d", "grid": dict.fromkeys(AXES, 1), "lora": {"rank": 16, "alpha": 8}},
    {"strategy": "ddp", "grid": {"data": 1}},
    {"strategy": "fsdp", "grid": {"weights": 1}},
    {"strategy": "megatron", "flavour": "torch", "grid": {"tensor": 1}},
]


def job_of(strategy, library):
    return load_job(
        {
            "model": {"layers": 2, "hidden": 128, "heads": 4, "sequence": 128, "vocabulary": 256},
            "machine": "laptop",
            "ranks": 1,
            "precision": "fp32",
            "batch": {"sequences": 16, "micro_sequences": 8},
            "train": {"gemm_library": library},
            **strategy,
        }
    )


@pytest.mark.parametrize("strategy", STRATEGIES, ids=["four_d", "lora", "ddp", "fsdp", "megatron"])
def test_a_job_trains_alike_by_either_library(strategy, heard):
    losses = {}
    for library in ("pytorch", "onednn"):
        job = job_of(strategy, library)
        trainee = trains(job)(job, Mesh.alone(ranks_of(job)), CPU, Adam())
        batch = batch_of(job, trainee.context)
        generator = torch.Generator().manual_seed(5)
        for micro in batch:
            micro.tokens.copy_(torch.randint(0, 256, micro.tokens.shape, generator=generator))
            micro.weights.fill_(1 / (16 * 128))
        losses[library] = [float(trainee.step(batch, 1e-3).loss) for _ in range(4)]
        assert bool(heard) == (library == "onednn")
    assert losses["onednn"] == pytest.approx(losses["pytorch"], abs=2e-5)
    assert losses["pytorch"][0] > losses["pytorch"][-1]


def test_a_model_whose_weights_are_loaded_multiplies_as_the_job_says(heard):
    job = job_of(STRATEGIES[0], "onednn")
    trainee = trains(job)(job, Mesh.alone(ranks_of(job)), CPU, Adam(), initialised=False)
    trainee.context.store.master.zero_()
    tokens = torch.zeros(8, 128, dtype=torch.int64)
    trainee.loss(tokens, tokens, torch.ones(8, 128))
    assert heard


@pytest.mark.parametrize("library", ["onednn", "pytorch"])
def test_linears_of_auto_parallelize_multiply_as_it_says(library, heard):
    context = AutoContext(Mesh.alone(Grid()), overlap=True, prefetch_depth=1, gemm_library=library)
    a, b = numbers(256, 128), numbers(128, 256)
    assert_rounded(context.gemms.product("forward", a, b), a, b)
    assert bool(heard) == (library == "onednn")


def test_auto_parallelize_names_the_libraries_that_there_are():
    with (
        pytest.raises(DescriptionError, match=r"gemm_library = .mkl.: must be one of auto, pytorch, onednn"),
        auto_parallelize(dict.fromkeys(AXES, 1), gemm_library="mkl"),
    ):
        pass
