"""Sub-groups: elements whose optimizer states lie beyond the device, cut into parts that are updated together.

The host updates them, or of each `stride` of them the device the last one (Deep Optimizer States, arXiv 2410.21316).
"""

from __future__ import annotations

from collections.abc import Iterable
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


def updated_on_device(stride: int | None, size: int, spans: Iterable[int]) -> tuple[int, int]:
    """Return how many elements the device updates of spans that are cut into sub-groups; and its largest sub-group's.

    Of each `stride` sub-groups, counted over all spans, it updates the last. `size` are the elements of a whole one.

    >>> updated_on_device(2, 10, [25]), updated_on_device(2, 10, [20, 5, 7]), updated_on_device(2, 100, [25])
    ((10, 10), (17, 10), (0, 0))
    """
    if stride is None:
        return 0, 0
    number = found = largest = 0
    for elements in spans:
        groups = -(-elements // size)
        chosen = (number + groups) // stride - number // stride
        number += groups
        rest = elements - (groups - 1) * size  # of the span's last sub-group
        ends = chosen > 0 and number % stride == 0
        found += chosen * size - (size - rest if ends else 0)
        if chosen:
            largest = max(largest, size if chosen > ends else rest)
    return found, largest


def updated_by_host(stride: int | None, size: int, spans: Iterable[int]) -> tuple[int, int]:
    """Return how many sub-groups the host updates, and the elements of its largest; as `updated_on_device` cuts them.

    >>> updated_by_host(None, 10, [25]), updated_by_host(2, 10, [20, 5, 7]), updated_by_host(1, 10, [25])
    ((3, 10), (2, 10), (0, 0))
    """
    number = found = largest = 0
    for elements in spans:
        groups = -(-elements // size)
        chosen = 0 if stride is None else (number + groups) // stride - number // stride
        number += groups
        ends = stride is None or number % stride != 0  # with one of the host's
        rest = elements - (groups - 1) * size
        by_host = groups - chosen
        found += by_host
        if by_host:
            largest = max(largest, size if by_host > ends else rest)
    return found, largest
