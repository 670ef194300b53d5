"""PyTorch's own ways to train a GPT on four ranks, written as its documents do: the peers of the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, Schedule1F1B, ScheduleInterleavedZeroBubble
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

LAYERS, HIDDEN, HEADS, SEQUENCE, VOCABULARY, SEQUENCES = 4, 256, 8, 128, 1024, 16
MICRO_SEQUENCES = 2
"""Of a pipeline's micro-batch; all others work on their part of a batch at once."""
NAMES = {
    "serial": "a plain loop",
    "ddp": "`DistributedDataParallel`",
    "fsdp": "`fully_shard`",
    "tp": "`parallelize_module`",
    "fsdp_tp": "`fully_shard`, `parallelize_module`",
    "1f1b": "`Schedule1F1B`",
    "zb_h1": "`ScheduleInterleavedZeroBubble`",
}
"""What each is called in a table."""


class Block(nn.Module):
    def __init__(self, hidden: int = HIDDEN, heads: int = HEADS) -> None:
        super().__init__()
        self.head_size = hidden // heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden, bias=False), nn.LayerNorm(hidden, bias=False)
        self.q, self.k, self.v, self.o = (nn.Linear(hidden, hidden, bias=False) for _ in range(4))
        self.up = nn.Linear(hidden, 4 * hidden, bias=False)
        self.down = nn.Linear(4 * hidden, hidden, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(b, s, -1, self.head_size).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(b, s, -1))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    """The whole model, or some of its layers with what comes before the first and behind the last."""

    def __init__(self, layers: range = range(LAYERS)) -> None:
        super().__init__()
        self.tokens = self.positions = self.norm = self.head = None
        if 0 in layers:
            self.tokens, self.positions = nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(SEQUENCE, HIDDEN)
        self.blocks = nn.ModuleList(Block() for _ in layers)
        if LAYERS - 1 in layers:
            self.norm = nn.LayerNorm(HIDDEN, bias=False)
            self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if self.tokens is not None and self.positions is not None:
            x = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            x = block(x)
        return x if self.norm is None or self.head is None else self.head(self.norm(x))


def tensor_parallel(model: GPT, mesh: Any) -> None:
    for block in model.blocks:
        columns = {name: ColwiseParallel() for name in ("q", "k", "v", "up")}
        parallelize_module(block, mesh, {**columns, "o": RowwiseParallel(), "down": RowwiseParallel()})
    parallelize_module(model, mesh, {"head": ColwiseParallel(output_layouts=Replicate())})


def build(kind: str) -> tuple[nn.Module, int, int]:
    """Return the model, and which of how many parts of the batch this rank works on."""
    torch.manual_seed(0)
    model: nn.Module = GPT()
    rank = dist.get_rank() if dist.is_initialized() else 0
    if kind == "serial":
        return model, 0, 1
    size = dist.get_world_size()
    if kind == "ddp":
        return DistributedDataParallel(model), rank, size
    assert isinstance(model, GPT)
    if kind == "tp":
        tensor_parallel(model, init_device_mesh("cpu", (size,)))
        return model, 0, 1
    mesh: Any = init_device_mesh("cpu", (size,))
    part, parts = rank, size
    if kind == "fsdp_tp":
        both = init_device_mesh("cpu", (size // 2, 2), mesh_dim_names=("fsdp", "tp"))
        tensor_parallel(model, both["tp"])
        mesh, part, parts = both["fsdp"], rank // 2, size // 2
    for block in model.blocks:
        fully_shard(block, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model, part, parts


def clip(groups: list[list[Any]], of_stages: bool = False) -> None:
    """Scale gradients to norm 1 at most; those of a pipeline's stages are of different parameters."""
    norms = [nn.utils.get_total_norm([p.grad for p in group]) for group in groups]
    full = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    total = torch.linalg.vector_norm(torch.stack(full))
    if of_stages:
        total.square_()
        dist.all_reduce(total)
        total.sqrt_()
    for group in groups:
        nn.utils.clip_grads_with_norm_(group, 1.0, total)


def grouped(model: nn.Module) -> dict[tuple[Any, bool], list[Any]]:
    """Sort parameters by their kind: of plain tensors and DTensors PyTorch's foreach kernels take one at a time."""
    groups: dict[tuple[Any, bool], list[Any]] = {}
    for parameter in model.parameters():
        key = getattr(parameter, "device_mesh", None), parameter.ndim == 2
        groups.setdefault(key, []).append(parameter)
    return groups


def adam_of(groups: dict[tuple[Any, bool], list[Any]]) -> torch.optim.AdamW:
    """Make the optimizer; matrices decay."""
    return torch.optim.AdamW(
        [{"params": group, "weight_decay": 0.1 * key[1]} for key, group in groups.items()],
        lr=3e-4,
        betas=(0.9, 0.95),
        fused=True,
    )


def mean_loss(logits: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Return the mean over tokens."""
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def pipelined(kind: str, windows: torch.Tensor) -> Callable[[int], float]:
    """Make a function that trains a pipeline on step i; only its last rank knows the loss."""
    rank, size = dist.get_rank(), dist.get_world_size()
    each = LAYERS // size
    torch.manual_seed(0)
    model = GPT(range(rank * each, (rank + 1) * each))
    micros = SEQUENCES // MICRO_SEQUENCES
    stage = PipelineStage(model, rank, size, torch.device("cpu"))
    schedule: Any
    if kind == "1f1b":
        schedule = Schedule1F1B(stage, micros, mean_loss)
    else:
        schedule = ScheduleInterleavedZeroBubble([stage], micros, mean_loss)
    groups = grouped(model)
    adam = adam_of(groups)

    def step(index: int) -> float:
        window = windows[index % len(windows)]
        losses: list[torch.Tensor] = []
        inputs = [window[:, :-1]] if stage.is_first else []
        target = window[:, 1:] if stage.is_last else None
        schedule.step(*inputs, target=target, losses=losses, return_outputs=False)
        clip(list(groups.values()), of_stages=True)
        adam.step()
        adam.zero_grad()
        return float(torch.stack(losses).detach().mean()) if losses else 0.0

    return step


def trainer(kind: str, windows: torch.Tensor) -> Callable[[int], float]:
    """Make a function that trains on step i of windows (steps, SEQUENCES, s + 1)."""
    if kind in ("1f1b", "zb_h1"):
        return pipelined(kind, windows)
    model, part, parts = build(kind)
    groups = grouped(model)
    adam = adam_of(groups)
    local = SEQUENCES // parts

    def step(index: int) -> float:
        window = windows[index % len(windows)][part * local : (part + 1) * local]
        loss = mean_loss(model(window[:, :-1]), window[:, 1:])
        loss.backward()
        clip(list(groups.values()))
        adam.step()
        adam.zero_grad()
        return float(loss.detach())

    return step
