"""One rank of a world that is not there: its process group answers every collective at once; or without numbers too."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch.distributed as dist
from torch._subclasses.fake_tensor import DataDependentOutputException, FakeTensorMode

from runtime.parallel.mesh import Mesh
from twin.description.grid import GridSpec
from twin.description.problems import fail


@contextmanager
def fake_world(grid: GridSpec, rank: int) -> Iterator[Mesh]:
    """Be one rank of a grid, and leave its world afterwards; gives its mesh.

    Raises DescriptionError for a rank outside the grid, or if this process is part of a real
    world already.
    """
    if not 0 <= rank < grid.ranks:
        raise fail("rank", f"ranks of {grid} are 0 to {grid.ranks - 1}", rank)
    if dist.is_initialized():
        raise fail("record", "this process has joined torch.distributed already; record in one that has not")
    # importing it makes the backend known
    from torch.testing._internal.distributed.fake_pg import FakeStore  # noqa: PLC0415

    if grid.ranks > 1:
        dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=grid.ranks)
    try:
        yield Mesh.create(grid)
    finally:
        if dist.is_initialized():
            dist.destroy_process_group()


@contextmanager
def without_numbers() -> Iterator[None]:
    """Make every tensor a fake one, which carries shape, type and device, and takes no memory.

    Raises DescriptionError in place of whatever asks such a tensor for its numbers.
    """
    try:
        with FakeTensorMode(allow_non_fake_inputs=True):
            yield
    except DataDependentOutputException as error:
        raise fail(
            "record",
            "the step asks for the numbers in a tensor, and while recording there are none "
            f"({error.func}); leave out .item(), printing and branching on values",
        ) from None
