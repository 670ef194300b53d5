"""One transformer block, the embedding and the head, forward and backward, on a tensor and context rank."""

from __future__ import annotations

from twin.schedule.emit import Emitter
from twin.schedule.kernels import Memory
from twin.strategies import work
from twin.strategies.megatron.attention import attention
from twin.strategies.megatron.linear import TENSOR, Linears
from twin.strategies.megatron.loss import loss_backward, loss_forward


def forward(emit: Emitter, linears: Linears, *, again: bool = False) -> None:
    """Forward of one block; `again`: for its backward pass, as far as its results are not kept."""
    job, local, block = linears.job, linears.local, linears.local.linears
    keeps = job.recompute_keeps if again else "nothing"
    halved, together = keeps == "half_products", _together(linears)
    emit.compute("norm1/normalize", _norm(linears))
    linears.forward(emit.under("qkv"), local.keys_alone if halved else block["qkv"])
    if job.model.qk_norm:
        emit.compute("qk_norm", work.head_norms(job, local.tokens * local.turned, backward=False))
    if job.model.positions == "rotary":
        emit.compute("rotary", _rotary(linears))
    if keeps == "nothing":
        attention(emit, job, local, backward=False)
    linears.forward(emit.under("projection"), block["projection"], summed=not (halved or together))
    if together:  # parts of sums: they are summed over ranks with those of the MLP
        emit.compute("residual1", work.residual_branch(job, local.tokens * job.model.hidden))
    else:
        _residual(emit, linears, "projection", "residual1")
    if _second_norm(linears):
        emit.compute("norm2/normalize", _norm(linears))
    if not halved:
        linears.forward(emit.under("mlp_up"), block["mlp_up"], gathered=together)
    elif job.model.mlp_kind == "swiglu":
        linears.forward(emit.under("mlp_up"), local.gate_alone, gathered=together)
    emit.compute(job.model.mlp_kind, _activation(linears, backward=False))
    if again and job.flavour == "torch" and not job.dropout:
        return  # nothing needs what comes now (`torch.utils.checkpoint.set_checkpoint_early_stop`), but for a mask
    if not (halved and job.keeps_down):
        linears.forward(emit.under("mlp_down"), block["mlp_down"], summed=not halved)
    _residual(emit, linears, "mlp_down", "residual2")


def _activation(linears: Linears, *, backward: bool) -> Memory:
    """GELU or SwiGLU of the MLP."""
    local = linears.local
    return work.activation(linears.job, local.tokens, local.mlp_up, local.mlp, backward=backward)


def _together(linears: Linears) -> bool:
    """Whether attention and MLP, which read the same, are gathered for and summed over tensor ranks together."""
    return linears.split and linears.job.model.residual == "parallel"


def _second_norm(linears: Linears) -> bool:
    """Whether the MLP has a norm of its own: MegaScale's parallel block has one for both, GPT-NeoX's two."""
    return linears.job.model.residual == "serial" or linears.job.flavour == "torch"


def _norm(linears: Linears) -> Memory:
    job, elements = linears.job, linears.local.residual_elements
    return work.norm_in_steps(job, elements) if job.layers_in_steps else work.norm(job, elements)


def _norm_gradient(linears: Linears) -> Memory:
    job, elements = linears.job, linears.local.residual_elements
    return work.norm_gradient_in_steps(job, elements) if job.layers_in_steps else work.norm_gradient(job, elements)


def _rotary(linears: Linears) -> Memory:
    job, local = linears.job, linears.local
    turned = local.tokens * local.turned
    return work.rotary_in_steps(job, turned) if job.layers_in_steps else work.rotary(job, turned, local.length)


def _residual(emit: Emitter, linears: Linears, linear: str, name: str) -> None:
    """Bias, dropout and residual: of a row-parallel linear the bias is added to the complete sum."""
    job, local = linears.job, linears.local
    if not job.fused_residual:
        _residual_in_steps(emit, linears, linear, name)
        return
    if linears.split and local.linears[linear].bias and (job.flavour == "torch" or not job.fused_elementwise):
        emit.compute(f"{name}_bias", work.bias(float(local.residual_elements * job.element_bytes)))
    if job.dropout and (job.flavour == "torch" or not job.fused_elementwise):
        emit.compute(f"{name}_mask", work.dropout_mask(job, local.residual_tokens, job.model.hidden))
    emit.compute(name, work.residual(job, local.residual_elements))


def _residual_in_steps(emit: Emitter, linears: Linears, linear: str, name: str) -> None:
    job, elements = linears.job, linears.local.residual_elements
    if linears.local.linears[linear].bias:
        emit.compute(f"{name}_bias", work.bias(float(elements * job.element_bytes)))
    if job.dropout:
        emit.compute(f"{name}_drop", work.dropped(job, elements))
    emit.compute(name, work.residual_branch(job, elements))


def recompute_attention(emit: Emitter, linears: Linears) -> None:
    """Attention again, for a backward pass that kept none of what it made."""
    attention(emit.under("again"), linears.job, linears.local, backward=False)


