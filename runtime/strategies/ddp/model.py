"""The GPT as plain PyTorch modules, whole on every rank; its work has the twin's names.

Parameters and their names are those of every strategy: `embedding.tokens`, `blocks.3.qkv.weight`,
`final_norm.bias`, `head.weight`, … They are views of the store's compute buffer, and their gradients go to
`.grad`, where DistributedDataParallel takes them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from runtime.model import rms, rotary
from runtime.model.functions import INIT, exact_gelu, gelu, swiglu_in_steps
from runtime.parallel.ops import Ops, Place
from runtime.parallel.region import Region, add, branch, unpack
from runtime.step.context import Context
from runtime.weights.shards import ParameterSpec
from twin.schedule.kernels import Attention, Gemm, Memory


class Linear(nn.Module):
    """A linear layer of n out- and k in-features."""

    def __init__(self, context: Context, name: str, place: Place, n: int, k: int, *, bias: bool, init: float) -> None:
        super().__init__()
        self.ops, self.place = context.ops, place
        declare = context.store.declare
        declare(ParameterSpec(f"{name}.weight", (n, k), (None, None), decay=True, init=init))
        if bias:
            declare(ParameterSpec(f"{name}.bias", (n,), (None,)))
        self.weight: nn.Parameter
        self.bias: nn.Parameter | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map (m, k) to (m, n)."""
        # heard or not: DDP fills its buckets in the order in which gradients come
        result: torch.Tensor = _Linear.apply(inputs, self.weight, self.bias, self)
        return result


class _Linear(torch.autograd.Function):
    """A linear layer whose three products have names."""

    @staticmethod
    def forward(
        ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, layer: Linear
    ) -> torch.Tensor:
        ctx.save_for_backward(inputs, weight)
        ctx.layer = layer
        (m, k), n, e = inputs.shape, weight.shape[0], inputs.element_size()
        return layer.ops.compute(
            layer.place,
            "gemm",
            lambda: functional.linear(inputs, weight, bias),
            lambda: Gemm(m, n, k, "TN", element_bytes=e),
        )

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, weight = ctx.saved_tensors
        layer: Linear = ctx.layer
        (m, k), n, e = inputs.shape, weight.shape[0], inputs.element_size()
        compute = partial(layer.ops.compute, layer.place, phase="bwd")
        of_weight = compute(
            "weight_gradient", lambda: gradient.t() @ inputs, lambda: Gemm(n, k, m, "NT", element_bytes=e)
        )
        of_bias = None
        if layer.bias is not None:
            of_bias = compute(
                "bias_gradient", lambda: gradient.sum(0), lambda: Memory(float(gradient.nbytes), work="bias_gradient")
            )
        of_input = compute("input_gradient", lambda: gradient @ weight, lambda: Gemm(m, k, n, "NN", element_bytes=e))
        return of_input, of_weight, of_bias, None


class Norm(nn.Module):
    """Layer norm of (m, h)."""

    def __init__(self, context: Context, name: str, place: Place) -> None:
        super().__init__()
        model = context.job.model
        self.ops, self.place, self.hidden, self.epsilon = context.ops, place, model.hidden, model.norm_epsilon
        context.store.declare(ParameterSpec(f"{name}.weight", (self.hidden,), (None,), constant=1.0))
        if model.norm_biases:
            context.store.declare(ParameterSpec(f"{name}.bias", (self.hidden,), (None,)))
        self.weight: nn.Parameter
        self.bias: nn.Parameter | None = None

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise (m, h)."""

        def run(x: torch.Tensor, weight: torch.Tensor, *bias: torch.Tensor) -> torch.Tensor:
            return functional.layer_norm(x, (self.hidden,), weight, bias[0] if bias else None, self.epsilon)

        size = float(inputs.nbytes)
        vectors = (self.weight,) if self.bias is None else (self.weight, self.bias)
        return Region(
            self.ops,
            self.place,
            "normalize",
            run,
            lambda: Memory(2 * size, work="norm/normalize"),
            lambda: Memory(3 * size, work="norm/gradient"),
            backward_name="gradient",
        )(inputs, *vectors)


class RmsNorm(nn.Module):
    """RMS norm of (m, h)."""

    def __init__(self, context: Context, name: str, place: Place) -> None:
        super().__init__()
        model = context.job.model
        self.ops, self.place, self.epsilon, self.wide = context.ops, place, model.norm_epsilon, context.master_type
        # what is only recorded stands for the devices of the job, though it lies on the CPU
        self.recorded = not context.initialised
        context.store.declare(ParameterSpec(f"{name}.weight", (model.hidden,), (None,), constant=1.0))
        self.weight: nn.Parameter

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Normalise (m, h)."""
        result: torch.Tensor = _RmsNorm.apply(inputs, self.weight, self)
        return result

    def moved(self, x: torch.Tensor, *, backward: bool) -> float:
        """Bytes that are read and written."""
        passes = rms.FUSED_PASSES if self.recorded else rms.passes(x)
        return float(passes[backward] * x.nbytes)


