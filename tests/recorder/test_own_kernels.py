"""What a step's kernels are: their flops are those that PyTorch counts, or those of the same work in products."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from runtime import auto_parallelize
from runtime.recorder import record_step
from runtime.recorder.aten import bytes_of, kernels_of
from twin.cost.kernels import attention_name, kernel_seconds
from twin.description.load import load_device
from twin.description.problems import DescriptionError
from twin.schedule.kernels import Attention, Gemm, Kernel, Memory
from twin.schedule.ops import Compute
from twin.strategies.four_d.grid import Grid

Shapes = Sequence[tuple[int, ...]]


class Of(nn.Module):
    """A function of parameters and inputs."""

    def __init__(self, compute: Callable[..., torch.Tensor], *shapes: tuple[int, ...]) -> None:
        super().__init__()
        self.compute = compute
        self.weights = nn.ParameterList([nn.Parameter(torch.ones(shape)) for shape in shapes])

    def forward(self, *inputs: torch.Tensor) -> torch.Tensor:
        return self.compute(*self.weights, *inputs)


class Recurrent(nn.Module):
    """What an LSTM or a GRU gives, of inputs and first states."""

    def __init__(self, whole: nn.Module) -> None:
        super().__init__()
        self.whole = whole

    def forward(self, x: torch.Tensor, *states: torch.Tensor) -> torch.Tensor:
        return self.whole(x, states if len(states) > 1 else states[0])[0]


class Grouped(nn.Module):
    """A convolution for each group: PyTorch counts gradients of weights of one with groups as if there were none."""

    def __init__(
        self, kind: type[nn.Module], inputs: int, outputs: int, *args: Any, groups: int, **options: Any
    ) -> None:
        super().__init__()
        one = (kind(inputs // groups, outputs // groups, *args, **options) for _ in range(groups))
        self.parts = nn.ModuleList(one)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        parts = x.chunk(len(self.parts), 1)
        return torch.cat([part(piece) for part, piece in zip(self.parts, parts, strict=True)], 1)


def train(model: nn.Module, shapes: Shapes) -> None:
    model(*(torch.ones(shape, requires_grad=True) for shape in shapes)).square().mean().backward()


def recorded(make: Callable[[], nn.Module], shapes: Shapes) -> list[Kernel]:
    """Record a forward and a backward pass, to the inputs too."""

    def build(mesh: Any) -> tuple[Any, Callable[[], None]]:
        with auto_parallelize(mesh) as parallel:
            model = make()
        return parallel, lambda: train(model, shapes)

    schedule = record_step(Grid(), 0, build).schedule
    return [op.kernel for _, op in schedule.named() if isinstance(op, Compute)]


def counted(make: Callable[[], nn.Module], shapes: Shapes) -> int:
    """Count by PyTorch's own counter, which knows products: what attention and LSTMs are without kernels for them."""
    model = make()
    with (
        FlopCounterMode(display=False) as counter,
        sdpa_kernel(SDPBackend.MATH),
        torch.backends.mkldnn.flags(enabled=False),
    ):
        train(model, shapes)
    return counter.get_total_flops()


def convolutions(*, split: bool = False) -> nn.Module:
    """Strides, groups, one channel for each group, and the way back up."""

    def grouped(kind: type[nn.Module], *args: Any, **options: Any) -> nn.Module:
        return (partial(Grouped, kind) if split else kind)(*args, **options)

    return nn.Sequential(
        nn.Conv2d(4, 8, 3, padding=1),
        grouped(nn.Conv2d, 8, 12, 3, stride=2, groups=2),
        grouped(nn.Conv2d, 12, 12, 3, dilation=2, groups=12, padding=2),
        nn.ConvTranspose2d(12, 6, 3, stride=2, bias=False),
        grouped(nn.ConvTranspose2d, 6, 4, 2, groups=2),
        nn.Flatten(2),
        nn.Conv1d(4, 3, 5),
    )


def encoder() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
    return nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)


def attend(**options: Any) -> Callable[..., torch.Tensor]:
    return lambda q, k: functional.scaled_dot_product_attention(q, k, k, **options)


