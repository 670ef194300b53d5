"""PyTorch's own ways to train a GPT on four ranks: the peers of the benchmark."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn import functional
from torch.nn.parallel import DistributedDataParallel

LAYERS, HIDDEN, HEADS, SEQUENCE, VOCABULARY, SEQUENCES = 4, 256, 8, 128, 1024, 16


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(HIDDEN, bias=False), nn.LayerNorm(HIDDEN, bias=False)
        self.q, self.k, self.v, self.o = (nn.Linear(HIDDEN, HIDDEN, bias=False) for _ in range(4))
        self.up = nn.Linear(HIDDEN, 4 * HIDDEN, bias=False)
        self.down = nn.Linear(4 * HIDDEN, HIDDEN, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        b, s, _ = x.shape
        y = self.norm1(x)
        q, k, v = (f(y).view(b, s, -1, HIDDEN // HEADS).transpose(1, 2) for f in (self.q, self.k, self.v))
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.o(mixed.transpose(1, 2).reshape(b, s, -1))
        return x + self.down(functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class GPT(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = (nn.Embedding(VOCABULARY, HIDDEN), nn.Embedding(SEQUENCE, HIDDEN))
        self.blocks = nn.ModuleList(Block() for _ in range(LAYERS))
        self.norm = nn.LayerNorm(HIDDEN, bias=False)
        self.head = nn.Linear(HIDDEN, VOCABULARY, bias=False)
        for parameter in self.parameters():
            if parameter.ndim == 2:
                nn.init.normal_(parameter, std=0.02)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        x = self.tokens(tokens) + self.positions(torch.arange(tokens.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


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


def clip(groups: list[list[Any]]) -> None:
    """Scale gradients to norm 1 at most."""
    norms = [nn.utils.get_total_norm([p.grad for p in group]) for group in groups]
    full = [norm.full_tensor() if isinstance(norm, DTensor) else norm for norm in norms]
    total = torch.linalg.vector_norm(torch.stack(full))
    for group in groups:
        nn.utils.clip_grads_with_norm_(group, 1.0, total)


def trainer(kind: str, windows: torch.Tensor) -> Callable[[int], float]:
    """Make a function that trains on step i of windows (steps, SEQUENCES, s + 1)."""
    model, part, parts = build(kind)
    # tensor parallelism leaves some parameters plain: PyTorch's foreach kernels take one kind at a time
    groups: dict[tuple[Any, bool], list[Any]] = {}
    for parameter in model.parameters():
        key = getattr(parameter, "device_mesh", None), parameter.ndim == 2
        groups.setdefault(key, []).append(parameter)
    adam = torch.optim.AdamW(
        [{"params": group, "weight_decay": 0.1 * key[1]} for key, group in groups.items()],
        lr=3e-4,
        betas=(0.9, 0.95),
        fused=True,
    )
    local = SEQUENCES // parts

    def step(index: int) -> float:
        window = windows[index % len(windows)][part * local : (part + 1) * local]
        loss = functional.cross_entropy(model(window[:, :-1]).flatten(0, 1), window[:, 1:].flatten())
        loss.backward()
        clip(list(groups.values()))
        adam.step()
        adam.zero_grad()
        return float(loss.detach())

    return step