class _RmsNorm(torch.autograd.Function):
    """RMS norm whose two passes have names."""

    @staticmethod
    def forward(ctx: Any, inputs: torch.Tensor, weight: torch.Tensor, layer: RmsNorm) -> torch.Tensor:
        output, scale = layer.ops.compute(
            layer.place,
            "normalize",
            lambda: rms.normalized(inputs, weight, layer.epsilon, layer.wide),
            lambda: Memory(layer.moved(inputs, backward=False), work="norm/normalize"),
        )
        ctx.save_for_backward(inputs, weight, scale)
        ctx.layer = layer
        return output

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        inputs, weight, scale = ctx.saved_tensors
        layer: RmsNorm = ctx.layer

        def run() -> tuple[torch.Tensor, torch.Tensor | None]:
            return rms.input_gradient(gradient.contiguous(), inputs, scale, weight)

        of_inputs, of_weight = layer.ops.compute(
            layer.place,
            "gradient",
            run,
            lambda: Memory(layer.moved(inputs, backward=True), work="norm/gradient"),
            phase="bwd",
        )
        return of_inputs, None if of_weight is None else of_weight.to(weight.dtype), None


def norm_of(context: Context, name: str, place: Place) -> Norm | RmsNorm:
    """Make the norm that the model has."""
    return RmsNorm(context, name, place) if context.job.model.norm == "rms" else Norm(context, name, place)


class Embedding(nn.Module):
    """Looks up tokens, and adds learned positions if there are any."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        model = context.job.model
        self.context, self.place = context, Place("embedding")
        shapes = {"tokens": (model.vocabulary, model.hidden)}
        if model.positions == "learned":
            shapes["positions"] = (model.sequence, model.hidden)
        for name, shape in shapes.items():
            spec = ParameterSpec(f"embedding.{name}", shape, (None, None), decay=True, init=INIT)
            context.store.declare(spec)
        self.tokens: nn.Parameter
        self.positions: nn.Parameter | None = None

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens (sequences, s) to (sequences · s, h)."""

        def run(table: torch.Tensor, *positions: torch.Tensor) -> torch.Tensor:
            found = functional.embedding(tokens, table)
            for rows in positions:
                # a part of the rows would get its gradient in a copy of all
                found = found + (rows if rows.shape[0] == tokens.shape[1] else rows[: tokens.shape[1]])
            return found.flatten(0, 1)

        tables = [self.tokens] if self.positions is None else [self.tokens, self.positions]
        size = float(tokens.numel() * self.tokens.shape[1] * self.tokens.element_size())

        def backward() -> Memory:
            return Memory(len(tables) * size + sum(t.nbytes for t in tables), work="embedding/gradient")

        passes = 2 if self.positions is None else 4 + 1 / tokens.shape[0]  # a position's row serves all sequences
        return Region(
            self.context.ops,
            self.place,
            "lookup",
            run,
            lambda: Memory(passes * size, work="embedding/lookup"),
            backward,
            backward_name="gradient",
        )(*tables)


