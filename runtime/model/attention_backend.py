"""The kernel that PyTorch will take for attention: worth knowing before a run, for one of them is slow and large.

`scaled_dot_product_attention` falls back to plain products where no fused kernel takes the shapes: every score then
lies in memory. PyTorch is asked which it will take of shapes like those at hand: on Hopper and later that is cuDNN's,
where its release is new enough, on others FlashAttention's. A job may name one of its kernels, which it then takes.
"""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from twin.description.attention import UNFUSED
from twin.description.job import Job
from twin.description.problems import DescriptionError, Problem

CPU = "cpu"
"""The one fused kernel that PyTorch has for CPUs."""
MATH = "math"
"""Plain products, all scores in memory."""
NAMES = {
    SDPBackend.FLASH_ATTENTION: "flash",
    SDPBackend.EFFICIENT_ATTENTION: "efficient",
    SDPBackend.CUDNN_ATTENTION: "cudnn",
}
NAMED: dict[str, SDPBackend] = {
    "flash2": SDPBackend.FLASH_ATTENTION,
    "cutlass": SDPBackend.EFFICIENT_ATTENTION,
    "cudnn": SDPBackend.CUDNN_ATTENTION,
}
"""What a job may name, beside the forms that every device has."""
OF_PARTS = "flash2"
"""The one by which ranks that share sequences meet parts of them, on GPUs (`runtime.model.partial_attention`)."""
MAX_SCORE_BYTES = 2.0**30
"""Scores of a layer, in fp32, above which plain products are refused: nobody who asked for flash wants more."""


def kernel_of(form: str) -> AbstractContextManager[object]:
    """Return a context in which PyTorch takes the kernel that a job names; any, where it names none."""
    return sdpa_kernel(NAMED[form]) if form in NAMED else nullcontext()


def attention_backend(job: Job, device: torch.device, dtype: torch.dtype, heads: int, kv_heads: int) -> str:
    """Name what computes attention of so many heads on this device: flash, efficient, cudnn, math, or the job's form.

    On CPUs PyTorch has one fused kernel: cpu. Parts of a sequence are met by FlashAttention's alone.
    """
    if job.attention in UNFUSED:
        return job.attention
    if device.type != "cuda":
        return CPU
    length, size = job.model.sequence, job.model.head_size
    query = torch.empty((1, heads, length, size), dtype=dtype, device=device, requires_grad=True)
    keys = torch.empty((1, kv_heads, length, size), dtype=dtype, device=device, requires_grad=True)
    mask = torch.empty((1, 1, length, length), dtype=dtype, device=device) if job.document_mask else None
    with kernel_of(OF_PARTS if job.attends_to_parts else job.attention):
        return chosen(query, keys, mask)


def chosen(query: torch.Tensor, keys: torch.Tensor, mask: torch.Tensor | None) -> str:
    """Name what `scaled_dot_product_attention` will take for queries and keys (sequences, heads, s, d).

    Plain products, too, where it would take none.
    """
    fewer = keys.shape[1] < query.shape[1]
    # what the call itself asks; exported under no other name
    try:
        found = torch._fused_sdp_choice(query, keys, keys, mask, 0.0, mask is None, enable_gqa=fewer)
    except RuntimeError:  # there is none of those allowed
        return MATH
    return NAMES.get(SDPBackend(found), MATH)


def named_kernels(query: torch.Tensor, keys: torch.Tensor) -> tuple[list[str], str]:
    """Return the names in jobs of the kernels that PyTorch has for queries and keys, and of the one that it takes.

    The form `plain` where it takes none.
    """

    def name_of(backend: str) -> str:
        return next((name for name, kernel in NAMED.items() if NAMES[kernel] == backend), "plain")

    there = []
    for name in NAMED:
        with kernel_of(name):
            if name_of(chosen(query, keys, None)) == name:
                there.append(name)
    return there, name_of(chosen(query, keys, None))


def settled_backend(job: Job, device: torch.device, dtype: torch.dtype) -> str:
    """Name what computes attention of a rank's heads.

    Raises DescriptionError if that is plain products whose scores would not be small, or not the kernel that the job
    names. Ranks that see the same tokens and layers are taken to share heads among them.
    """
    grid = job.concrete_grid
    sharing = max(1, job.ranks // (grid.replicas * grid.depth))
    heads, kv_heads = (max(1, n // sharing) for n in (job.model.heads, job.model.key_value_heads))
    backend = attention_backend(job, device, dtype, heads, kv_heads)
    if problems := check_backend(job, backend, heads):
        raise DescriptionError(problems)
    return backend


def check_backend(job: Job, backend: str, heads: int) -> list[Problem]:
    """Return why a run should not begin: plain products whose scores are not small, or another kernel than named."""
    # PyTorch's own call pads heads, this one does not
    unpadded = backend != CPU and job.model.head_size % 8
    if job.attends_to_parts and (unpadded or backend not in (NAMES[NAMED[OF_PARTS]], CPU)):
        remedy = (
            "PyTorch's FlashAttention, by which ranks meet parts of a sequence, does not take these shapes on this "
            "device; use bf16 and heads of at most 256 in multiples of 8, or context_exchange: all_to_all"
        )
        return [Problem("attention", remedy, job.attention)]
    if job.attention in NAMED and NAMES[NAMED[job.attention]] != backend:
        remedy = "PyTorch has no such kernel for these shapes on this device; use flash, for which it takes what it has"
        return [Problem("attention", remedy, job.attention)]
    scores = 4.0 * job.concrete_micro_sequences * heads * job.model.sequence**2
    if backend != MATH or scores <= MAX_SCORE_BYTES:
        return []
    remedy = (
        f"no fused kernel of PyTorch takes these shapes on this device, and all scores of a layer would take "
        f"{scores / 1e9:.1f} GB; use a head size that is a multiple of 8 and at most 256, bf16, no document_mask, or "
        "attention: plain if that is what you want"
    )
    return [Problem("attention", remedy, job.attention)]
