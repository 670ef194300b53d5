"""Sub-groups: elements whose optimizer states lie beyond the device, cut into parts that are updated together.

The host updates them, or of each `stride` of them the device the last one (Deep Optimizer States, arXiv 2410.21316).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from twin.description.offload import OptimizerOffload
from twin.description.problems import fail

MAX_SUB_GROUPS = 100_000
"""Of a rank: each is several ops, and of millions a step would take all memory."""


@dataclass(frozen=True)
class SubGroup:
    """Elements of a rank that are updated together."""

    number: int
    elements: int
    on_device: bool


def sub_groups(offload: OptimizerOffload, elements: int) -> tuple[SubGroup, ...]:
    """Divide a rank's offloaded elements; of each `stride` the last is updated on the device.

    >>> found = sub_groups(OptimizerOffload(stride=2, sub_group_elements=10), 25)
    >>> [(group.elements, group.on_device) for group in found]
    [(10, False), (10, True), (5, False)]
    """
    size, stride = offload.sub_group_elements, offload.stride
    refuse_many(offload, -(-elements // size), elements)
    return tuple(
        SubGroup(number, min(size, elements - first), stride is not None and (number + 1) % stride == 0)
        for number, first in enumerate(range(0, elements, size))
    )


def refuse_many(offload: OptimizerOffload, count: int, elements: int) -> None:
    """Raise DescriptionError if a rank's elements are cut into more sub-groups than can be simulated."""
    if count > MAX_SUB_GROUPS:
        remedy = (
            f"cuts the {elements:,} elements of a rank into {count:,} sub-groups, of which at most {MAX_SUB_GROUPS:,} "
            f"can be simulated; give {-(-elements // MAX_SUB_GROUPS):,} or more"
        )
        raise fail("offload.optimizer.sub_group_elements", remedy, offload.sub_group_elements)


@dataclass(frozen=True)
class _Span:
    """Sub-groups of one span."""

    groups: int
    on_device: int
    """So many of them."""
    ends_on_device: bool
    """Whether its last is one of these, which may be smaller than the others."""
    rest: int
    """Elements of the last."""


def _spans(stride: int | None, size: int, spans: Iterable[int]) -> Iterator[_Span]:
    """Divide spans into sub-groups of `size` elements; of each `stride`, counted over all, the device has the last."""
    number = 0
    for elements in spans:
        groups = -(-elements // size)
        before, number = number, number + groups
        chosen = 0 if stride is None else number // stride - before // stride
        ends = stride is not None and chosen > 0 and number % stride == 0
        yield _Span(groups, chosen, ends, elements - (groups - 1) * size)


def updated_on_device(stride: int | None, size: int, spans: Iterable[int]) -> tuple[int, int]:
    """Return how many elements the device updates of spans that are cut into sub-groups; and its largest sub-group's.

    >>> updated_on_device(2, 10, [25]), updated_on_device(2, 10, [20, 5, 7]), updated_on_device(2, 100, [25])
    ((10, 10), (17, 10), (0, 0))
    """
    found = largest = 0
    for span in _spans(stride, size, spans):
        found += span.on_device * size - (size - span.rest if span.ends_on_device else 0)
        if span.on_device:
            largest = max(largest, size if span.on_device > span.ends_on_device else span.rest)
    return found, largest


def updated_by_host(stride: int | None, size: int, spans: Iterable[int]) -> tuple[int, int]:
    """Return how many sub-groups the host updates, and the elements of its largest.

    >>> updated_by_host(None, 10, [25]), updated_by_host(2, 10, [20, 5, 7]), updated_by_host(1, 10, [25])
    ((3, 10), (2, 10), (0, 0))
    """
    found = largest = 0
    for span in _spans(stride, size, spans):
        by_host = span.groups - span.on_device
        found += by_host
        if by_host:
            largest = max(largest, span.rest if by_host == 1 and not span.ends_on_device else size)
    return found, largest
