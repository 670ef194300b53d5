"""Exchanges: what arrives is what was sent, whichever way it goes, and it goes the way that the twin prices."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
import torch

from runtime.parallel.collectives import EXCHANGE_BYTES, EXCHANGES, Collectives, Handle
from tests.runtime.pool import Worker
from twin.calibrate import constants
from twin.cost.collective import options
from twin.cost.collective_group import Group, look
from twin.cost.collective_options import posted
from twin.cost.placement import Placement
from twin.description.library import CollectiveKind
from twin.strategies import load_job

FEW, MANY = 10, EXCHANGE_BYTES // 4 + 4
"""Numbers of four bytes in a part: any exchange of the first is small, none of the second."""
HOSTS = {"one host": 4, "two to a host": 2, "hosts of one": 1}


class Seen(Collectives):
    """Counts exchanges that are posted message by message."""

    count = 0

    def _kept(self, exchange: Any) -> Any:
        Seen.count += 1
        return super()._kept(exchange)


def numbers(rank: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """What a rank brings: sums of these depend on their order."""
    return torch.randn(count, generator=torch.Generator().manual_seed(rank)).to(dtype)


def exchanged(
    worker: Worker, grid: dict[str, int], per_host: int, dtype: str
) -> dict[tuple[CollectiveKind, int], tuple[bool, bool]]:
    """Of each kind and size of parts: whether what came is right, to the bit, and whether it was posted."""
    from runtime.parallel.buffers import Buffers
    from runtime.parallel.ops import Ops
    from runtime.tracing.listener import HostListener
    from twin.strategies.four_d.grid import Grid

    size = grid["x"]
    mesh = worker.mesh(Grid(**grid))
    mesh = replace(mesh, on_host=frozenset({"x"} if per_host >= size else ()))
    collectives = Seen(mesh, Ops(HostListener(0)), direct=True, buffers=Buffers())
    of = getattr(torch, dtype)
    return {
        (kind, part): answer
        for part in (FEW, MANY)
        for kind, answer in of_parts(collectives, size, part * 4 // of.itemsize, of).items()
    }


def of_parts(collectives: Seen, size: int, count: int, dtype: torch.dtype) -> dict[CollectiveKind, tuple[bool, bool]]:
    """Of each kind, with so many numbers in a part."""
    from runtime.parallel.ops import Place

    mine, place, fewer = collectives.mesh.place("x"), Place(""), min(count, EXCHANGE_BYTES // 2 // dtype.itemsize)
    parts = [numbers(rank, size * count, dtype).view(size, count) for rank in range(size)]
    whole, part, first = parts[mine].flatten(), parts[mine][0], torch.stack([each[0] for each in parts])
    lies = torch.empty(size * count, dtype=dtype)
    shard = lies.view(size, count)[mine].copy_(part)
    starts: dict[CollectiveKind, tuple[Callable[[], Handle], torch.Tensor]] = {
        "all_gather": (lambda: collectives.all_gather(place, "x", part), first.flatten()),
        "reduce_scatter": (lambda: collectives.reduce_scatter(place, "x", whole), torch.stack(parts).sum(0)[mine]),
        "all_reduce": (lambda: collectives.all_reduce(place, "x", part[:fewer].clone()), first[:, :fewer].sum(0)),
        "all_to_all": (
            lambda: collectives.all_to_all(place, "x", whole, name="trade"),
            torch.cat([each[mine] for each in parts]),
        ),
        "shift": (lambda: collectives.shift(place, "x", part, by=1, name="on"), parts[mine - 1][0]),
    }
    found: dict[CollectiveKind, tuple[bool, bool]] = {}
    for kind, (start, want) in starts.items():
        Seen.count = 0
        right = [torch.equal(start().wait(), want) for _ in range(3)]  # in memory that was used before
        found[kind] = all(right), Seen.count > 0
    same = collectives.all_gather(place, "x", shard, into=lies).wait()
    right, was_posted = found["all_gather"]
    found["all_gather"] = right and torch.equal(same, first.flatten()), was_posted
    return found


def group(size: int, per_host: int) -> Group:
    """The same members, on nodes as large as a host."""
    per_host = min(size, per_host)
    machine = load_job(
        {
            "model": "gpt-5b",
            "machine": {"extends": "laptop", "devices_per_node": per_host, "nodes": size // per_host}
            | {"nic": {"devices": [list(range(per_host))]}},
            "ranks": 1,
            "batch": {"sequences": 1},
        }
    ).machine
    return look(machine, Placement.contiguous(size, per_host))


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
@pytest.mark.parametrize("hosts", HOSTS)
@pytest.mark.parametrize("size", [2, 4])
def test_what_arrives_is_what_was_sent_and_goes_the_way_that_is_priced(pool: Any, size: int, hosts: str, dtype: str):
    answers = pool.run(
        "tests.runtime.test_exchanges:exchanged", size, grid={"x": size}, per_host=HOSTS[hosts], dtype=dtype
    )
    described = group(size, HOSTS[hosts])
    library = described.machine.libraries["gloo"]
    for found in answers:
        assert {case for case, (right, _) in found.items() if not right} == set()
        for (kind, part), (_, was_posted) in found.items():
            bytes_ = min(4.0 * part, EXCHANGE_BYTES / 2) if kind == "all_reduce" else 4.0 * part
            whole = bytes_ if kind in ("all_reduce", "shift") else size * bytes_
            priced = min(options(described, library, kind, whole), key=lambda option: option.seconds).algorithm
            assert was_posted == (priced != "ring" and posted(described, library, kind, bytes_)), (kind, part)


def test_what_is_measured_says_how_exchanges_went_as_calibration_reads_it():
    assert constants.EXCHANGES == EXCHANGES
