"""One transformer block, the embedding and the head, forward and backward, on a tensor and context rank."""

from __future__ import annotations

from twin.schedule.emit import Emitter
from twin.strategies import work
from twin.strategies.megatron.attention import attention
from twin.strategies.megatron.linear import TENSOR, Linears
from twin.strategies.sizes import FP32_BYTES


def forward(emit: Emitter, linears: Linears) -> None:
    """Forward of one block."""
    job, local, block = linears.job, linears.local, linears.local.linears
    emit.compute("norm1", work.norm(job, local.residual_elements))
    linears.forward(emit.under("qkv"), block["qkv"])
    if job.model.qk_norm:
        emit.compute("qk_norm", work.head_norms(job, local.tokens * local.turned, backward=False))
    if job.model.positions == "rotary":
        emit.compute("rotary", work.rotary(job, local.tokens * local.turned, local.length))
    attention(emit, job, local, backward=False)
    linears.forward(emit.under("projection"), block["projection"])
    _residual(emit, linears, "projection", "residual1")
    if job.model.residual == "serial":
        emit.compute("norm2", work.norm(job, local.residual_elements))
    linears.forward(emit.under("mlp_up"), block["mlp_up"])
    emit.compute(job.model.mlp_kind, work.activation(job, local.tokens, local.mlp_up, local.mlp, backward=False))
    linears.forward(emit.under("mlp_down"), block["mlp_down"])
    _residual(emit, linears, "mlp_down", "residual2")


def _residual(emit: Emitter, linears: Linears, linear: str, name: str) -> None:
    """Bias, dropout and residual: of a row-parallel linear the bias is added to the complete sum."""
    job, local = linears.job, linears.local
    if linears.split and local.linears[linear].bias and not job.fused_elementwise:
        emit.compute(f"{name}_bias", work.bias(float(local.residual_elements * job.element_bytes)))
    if job.dropout and not job.fused_elementwise:
        emit.compute(f"{name}_mask", work.dropout_mask(job, local.residual_tokens, job.model.hidden))
    emit.compute(name, work.residual(job, local.residual_elements))


def recompute_scores(emit: Emitter, linears: Linears) -> None:
    """Attention again, for a backward pass that kept none of its scores."""
    attention(emit.under("again"), linears.job, linears.local, backward=False)


def backward(emit: Emitter, linears: Linears) -> None:
    """Backward of one block, or the half of it that `linears` says."""
    job, local, block, half = linears.job, linears.local, linears.local.linears, linears.half
    if half == "weight":
        for name in reversed(block):
            linears.backward(emit.under(name), block[name])
        return
    parallel = job.model.residual == "parallel"
    branch = work.residual_branch(job, local.residual_elements)
    _dropout(emit, linears, "residual2")
    linears.backward(emit.under("mlp_down"), block["mlp_down"])
    emit.compute(job.model.mlp_kind, work.activation(job, local.tokens, local.mlp_up, local.mlp, backward=True))
    linears.backward(emit.under("mlp_up"), block["mlp_up"])
    if not parallel:
        emit.compute("norm2", work.norm_gradient(job, local.residual_elements))
        emit.compute("residual2", branch)
    _dropout(emit, linears, "residual1")
    linears.backward(emit.under("projection"), block["projection"])
    attention(emit, job, local, backward=True)
    if job.model.positions == "rotary":
        emit.compute("rotary", work.rotary(job, local.tokens * local.turned, local.length))
    if job.model.qk_norm:
        emit.compute("qk_norm", work.head_norms(job, local.tokens * local.turned, backward=True))
    emit.compute("pack", work.pack(job, local.tokens * local.qkv))
    linears.backward(emit.under("qkv"), block["qkv"])
    emit.compute("norm1", work.norm_gradient(job, local.residual_elements))
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
    emit.compute("lookup", work.lookup(job, elements, local.sequences))
    if linears.split:
        emit.collective("reduce_scatter" if linears.scattered else "all_reduce", TENSOR, local.whole_bytes)


def embedding_backward(emit: Emitter, linears: Linears) -> None:
    """Scatter-add into the tables' gradients."""
    job, local = linears.job, linears.local
    if linears.scattered:
        emit.collective("all_gather", TENSOR, local.whole_bytes)
    kernel = work.lookup_gradient(
        job,
        local.tokens * job.model.hidden,
        local.sequences,
        tokens=local.table,
        positions=local.positions,
        first=linears.first,
    )
    emit.compute("gradient", kernel)


def head_forward(emit: Emitter, linears: Linears) -> None:
    """Last norm, output head, and the loss of a vocabulary that is cut over tensor ranks."""
    job, local = linears.job, linears.local
    emit.compute("final_norm", work.norm(job, local.residual_elements))
    linears.forward(emit.under("head"), local.head)
    loss = emit.under("loss", phase="loss")
    for part, kernel in work.loss(job, local.tokens, local.vocabulary).items():
        if part == "gradient":
            continue
        loss.compute(part, kernel)
        if linears.split:
            loss.collective("all_reduce", TENSOR, local.tokens * FP32_BYTES, f"{part}/all_reduce")


def head_backward(emit: Emitter, linears: Linears) -> None:
    """Gradient of the loss, the head and the last norm, or the half that `linears` says."""
    job, local = linears.job, linears.local
    if linears.half != "weight":
        gradient = work.loss(job, local.tokens, local.vocabulary)["gradient"]
        emit.under("loss", phase="loss").compute("gradient", gradient)
    linears.backward(emit.under("head"), local.head)
    if linears.half != "weight":
        emit.compute("final_norm", work.norm_gradient(job, local.residual_elements))
