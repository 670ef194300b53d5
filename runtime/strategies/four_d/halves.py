"""A micro-step's sequences in two halves, whose passes take turns at the waits for all-reduces over x and y.

Each half is a greenlet that runs its forward and backward pass. Where it would wait for an all-reduce of activations
the other goes on, so that products hide what is under way. Autograd never sees a wait: a half's pass is written out
below, and autograd differentiates what lies between products, norms and the loss, a piece at a time.

The first half comes first everywhere: it gathers the weights, which are there for the second, and lays its weight
gradients down, to which the second adds its own before they leave for z.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from greenlet import getcurrent, greenlet
from torch.autograd.graph import GradientEdge, get_gradient_edge

from runtime.model.documents import documents_of
from runtime.model.elementwise import residual
from runtime.model.kept_attention import KeptAttention
from runtime.parallel.differentiate import gradients
from runtime.parallel.mesh import Communicator
from runtime.strategies.four_d.again import Again, Make
from runtime.strategies.four_d.block import Block
from runtime.strategies.four_d.context import FourDContext
from runtime.strategies.four_d.layers.linear import Linear4D, Product
from runtime.strategies.four_d.model import GPT
from runtime.strategies.four_d.parts import Parts
from twin.schedule.kernels import Memory
from twin.strategies.four_d.halves import TENSOR_AXES

if TYPE_CHECKING:
    from runtime.model.context import Documents
    from twin.schedule.ops import Phase


def loss_of_halves(
    model: GPT, tokens: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, documents: torch.Tensor | None
) -> torch.Tensor:
    """Return the weighted sum of token losses of one micro-step, and go backward through it; see `GPT.loss`."""
    context, count = model.context, tokens.shape[0] // 2
    begin = context.first_sequence
    halves = [
        _Half(
            number,
            begin + number * count,
            partial(_loss, model, *(part[number * count :][:count] for part in (tokens, targets, weights))),
            None if documents is None else documents[number * count :][:count],
        )
        for number in range(2)
    ]
    try:
        with torch.no_grad():
            _take_turns(context, halves)
        context.gathers.end_micro_step()  # gradients leave with the second half
    finally:
        context.half = context.ops.half = context.ops.pause = None
        context.first_sequence, context.documents, context.ops.forward_phase = begin, None, "fwd"
        context.gathers.held.clear()
    return halves[0].loss + halves[1].loss


@dataclass
class _Half:
    """One half, and what the context says while it is at work."""

    number: int
    first_sequence: int
    work: Callable[[torch.Tensor | None], torch.Tensor]
    """Its passes, of where its documents begin; returns its loss."""
    begins: torch.Tensor | None
    phase: Phase = "fwd"
    documents: Documents | None = None
    loss: torch.Tensor = field(init=False)

    def run(self) -> None:
        """Run its passes."""
        self.loss = self.work(self.begins)


def _take_turns(context: FourDContext, halves: Sequence[_Half]) -> None:
    """Let the halves run by turns, each up to where it would wait for an all-reduce over x or y."""
    turns = getcurrent()

    def pause(communicator: Communicator) -> None:
        if communicator in TENSOR_AXES and getcurrent() is not turns:
            turns.switch()

    context.ops.pause = pause
    lanes = [greenlet(half.run) for half in halves]
    while not all(lane.dead for lane in lanes):
        for half, lane in zip(halves, lanes, strict=True):
            if not lane.dead:
                context.half = context.ops.half = half.number
                context.first_sequence, context.documents = half.first_sequence, half.documents
                context.ops.forward_phase = half.phase
                lane.switch()
                half.phase, half.documents = context.ops.forward_phase, context.documents


def _loss(
    model: GPT, tokens: torch.Tensor, targets: torch.Tensor, weights: torch.Tensor, begins: torch.Tensor | None
) -> torch.Tensor:
    """Forward, loss and backward of one half."""
    context, job, leads = model.context, model.context.job, model.context.half == 0
    blocks: list[Block] = list(model.blocks)  # type: ignore[arg-type]  # a ModuleList forgets of what
    if leads:
        model.gather_all()
    context.documents = None if begins is None else documents_of(context, begins)
    stream = model.embedding.lookup(tokens)
    sequences = tokens.shape[0]
    kept: list[_Inputs | _Kept] = []
    for block in blocks:
        again = block.layer < job.recomputed_layers
        results = KeptAttention() if block.layer < job.attention_kept_layers else None
        result = forward(block, stream, sequences, results, keep=not again)
        kept.append(_Inputs(stream, results) if again else result)
        stream = result.output
    normed, *statistics = model.final_norm.normalize(stream)
    logits = _product(model.head, normed).output
    if leads:
        model.gather_all_again()
    loss, gradient = model.cross_entropy(logits, targets, weights, with_gradient=True)
    assert gradient is not None
    del logits
    down = _product_gradient(model.head, _kept(normed), gradient)
    down = model.final_norm.gradient(down, stream, *statistics)
    del normed, statistics, gradient, stream
    if not leads:
        model.block_done(None)
    for block in reversed(blocks):
        if leads:
            model.gather_again(block.layer)
        found = kept.pop()
        if isinstance(found, _Inputs):
            with context.ops.recomputing():
                found = forward(block, found.stream, sequences, found.results, keep=True)
        down = backward(block, found, down)
        if not leads:
            model.block_done(block.layer)
    model.embedding.scatter_gradient(tokens, down)
    return loss


@dataclass
class _Piece:
    """What autograd differentiates by itself: from detached inputs to an output."""

    inputs: tuple[torch.Tensor, ...]
    graph: GradientEdge | None
    """Where the gradient of the output goes in; it does not keep the output."""

    def gradient(self, of_output: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return the gradients of the inputs; what was kept for them is let go."""
        assert self.graph is not None
        found = gradients(self.graph, self.inputs, of_output)
        self.graph, self.inputs = None, ()
        return found


