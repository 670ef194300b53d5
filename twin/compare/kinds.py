"""What kind of work an op is, read off its stable name."""

from __future__ import annotations

COMPUTE_KINDS = ("gemm", "attention", "norm", "elementwise", "embedding", "loss", "optimizer")
COLLECTIVE_KINDS = ("all_gather", "reduce_scatter", "all_reduce")
OTHER_COLLECTIVE, MESSAGE = "other collective", "message"
OWN = {
    "down": "copy to the host",
    "up": "copy from the host",
    "cast": "change of type on the host",
    "cpu": "update by the host",
    "disk": "to or from drives",
}
"""What a rank does by itself beside its device, by the axis that its time is booked under."""
WAYS = {"send", "receive"}
"""Last words of the names of messages."""
PRODUCTS = {"gemm", "input_gradient", "weight_gradient"}


def compute_kind(name: str, phase: str) -> str:
    """Return the kind of device work from its short name and phase.

    Element-wise is all that moves memory and is none of the others.

    >>> [compute_kind(*op) for op in (("qkv/weight_gradient", "bwd"), ("qkv/gemm_beside", "fwd"),
    ...                               ("norm1/gradient", "bwd"), ("clip/norm", "optimizer"), ("residual1", "fwd"))]
    ['gemm', 'gemm', 'norm', 'optimizer', 'elementwise']
    """
    parts = name.split("/")
    if parts[-1].removesuffix("_beside") in PRODUCTS:
        return "gemm"
    if phase in {"loss", "optimizer"}:
        return phase
    for kind in ("attention", "norm", "embedding"):
        if any(kind in part for part in parts):
            return kind
    return "elementwise"


def collective_kind(name: str, axis: str = "") -> str:
    """Return the kind of a collective from its name, which ends in kind and axis, or of what a rank does by itself.

    >>> collective_kind("weights/all_gather_z"), collective_kind("bucket0/all_reduce_data")
    ('all_gather', 'all_reduce')
    >>> collective_kind("messages/micro0/F/send")
    'message'
    >>> collective_kind("optimizer/group0/update", "cpu")
    'update by the host'
    """
    if axis in OWN:
        return OWN[axis]
    if is_message(name):
        return MESSAGE
    last = name.rsplit("/", 1)[-1]
    return next((kind for kind in COLLECTIVE_KINDS if last.startswith(kind)), OTHER_COLLECTIVE)


def with_axis(name: str, axis: str) -> str:
    """Return a collective's kind with the axis it is over; what a rank does by itself is over none.

    >>> with_axis("weights/all_gather_z", "z"), with_axis("optimizer/group1/states_up", "up")
    ('all_gather z', 'copy from the host')
    """
    kind = collective_kind(name, axis)
    return kind if axis in OWN else f"{kind} {axis}"


def is_message(name: str) -> bool:
    """Tell whether a collective is one end of a message between two ranks, by its name.

    >>> is_message("messages/micro0/F1/receive"), is_message("messages/micro0/F1/gather")
    (True, False)
    """
    return name.rpartition("/")[2] in WAYS
