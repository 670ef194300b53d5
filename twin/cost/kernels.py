"""The time that one kernel op takes on an otherwise idle device.

* Matrix products: `twin.cost.gemm`.
* Attention, fused: the flops of the unmasked half (of all, if it is not causal), at the share of peak of its
  kernel, which depends on head size and length, on as many units as there are blocks of rows. Unfused: two batched
  products (four in backward) and memory passes over the score matrix between them, nothing skipped.
* Memory-bound work: bytes at the rate ordinary framework kernels reach, and never less than a
  device's floor for each kernel.

The time the CPU needs to issue kernels is not here: see `Device.host_seconds`.
"""

from __future__ import annotations

import math
from typing import assert_never

from twin.cost.gemm import gemm_seconds
from twin.description.attention import UNFUSED
from twin.description.device import AttentionModel, Device
from twin.schedule.kernels import Attention, Gemm, Kernel, Memory
from twin.schedule.ops import Phase

_COMPUTED_BACKWARD = 2.5 / 2.0
"""Fused backward computes Q·Kᵀ again: 2.5 × forward, of which `Attention.flops` counts 2."""


def measured_kind(device: Device, kernel: Kernel, phase: Phase) -> str:
    """Return the key of `Device.kernels` or `memory_shares` for a memory-bound kernel; empty if none was measured.

    It is the kernel's kind of work, of backward passes with `bwd/` before it.
    """
    if not isinstance(kernel, Memory) or not kernel.work:
        return ""
    kind = kind_of_work(kernel.work, phase)
    return kind if kind in device.kernels or kind in device.memory_shares else ""


def kind_of_work(work: str, phase: Phase) -> str:
    """Name a kind of work as `Device.kernels` does.

    >>> kind_of_work("norm/gradient", "bwd"), kind_of_work("residual", "recompute")
    ('bwd/norm/gradient', 'residual')
    """
    return f"bwd/{work}" if phase == "bwd" else work


def kernel_seconds(device: Device, kernel: Kernel, *, tuned: bool = True, kind: str | None = None) -> float:
    """Return the seconds of one kernel op; `tuned` as in `gemm_seconds`, `kind` of `measured_kind`."""
    match kernel:
        case Gemm():
            return gemm_seconds(device, kernel, tuned=tuned)
        case Attention():
            if kernel.form in UNFUSED:
                return _plain_attention_seconds(device, kernel, tuned=tuned)
            return _fused_attention_seconds(device, kernel)
        case Memory():
            rate = device.kernels.get(kind or "")
            if rate is not None:
                return rate.start_seconds + kernel.bytes / rate.rate_bytes_per_second
            return memory_seconds(device, kernel, kind or "")
    assert_never(kernel)


def memory_seconds(device: Device, memory: Memory, kind: str = "") -> float:
    """Return the streaming time of a `kind` of work, each kernel's start included: a kernel ramps up and drains."""
    rate = device.memory_bandwidth_bytes_per_second * device.memory_shares.get(kind, device.elementwise_efficiency)
    arithmetic = memory.flops / device.peak_flops_per_second
    return max(memory.bytes / rate, arithmetic) + memory.kernels * device.kernel_latency_seconds


_WIDE_HEAD = 128
"""Head size that the shares of an attention kernel refer to."""
_FP32_BYTES = 4
_WIDEST_HEAD = 256
"""Head size of the widest kernels: nothing was measured beyond it, and wider ones are taken to be no faster."""


_CUDNN, _FLASH2, _CUTLASS = "cudnn", "flash2", "cutlass"


def attention_name(device: Device, attention: Attention) -> str:
    """Name the kernel that does it; of `flash` the first that takes such shapes, in PyTorch's order.

    cuDNN's and FlashAttention's take 16 bits alone, FlashAttention's no mask, cuDNN's no heads wider than 128 (for
    some releases 256, never measured here), and what is left is xformers' cutlass (pytorch, `sdp_utils.cpp`). Where a
    device has no rates of what would be taken, those of its usual kernel stand for it.
    """
    if attention.form != "flash":
        return attention.form
    usual, narrow = device.usual_attention, attention.element_bytes < _FP32_BYTES
    takes = {
        _CUDNN: narrow and attention.head_size <= _WIDE_HEAD,
        _FLASH2: narrow and not attention.mask and attention.head_size <= _WIDEST_HEAD,
    }
    order = [usual, *(name for name in (_FLASH2, _CUTLASS) if name in device.attention and usual in (_CUDNN, _FLASH2))]
    return next((name for name in order if takes.get(name, True)), usual)


def without_cudnn(device: Device) -> Device:
    """Return a device whose usual attention is FlashAttention's, if it was cuDNN's."""
    if device.usual_attention != _CUDNN or _FLASH2 not in device.attention:
        return device
    return device.model_copy(update={"usual_attention": _FLASH2})


def attention_model(device: Device, name: str) -> AttentionModel:
    """Return the rates of a kernel; raises ValueError where the device has none measured."""
    if name not in device.attention:
        raise ValueError(f"no rates of {name} on {device.name}; it has {', '.join(device.attention)}")
    return device.attention[name]


def _fused_attention_seconds(device: Device, attention: Attention) -> float:
    model = attention_model(device, attention_name(device, attention))
    length, keys = attention.sequence_length, attention.keys
    share = float(model.backward_share if attention.backward else model.forward_share)
    share *= math.pow(model.narrow_ratio, math.log2(_WIDE_HEAD / min(attention.head_size, _WIDEST_HEAD)))
    rate = device.peak_flops_per_second * min(share, 1.0) * keys / (keys + model.half_length)
    if attention.element_bytes >= _FP32_BYTES:
        rate *= device.gemm.fp32_share
    blocks = attention.sequences * attention.heads * max(length / model.block_rows, 1.0)
    occupied = min(blocks / device.gemm.units, 1.0)
    # a kernel that reads a mask leaves nothing out
    whole = attention.mask or not attention.causal
    unmasked = 1.0 if whole else min((1 + model.masked_rows / length) / 2, 1.0)
    computed = attention.flops * (_COMPUTED_BACKWARD if attention.backward else 1.0) * unmasked
    streaming = attention.bytes / (device.memory_bandwidth_bytes_per_second * device.memory_efficiency)
    floor = attention.kernels * device.kernel_latency_seconds
    return max(computed / (rate * occupied), streaming) + floor


def _plain_attention_seconds(device: Device, attention: Attention, *, tuned: bool) -> float:
    products = sum(gemm_seconds(device, product, tuned=tuned) for product in attention.products)
    phase: Phase = "bwd" if attention.backward else "fwd"
    return products + sum(
        memory_seconds(device, work, measured_kind(device, work, phase)) for work in attention.between
    )