def _piece(
    run: Callable[..., torch.Tensor], *inputs: torch.Tensor, keep: bool, values: bool = True
) -> tuple[torch.Tensor, _Piece]:
    """Return an output, without a graph, and what differentiates it; `values`: which needs those of the inputs."""
    if not keep:
        return run(*inputs), _Piece((), None)
    leaves = tuple(x.detach().requires_grad_() for x in inputs)
    with torch.enable_grad():
        output = run(*leaves)
    if not values:  # the leaves stand for gradients alone
        for leaf in leaves:
            leaf.data = leaf.new_empty(()).expand(leaf.shape)
    return output.detach(), _Piece(leaves, get_gradient_edge(output))


class _Inputs(NamedTuple):
    """What a block runs again from."""

    stream: torch.Tensor
    results: KeptAttention | None


@dataclass
class _Kept:
    """What a block's backward pass needs of its forward pass, and its output."""

    output: torch.Tensor
    norms: tuple[tuple[Any, ...], ...] = ()
    """Input and statistics of each."""
    inputs: tuple[Make, ...] = ()
    """Of the four linears, as their products read them."""
    pieces: tuple[_Piece, ...] = ()
    """Attention, first residual sum, activation, second residual sum."""
    parts: tuple[Parts | None, Parts | None] = (None, None)
    """Among which attention and the activation are divided."""