MODELS: dict[str, tuple[Callable[[], nn.Module], Shapes]] = {
    "convolutions": (convolutions, [(3, 4, 17, 13)]),
    "encoder": (encoder, [(3, 10, 16)]),
    "cross": (lambda: Of(attend(), (2, 4, 8, 16), (2, 4, 64, 16)), []),
    "gqa": (lambda: Of(attend(enable_gqa=True), (2, 4, 8, 16), (2, 2, 8, 16)), []),
    "causal": (lambda: Of(attend(is_causal=True), (2, 4, 8, 16), (2, 4, 8, 16)), []),
    "lstm": (lambda: Recurrent(nn.LSTM(8, 16, 2, bidirectional=True)), [(5, 3, 8), (4, 3, 16), (4, 3, 16)]),
    "gru": (lambda: Recurrent(nn.GRU(8, 16)), [(5, 3, 8), (1, 3, 16)]),
}


@pytest.mark.filterwarnings("ignore:TF32 acceleration on top of oneDNN")
@pytest.mark.filterwarnings("ignore:Accessing the data pointer of FakeTensor")  # PyTorch's LSTM does
@pytest.mark.parametrize("name", MODELS)
def test_flops_are_those_that_pytorch_counts(name: str) -> None:
    make, shapes = MODELS[name]
    same = partial(make, split=True) if make is convolutions else make
    assert sum(kernel.flops for kernel in recorded(make, shapes)) == counted(same, shapes)


def test_a_bilinear_layer_is_the_products_of_three_tensors() -> None:
    """Forward and for each of three gradients: rows · out · left · right multiply-adds."""
    found = recorded(lambda: nn.Bilinear(5, 6, 4, bias=False), [(3, 5), (3, 6)])
    assert sum(k.flops for k in found) == 4 * (2 * 3 * 4 * 5 * 6)


def run(op: Any, *args: Any) -> list[Kernel]:
    return kernels_of(op, args, {}, op(*args))


def test_products_are_told_from_aten() -> None:
    a, b = torch.ones(5, 7), torch.ones(7, 3)
    product = torch.ops.aten.mm.default
    assert run(product, a, b) == [Gemm(5, 3, 7, "NN", element_bytes=4)]
    assert run(product, a, torch.ones(3, 7).t()) == [Gemm(5, 3, 7, "TN", element_bytes=4)]
    assert run(product, torch.ones(7, 5).t(), b) == [Gemm(5, 3, 7, "NT", element_bytes=4)]
    assert run(torch.ops.aten.addmm.default, torch.ones(5, 3), a, b) == [Gemm(5, 3, 7, "NN", element_bytes=4)]
    batch = torch.ones(4, 5, 7, dtype=torch.bfloat16)
    assert run(torch.ops.aten.bmm.default, batch, batch.transpose(1, 2)) == [Gemm(5, 5, 7, batch=4, element_bytes=2)]
    summed = run(torch.ops.aten.addbmm.default, torch.ones(5, 5), batch.float(), batch.float().transpose(1, 2))
    assert summed == [Gemm(5, 5, 7, batch=4, element_bytes=4)]
    assert run(torch.ops.aten.mv.default, a, b[:, 0]) == [Memory(4.0 * (35 + 7 + 5), flops=2.0 * 35)]
    assert run(torch.ops.aten.add.Tensor, a, a) == []


def test_a_mask_is_read_and_nothing_is_left_out() -> None:
    """Causal attention is what it always was; a mask may hide anything, and hides nothing from the kernel."""
    query, keys, mask = torch.ones(2, 4, 8, 16), torch.ones(2, 2, 64, 16), torch.zeros(8, 64)
    op = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    assert run(op, query, query, query, 0.0, True) == [Attention(2, 8, 4, 16, element_bytes=4)]
    plain = Attention(2, 8, 4, 16, element_bytes=4, kv_heads=2, causal=False, key_length=64)
    result = op(query, keys, keys)
    assert kernels_of(op, (query, keys, keys), {}, result) == [plain]
    assert kernels_of(op, (query, keys, keys), {"attn_mask": mask}, result) == [replace(plain, mask=True)]
    assert plain.bytes == 2 * query.nbytes + 2 * keys.nbytes
    assert replace(plain, mask=True).bytes == plain.bytes + 2 * mask.nbytes
    products = replace(plain, form="plain").products
    assert [(g.m, g.n, g.k, g.batch) for g in products] == [(8, 64, 16, 8), (8, 16, 64, 8)]
    assert sum(g.flops for g in products) == plain.flops


