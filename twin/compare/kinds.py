"""What kind of work an op is, read off its stable name."""

from __future__ import annotations

COMPUTE_KINDS = ("gemm", "attention", "norm", "elementwise", "embedding", "loss", "optimizer")
COLLECTIVE_KINDS = ("all_gather", "reduce_scatter", "all_reduce")
OTHER_COLLECTIVE, MESSAGE = "other collective", "message"
WAYS = {"send", "receive"}
"""Last words of the names of messages."""
PRODUCTS = {"gemm", "input_gradient", "weight_gradient"}


def compute_kind(name: str, phase: str) -> str:
    """Return the kind of device work from its short name and phase.

    Element-wise is all that moves memory and is none of the others.

    >>> [compute_kind(*op) for op in (("qkv/weight_gradient", "bwd"), ("norm1/gradient", "bwd"),
    ...                               ("clip/norm", "optimizer"), ("residual1", "fwd"))]
    ['gemm', 'norm', 'optimizer', 'elementwise']
    """
    parts = name.split("/")
    if parts[-1] in PRODUCTS:
        return "gemm"
    if phase in {"loss", "optimizer"}:
        return phase
    for kind in ("attention", "norm", "embedding"):
        if any(kind in part for part in parts):
            return kind
    return "elementwise"


def collective_kind(name: str) -> str:
    """Return the kind of a collective from its name, which ends in kind and axis.

    >>> collective_kind("weights/all_gather_z"), collective_kind("bucket0/all_reduce_data")
    ('all_gather', 'all_reduce')
    >>> collective_kind("messages/micro0/F/send")
    'message'
    """
    if is_message(name):
        return MESSAGE
    last = name.rsplit("/", 1)[-1]
    return next((kind for kind in COLLECTIVE_KINDS if last.startswith(kind)), OTHER_COLLECTIVE)


def is_message(name: str) -> bool:
    """Tell whether a collective is one end of a message between two ranks, by its name.

    >>> is_message("messages/micro0/F1/receive"), is_message("messages/micro0/F1/gather")
    (True, False)
    """
    return name.rpartition("/")[2] in WAYS