class Block(nn.Module):
    """Attention and MLP, each after a norm and beside the residual stream."""

    norm1: Norm | RmsNorm
    norm2: Norm | RmsNorm
    qkv: Linear
    projection: Linear
    mlp_up: Linear
    mlp_down: Linear

    def __init__(self, context: Context, layer: int) -> None:
        super().__init__()
        model = context.job.model
        self.context, self.place = context, Place(f"block{layer}", layer)
        self._tables: dict[int, rotary.Tables] = {}
        # what is added to the residual stream starts smaller, as in GPT-2
        smaller = INIT / (2 * model.layers) ** 0.5
        for name, (n, k) in model.block_linears.items():
            init = smaller if name in ("projection", "mlp_down") else INIT
            full = f"blocks.{layer}.{name}"
            bias = model.has_bias(name)
            self.add_module(name, Linear(context, full, self.place.under(name), n, k, bias=bias, init=init))
        for name in ("norm1", "norm2"):
            self.add_module(name, norm_of(context, f"blocks.{layer}.{name}", self.place.under(name)))

    def forward(self, stream: torch.Tensor, sequences: int) -> torch.Tensor:
        """Map the residual stream (m, h) to its next state."""
        ops, place = self.context.ops, self.place
        kept, side = branch(stream, ops, place, "residual1")
        attended = self._attend(self.qkv(self.norm1(side)), sequences)
        stream = add(kept, self.projection(attended), None, ops, place, "residual1")
        kept, side = branch(stream, ops, place, "residual2")
        inner = self._activate(self.mlp_up(self.norm2(side)))
        return add(kept, self.mlp_down(inner), None, ops, place, "residual2")

    def _activate(self, inner: torch.Tensor) -> torch.Tensor:
        model, size = self.context.job.model, float(inner.nbytes)
        kind, in_steps = model.mlp_kind, model.mlp_kind == "swiglu"
        smooth = exact_gelu if model.activation == "gelu_exact" else gelu
        function, passes = (swiglu_in_steps, (2.5, 5.5)) if in_steps else (smooth, (2.0, 3.0))
        forward, backward = (Memory(p * size, work=f"{kind}/steps" if in_steps else kind) for p in passes)
        return Region(self.context.ops, self.place, kind, function, lambda: forward, lambda: backward)(inner)

    def _attend(self, qkv: torch.Tensor, sequences: int) -> torch.Tensor:
        """Map q, k and v (m, queries + keys + values) to (m, queries); keys and values may have fewer heads."""
        ops, model = self.context.ops, self.context.job.model
        length, heads, size = qkv.shape[0] // sequences, model.heads, model.head_size
        e, fewer = qkv.element_size(), model.key_value_heads if model.key_value_heads < heads else None
        q, k, v = unpack(qkv, model.qkv_parts, ops, self.place)
        if model.positions == "rotary":
            tables = self.tables(length, qkv)
            turning = Memory(rotary.moved((q, k), tables, fused=False), work="rotary/steps")
            q, k = rotary.turn((q, k), tables, rotary.turned_in_steps, ops, self.place, lambda: turning)

        def run(*parts: torch.Tensor) -> torch.Tensor:
            q, k, v = (part.view(sequences, length, -1, size).transpose(1, 2) for part in parts)
            out = functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=fewer is not None)
            return out.transpose(1, 2).reshape(parts[0].shape[0], -1)

        forward, backward = (
            Attention(sequences, length, heads, size, backward=back, element_bytes=e, kv_heads=fewer)
            for back in (False, True)
        )
        return Region(ops, self.place, "attention", run, lambda: forward, lambda: backward)(q, k, v)

    def tables(self, length: int, like: torch.Tensor) -> rotary.Tables:
        """Cosines and sines of a length, made once."""
        if length not in self._tables:
            self._tables[length] = rotary.rotary_tables(self.context.job.model, length, like.device, like.dtype)
        return self._tables[length]


class PlainGPT(nn.Module):
    """The whole model."""

    def __init__(self, context: Context) -> None:
        super().__init__()
        model = context.job.model
        self.context = context
        # declared in the order in which the backward pass finishes with them: so checkpoints are laid out alike
        self.head = Linear(context, "head", Place("head"), model.vocabulary, model.hidden, bias=False, init=INIT)
        blocks = [Block(context, layer) for layer in reversed(range(model.layers))]
        self.blocks = nn.ModuleList(reversed(blocks))
        self.final_norm = norm_of(context, "final_norm", Place("final_norm"))
        self.embedding = Embedding(context)
        context.store.allocate()
        for name, parameter in context.store.parameters.items():
            path, _, leaf = name.rpartition(".")
            weight = nn.Parameter(parameter.weight.detach().view(parameter.spec.shape))
            module = self.get_submodule(path)
            if leaf in module.__dict__:  # None until now
                del module.__dict__[leaf]
            module.register_parameter(leaf, weight)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        """Map tokens (sequences, s) to logits (sequences · s, V)."""
        stream = self.embedding(tokens)
        for block in self.blocks:
            stream = block(stream, tokens.shape[0])
        logits: torch.Tensor = self.head(self.final_norm(stream))
        return logits


def cross_entropy(
    ops: Ops, logits: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, wide: torch.dtype
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the weighted sum of the tokens' losses, and the gradient of the logits (m, V).

    targets and weights are (m,): token ids, and what each token's loss counts for.
    """
    e, w = logits.element_size(), wide.itemsize
    cast = e + w if e < w else 0

    def run() -> tuple[torch.Tensor, torch.Tensor]:
        likelihood = functional.log_softmax(logits.detach().to(wide), 1)
        scale, at = weights.to(wide)[:, None], targets[:, None]
        loss = -(likelihood.gather(1, at) * scale).sum()
        gradient = likelihood.exp_().mul_(scale).scatter_add_(1, at, -scale)
        return loss, gradient.to(logits.dtype)

    return ops.compute(
        Place(""),
        "cross_entropy",
        run,
        lambda: Memory(float(logits.numel() * (2 * cast + 6 * w)), work="loss/cross_entropy"),
        phase="loss",
    )