def backward(emit: Emitter, linears: Linears) -> None:
    """Backward of one block, or the half of it that `linears` says."""
    job, local, block, half = linears.job, linears.local, linears.local.linears, linears.half
    if half == "weight":
        for name in reversed(block):
            linears.backward(emit.under(name), block[name])
        return
    parallel, together = job.model.residual == "parallel", _together(linears)
    branch = work.residual_branch(job, local.residual_elements)
    _dropout(emit, linears, "residual2")
    linears.backward(emit.under("mlp_down"), block["mlp_down"])
    emit.compute(job.model.mlp_kind, _activation(linears, backward=True))
    # GPT-NeoX sums the input gradients of both over tensor ranks apart
    linears.backward(emit.under("mlp_up"), block["mlp_up"], summed=not together or job.flavour == "deepspeed")
    if _second_norm(linears):
        emit.compute("norm2/gradient", _norm_gradient(linears))
    if not parallel:
        emit.compute("residual2", branch)
    _dropout(emit, linears, "residual1")
    linears.backward(emit.under("projection"), block["projection"], gathered=together)
    attention(emit, job, local, backward=True)
    if job.model.positions == "rotary":
        emit.compute("rotary", _rotary(linears))
    if job.model.qk_norm:
        emit.compute("qk_norm", work.head_norms(job, local.tokens * local.turned, backward=True))
    emit.compute("pack", work.pack(job, local.tokens * local.qkv))
    linears.backward(emit.under("qkv"), block["qkv"], gathered=together)
    emit.compute("norm1/gradient", _norm_gradient(linears))
    if parallel:
        emit.compute("residual2", branch)
    emit.compute("residual1", branch)


def _dropout(emit: Emitter, linears: Linears, name: str) -> None:
    if linears.job.dropout:
        emit.compute(f"{name}_dropout", work.residual_dropout(linears.job, linears.local.residual_elements))


def embedding_forward(emit: Emitter, linears: Linears) -> None:
    """Look up a rank's part of the vocabulary, and sum over tensor ranks."""
    job, local = linears.job, linears.local
    elements = local.tokens * job.model.hidden
    apart = _positions_apart(linears)
    moved = 2.0 * elements * job.element_bytes
    rows = Memory(moved, work="embedding/lookup") if apart else work.lookup(job, elements, local.sequences)
    emit.compute("lookup", rows)
    if linears.scattered:
        linears.scatter(emit)
    elif linears.split:
        emit.collective("all_reduce", TENSOR, local.whole_bytes)
    if apart and job.model.positions == "learned":
        stream = float(local.residual_elements * job.element_bytes)
        emit.compute("positions", Memory(2 * stream + stream / local.sequences, work="embedding/lookup"))


def _positions_apart(linears: Linears) -> bool:
    """Whether rows of positions are added to the sum of tensor ranks' rows of tokens, as PyTorch's modules do."""
    return linears.split and linears.job.flavour == "torch"


def embedding_backward(emit: Emitter, linears: Linears) -> None:
    """Scatter-add into the tables' gradients."""
    job, local = linears.job, linears.local
    if job.flavour == "torch":
        _embedding_backward_torch(emit, linears)
        return
    if linears.scattered:
        linears.gather(emit, local.whole_bytes)
    kernel = work.lookup_gradient(
        job,
        local.tokens * job.model.hidden,
        local.sequences,
        tokens=local.table,
        positions=local.positions,
        first=linears.first,
    )
    emit.compute("gradient", kernel)


def _embedding_backward_torch(emit: Emitter, linears: Linears) -> None:
    """The same by autograd: into new zeros as large as each table, in compute precision."""
    job, local = linears.job, linears.local
    elements, e = local.tokens * job.model.hidden, job.element_bytes
    if not linears.split:
        tables = (local.table, local.positions) if local.positions else (local.table,)
        emit.compute("gradient", work.lookup_gradient_by_autograd(job, elements, *tables))
        return
    if local.positions:
        size = float((local.residual_elements + local.positions) * e)
        emit.compute("positions", Memory(size, work="embedding/gradient"))
    if linears.scattered:
        linears.gather(emit, local.whole_bytes)
    emit.compute("gradient", Memory(float((elements + local.table) * e), work="embedding/gradient"))


def head_forward(emit: Emitter, linears: Linears) -> None:
    """Last norm, output head, and the loss of a vocabulary that is cut over tensor ranks."""
    job, local = linears.job, linears.local
    emit.compute("final_norm/normalize", _norm(linears))
    linears.forward(emit.under("head"), local.head)
    loss_forward(emit.under("loss", phase="loss"), job, local)


def head_backward(emit: Emitter, linears: Linears) -> None:
    """Gradient of the loss, the head and the last norm, or the half that `linears` says."""
    job, local = linears.job, linears.local
    if linears.half != "weight":
        loss_backward(emit.under("loss", phase="loss"), job, local)
    linears.backward(emit.under("head"), local.head)
    if linears.half != "weight":
        emit.compute("final_norm/gradient", _norm_gradient(linears))