def forward(
    block: Block, stream: torch.Tensor, sequences: int, results: KeptAttention | None = None, *, keep: bool
) -> _Kept:
    """Map the residual stream (m, h/G_x) to its next state, the result's output; `results` as in `Block.forward`."""
    context, place = block.context, block.place
    columns = stream.shape[1] * context.mesh.coordinates["x"]
    twice = results is not None and results.filled

    def add(name: str, linear: Linear4D, *, summed: bool = True) -> Callable[..., torch.Tensor]:
        return lambda x, update: residual(
            context, place, name, x, update, linear.bias_left, first_column=columns, summed=summed
        )

    parts = Parts.of_attention(context, sequences)
    first, *statistics1 = block.norm1.normalize(stream)
    wanted = _product(block.qkv, first, parts)
    given, attention = _piece(lambda qkv: block.attend(qkv, sequences, parts, results), wanted.output, keep=keep)
    attended = _product(block.projection, given, parts, results.take() if results and twice else None)
    if results is not None and not twice:
        results.fill(attended.output)
    middle, sum1 = _piece(add("residual1", block.projection), stream, attended.output, keep=keep, values=False)
    side = stream if block.parallel else middle
    second, *statistics2 = block.norm2.normalize(side)
    tokens = Parts.of_mlp(context, stream.shape[0])
    wide = _product(block.mlp_up, second, tokens)
    active, activation = _piece(block.activated, wide.output, keep=keep)
    ends = twice or block.stops_early
    inner = _product(block.mlp_down, active, tokens, middle.new_zeros(()).expand_as(middle) if ends else None)
    second_sum = add("residual2", block.mlp_down, summed=not ends)
    output, sum2 = _piece(second_sum, middle, inner.output, keep=keep, values=False)
    if not keep:
        return _Kept(output)
    norms = ((stream, *statistics1), (side, *statistics2))
    inputs = (_kept(wanted.inputs), _kept(attended.inputs), _kept(wide.inputs), _kept(inner.inputs))
    if block.layer < context.job.products_kept_layers:
        norm1 = partial(block.norm1.normalize_again, stream, *statistics1)
        norm2 = partial(block.norm2.normalize_again, side, *statistics2)
        inputs = (
            _again(block.qkv, norm1, parts),
            inputs[1],
            _again(block.mlp_up, norm2, tokens),
            _again(block.mlp_down, partial(block.activated, wide.output), tokens),
        )
    return _Kept(output, norms, inputs, (attention, sum1, activation, sum2), (parts, tokens))


def _kept(inputs: torch.Tensor) -> Make:
    return lambda: inputs


def _again(linear: Linear4D, make: Make, parts: Parts | None) -> Make:
    """What a linear read, made a second time."""
    again = Again(linear.context)
    again.by(make)
    return partial(linear.read_again, again, parts)


def backward(block: Block, kept: _Kept, down: torch.Tensor) -> torch.Tensor:
    """Map the gradient of a block's output to that of its input; lay down those of its parameters."""
    (stream, *statistics1), (side, *statistics2) = kept.norms
    first, attended, second, inner = kept.inputs
    attention, sum1, activation, sum2 = kept.pieces
    parts, tokens = kept.parts
    down, update = sum2.gradient(down)
    (wide,) = activation.gradient(_product_gradient(block.mlp_down, inner, update, tokens))
    other = _product_gradient(block.mlp_up, second, wide, tokens)
    other = block.norm2.gradient(other, side, *statistics2)
    if not block.parallel:
        down = _meet(block, "residual2", down, other)
    down, update = sum1.gradient(down)
    (qkv,) = attention.gradient(_product_gradient(block.projection, attended, update, parts))
    one = _product_gradient(block.qkv, first, qkv, parts)
    one = block.norm1.gradient(one, stream, *statistics1)
    if block.parallel:
        down = _meet(block, "residual2", down, other)
    return _meet(block, "residual1", down, one)


def _product(
    linear: Linear4D, inputs: torch.Tensor, parts: Parts | None = None, given: torch.Tensor | None = None
) -> Product:
    product = linear.compute_forward(inputs, parts, given)
    if linear.context.half == 1 and linear.context.ops.forward_phase == "fwd":
        linear.context.gathers.release(linear.weight_shard, after_forward=True)
    return product


def _product_gradient(
    linear: Linear4D, inputs: Make, gradient: torch.Tensor, parts: Parts | None = None
) -> torch.Tensor:
    found = linear.compute_backward(inputs, gradient, need_input=True, parts=parts)
    assert found is not None
    if linear.context.half == 1:
        linear.context.gathers.release(linear.weight_shard)
    return found


def _meet(block: Block, name: str, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Add the gradients that meet where the residual stream branches."""
    ops = block.context.ops
    return ops.compute(
        block.place, name, lambda: one + other, lambda: Memory(3.0 * one.nbytes, work="residual"), phase="bwd"
    )