@pytest.mark.parametrize("backward", [False, True])
def test_attention_of_all_tokens_takes_twice_what_causal_takes(backward: bool) -> None:
    device = load_device("h100-sxm")
    causal = Attention(4, 8192, 16, 128, backward=backward)
    every = replace(causal, causal=False)
    assert attention_name(device, every) == attention_name(device, causal), "no mask: no kernel for masks"
    assert kernel_seconds(device, every) == pytest.approx(2 * kernel_seconds(device, causal), rel=0.05)
    quarter = replace(every, sequence_length=2048, key_length=8192)
    assert kernel_seconds(device, quarter) == pytest.approx(kernel_seconds(device, every) / 4, rel=0.05)


def test_a_convolution_is_one_product_for_each_group_and_depthwise_moves_bytes() -> None:
    x, weight = torch.ones(2, 8, 10), torch.ones(6, 4, 3)
    one = [[1], [1], [1], False, [0]]
    assert run(torch.ops.aten.convolution.default, x, weight, None, *one, 2) == [Gemm(20, 3, 12, "TN", 2, 4)]
    back = torch.ops.aten.convolution_backward.default
    found = run(back, torch.ones(2, 6, 10), x, weight, [6], *one, 2, [True, True, True])
    assert found == [Gemm(20, 12, 3, "NN", 2, 4), Gemm(3, 12, 20, "NT", 2, 4), Memory(4.0 * 2 * 6 * 10)]
    depthwise = run(torch.ops.aten.convolution.default, x, torch.ones(8, 1, 3), None, *one, 8)
    assert depthwise == [Memory(4.0 * (160 + 24 + 160), flops=2.0 * 160 * 3)]


def test_tables_are_not_read_where_rows_are_looked_up() -> None:
    table, rows, row = torch.ones(1000, 16), torch.tensor([3, 4, 4]), 4 * 16

    def moved(op: Any, *args: Any) -> float:
        return bytes_of(op, args, {}, op(*args))

    for op, args in (
        (torch.ops.aten.embedding.default, (table, rows)),
        (torch.ops.aten.index_select.default, (table, 0, rows)),
        (torch.ops.aten.index.Tensor, (table, [rows])),
    ):
        assert moved(op, *args) == 3 * 8 + 2 * 3 * row
    bags = torch.ops.aten._embedding_bag.default
    assert 3 * 8 + 4 * row <= moved(bags, table, rows, torch.tensor([0])) < 3 * 8 + 5 * row
    added = moved(torch.ops.aten.index_add_.default, table, 0, rows, torch.ones(3, 16))
    assert added == 3 * 8 + 3 * 3 * row


@torch.library.custom_op("own_kernels::twice", mutates_args=())
def twice(x: torch.Tensor) -> torch.Tensor:
    return 2 * x


@twice.register_fake
def _(x: torch.Tensor) -> torch.Tensor:
    return torch.empty_like(x)


def test_arithmetic_that_is_not_known_is_said(caplog: pytest.LogCaptureFixture) -> None:
    def compute(weight: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        return torch.fft.rfft(x @ weight).abs() + twice(x.detach()).sum()

    with caplog.at_level(logging.WARNING, "fourfold"):
        recorded(lambda: Of(compute, (8, 8)), [(4, 8)])
    (said,) = [record.getMessage() for record in caplog.records if "record_step" in record.getMessage()]
    assert "aten._fft_r2c.default" in said
    assert "own_kernels.twice" in said
    caplog.clear()
    with caplog.at_level(logging.WARNING, "fourfold"):
        recorded(encoder, [(3, 10, 16)])
    assert not [record for record in caplog.records if "record_step" in record.getMessage()]


def test_collectives_of_the_users_own_are_refused_in_either_form() -> None:
    op = torch.ops._c10d_functional.wait_tensor.default
    with pytest.raises(DescriptionError, match="starts a collective of its own"):
        recorded(lambda: Of(lambda w: op(w + 0), (4,)), [])
