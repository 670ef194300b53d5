"""Cross-entropy over a vocabulary that is cut over tensor ranks, as each flavour's programs compute it.

Megatron's is a chain of eager operations in fp32 (`megatron/core/tensor_parallel/cross_entropy.py`), which divides
exponentials by their sums before it keeps them; `loss_fusion: native` is the same by `torch.compile`
(`megatron/core/fusions/fused_cross_entropy.py`), function by function. Transformer Engine's kernels
(`transformer_engine/pytorch/triton/cross_entropy.py`) read logits as they are, write the gradient of their sum where
those lay in the same forward pass, and multiply it by each token's own in the backward pass.
"""

from __future__ import annotations

from dataclasses import replace

from twin.schedule.emit import Emitter
from twin.schedule.kernels import Memory
from twin.strategies import work
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.linear import TENSOR
from twin.strategies.megatron.local import Local
from twin.strategies.sizes import FP32_BYTES

GATHERED_NUMBERS = 3
"""Of a token, that Transformer Engine gathers over tensor ranks at once: largest logit, sum, the target's logit."""
FUSED = "loss/fused"


def loss_forward(emit: Emitter, job: MegatronJob, local: Local) -> None:
    """Emit the loss; with flavour torch its gradient, too: PyTorch's last stage judges what it has just computed."""
    if job.loss_fusion == "te":
        _forward_te(emit, job, local)
        return
    for part, kernel in _parts(job, local).items():
        if part == "gradient" and job.flavour != "torch":
            continue
        emit.compute(part, kernel)
        if local.grid.tensor > 1 and part != "gradient":
            emit.under(part).collective("all_reduce", TENSOR, local.tokens * FP32_BYTES)


def loss_backward(emit: Emitter, job: MegatronJob, local: Local) -> None:
    """Emit what the backward pass begins with; nothing with flavour torch."""
    if job.loss_fusion == "te":
        emit.compute("scale", _over_logits(local, 2 * job.element_bytes))
    elif job.flavour != "torch":
        emit.compute("gradient", _parts(job, local)["gradient"])


def _parts(job: MegatronJob, local: Local) -> dict[work.LossPart, Memory]:
    parts = work.loss(job, local.tokens, local.vocabulary)
    if job.flavour == "torch" or job.loss_rows is not None:
        return parts
    if job.loss_fusion is None:  # with a division that others leave to the backward pass
        kernel = parts["sum"]
        divided = _over_logits(local, 2 * FP32_BYTES).bytes
        return parts | {"sum": replace(kernel, bytes=kernel.bytes + divided, kernels=kernel.kernels + 1)}
    cast = job.element_bytes + FP32_BYTES if job.element_bytes < FP32_BYTES else 0
    return {
        "maximum": _over_logits(local, cast or FP32_BYTES),  # to fp32 and max
        "sum": _over_logits(local, 4 * FP32_BYTES, kernels=2),  # subtract, exp and sum, then divide
        "target": parts["target"],
        "gradient": _over_logits(local, 2 * FP32_BYTES + cast, kernels=2 + (cast > 0)),  # softmax − 1, cast
    }


def _forward_te(emit: Emitter, job: MegatronJob, local: Local) -> None:
    emit.compute("sum", _over_logits(local, job.element_bytes))
    tensor = local.grid.tensor
    if tensor > 1:
        size = float(tensor * GATHERED_NUMBERS * local.tokens * FP32_BYTES)
        emit.under("sum").collective("all_gather", TENSOR, size)
    emit.compute("gradient", _over_logits(local, 2 * job.element_bytes))


def _over_logits(local: Local, bytes_each: int, kernels: int = 1) -> Memory:
    """Kernels that move so many bytes of each of a rank's logits."""
    return Memory(float(local.tokens * local.vocabulary * bytes_each), kernels, work=FUSED)
