"""Memory that is used again: never while anybody reads it, and again as soon as nobody does."""

from __future__ import annotations

import gc
import threading
from typing import Any

import pytest
import torch

from runtime.parallel import buffers as module
from runtime.parallel.buffers import MAX_SIZES, MIN_BYTES, Buffers
from tests.runtime.pool import Worker

LARGE = MIN_BYTES  # elements of four bytes: well above the least


def _future_of(flat: torch.Tensor) -> torch.futures.Future[torch.Tensor]:
    future: torch.futures.Future[torch.Tensor] = torch.futures.Future()
    future.set_result(flat)
    return future


def place(tensor: torch.Tensor) -> int:
    return tensor.untyped_storage().data_ptr()


def test_a_buffer_is_used_again_when_nobody_has_it():
    buffers, like = Buffers(), torch.zeros(1)
    first = buffers.take(LARGE, like)
    where = place(first)
    del first
    assert place(buffers.take(LARGE, like)) == where
    assert buffers.nbytes == 4 * LARGE


@pytest.mark.parametrize(
    "kept",
    [
        lambda flat: flat[1:].view(3, -1)[:, ::2],
        lambda flat: flat.detach(),
        lambda flat: (flat * torch.ones(1, requires_grad=True)).grad_fn,
        _future_of,
    ],
    ids=["a view of a view", "detached", "saved by a graph", "a future's value"],
)
def test_no_buffer_is_used_again_while_somebody_has_it(kept):
    buffers, like = Buffers(), torch.zeros(1)
    flat = buffers.take(3 * LARGE + 1, like)
    where, still = place(flat), kept(flat)
    del flat
    other = buffers.take(3 * LARGE + 1, like)
    assert place(other) != where
    del still, other
    gc.collect()
    assert buffers.nbytes == 2 * 4 * (3 * LARGE + 1)


def test_sizes_and_types_have_buffers_of_their_own():
    buffers, like = Buffers(), torch.zeros(1)
    taken = [buffers.take(LARGE, like), buffers.take(LARGE, like, torch.int32), buffers.take(2 * LARGE, like)]
    assert [flat.dtype for flat in taken] == [torch.float32, torch.int32, torch.float32]
    assert len({place(flat) for flat in taken}) == 3
    del taken
    assert buffers.take(2 * LARGE, like, torch.int32).dtype == torch.int32


def test_what_is_small_or_not_to_be_kept_is_not():
    for buffers, elements in ((Buffers(), MIN_BYTES // 4 - 1), (Buffers(kept=False), LARGE)):
        assert buffers.take(elements, torch.zeros(1)).shape == (elements,)
        assert buffers.nbytes == 0


def test_sizes_that_nobody_asks_for_again_are_let_go():
    buffers, like = Buffers(), torch.zeros(1)
    held = buffers.take(LARGE, like).fill_(7.0)
    for more in range(1, 3 * MAX_SIZES):
        buffers.take(LARGE + more, like).zero_()
    assert buffers.nbytes == 4 * sum(LARGE + more for more in range(2 * MAX_SIZES, 3 * MAX_SIZES))
    again = buffers.take(LARGE, like).zero_()
    assert place(again) != place(held)
    assert bool((held == 7.0).all())


def gathered(worker: Worker, grid: dict[str, int]) -> tuple[bool, bool]:
    """All-gather more than an exchange of ranks far apart carries, several at once; said is whether all was right."""
    from runtime.parallel.collectives import EXCHANGE_BYTES, Collectives
    from runtime.parallel.ops import Ops, Place
    from twin.strategies.four_d.grid import Grid

    mesh = worker.mesh(Grid(**grid))
    collectives = Collectives(mesh, Ops(), direct=True, buffers=Buffers())
    count, size = EXCHANGE_BYTES, mesh.size("z_gather")
    right = []
    for turn in range(3):
        handles = [
            collectives.all_gather(Place(""), "z_gather", torch.full((count,), 100.0 * turn + 10 * i + mesh.place("z")))
            for i in range(2)
        ]
        for i, handle in enumerate(handles):
            want = torch.arange(size).repeat_interleave(count) + 100.0 * turn + 10 * i
            right.append(torch.equal(handle.wait(), want))
        del handles, handle
    return all(right), collectives.buffers.nbytes == 2 * 4 * size * count


def test_gathers_in_flight_do_not_share_memory(pool: Any):
    assert pool.run("tests.runtime.test_buffers:gathered", 4, grid={"z": 4}) == [(True, True)] * 4


def on_host(worker: Worker, grid: dict[str, int]) -> set[str]:
    """Return the communicators that are all on this host, where each two ranks pretend to be one."""
    import os

    from runtime.parallel.host import HOST
    from runtime.parallel.mesh import Mesh
    from twin.strategies.four_d.grid import Grid

    os.environ[HOST] = f"host{worker.rank // 2}"
    try:
        return set(Mesh.create(Grid(**grid)).on_host)
    finally:
        del os.environ[HOST]


def test_a_mesh_knows_which_groups_are_on_one_host(pool: Any):
    found = pool.run("tests.runtime.test_buffers:on_host", 4, grid={"z": 2, "x": 2})
    assert found == [{"x"}] * 4


def test_a_buffer_that_a_thread_is_about_to_let_go_is_waited_for(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(module, "MOMENT_SECONDS", 60.0)
    buffers, like = Buffers(), torch.zeros(1)
    held = [buffers.take(LARGE, like).detach()]  # who asked for it has it no more
    where, let_go = place(held[0]), threading.Timer(0.01, held.clear)
    let_go.start()
    assert place(buffers.take(LARGE, like)) == where
    let_go.join()
    assert buffers.nbytes == 4 * LARGE
