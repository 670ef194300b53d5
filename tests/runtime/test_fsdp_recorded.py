"""What FSDP2 does on a rank of any world is what the twin simulates, op by op; a change of either is seen."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import pytest

from runtime.recorder import record
from runtime.sharded import gathers as runtime_gathers
from runtime.sharded import reductions as runtime_reductions
from runtime.sharded import units as runtime_units
from tests.runtime import parity
from tests.runtime.fsdp_tasks import describe
from tests.runtime.test_fsdp import VARIANTS
from tests.tiers import few
from twin.schedule.difference import difference
from twin.schedule.ops import Start
from twin.strategies import generated
from twin.strategies.fsdp import gathers, reductions, step, units

H100 = {"machine": "dgx-h100"}
"""Its reductions go on beside the compute stream; the laptop's do not."""
GRIDS: list[dict[str, int]] = [{"weights": 1}, {"weights": 4}, {"data": 2, "weights": 2}, {"data": 2, "weights": 4}]
NAMES = [name for name in VARIANTS if name != "goldfish"]
CASES = list(itertools.product(GRIDS, NAMES, ("laptop", "h100")))
OTHERS: dict[str, dict[str, Any]] = {
    "bf16": {"precision": "bf16"},
    "bf16, reduced in fp32": {"precision": "bf16", "reduce_precision": "fp32", "recompute": True},
    "bf16, padded": {"precision": "bf16", **VARIANTS["padded"]},
    "bf16, documents": {"precision": "bf16", "document_mask": True, "model": {**parity.MODEL, "tied_embeddings": True}},
    "dropout": {"dropout": 0.1},
    "dropout, plain attention": {"dropout": 0.1, "attention": "plain", "fused_elementwise": True},
    "four micro-steps": {"micro_steps": 4},
}


def differs(grid: dict[str, int], rank: int = 0, **options: Any) -> str:
    job = describe(grid, **options)
    return difference(record(job, rank).schedule, generated(job, rank))


@pytest.mark.parametrize(
    ("grid", "name", "on"),
    few(CASES, *((GRIDS[1 + i % 3], name, ("laptop", "h100")[i % 2]) for i, name in enumerate(NAMES[::5]))),
)
def test_every_option_and_family(grid: dict[str, int], name: str, on: str) -> None:
    machine = H100 if on == "h100" else {}
    assert not (found := differs(grid, **VARIANTS[name], **machine)), found


@pytest.mark.parametrize(
    ("grid", "name"),
    few(list(itertools.product(GRIDS, OTHERS)), *((GRIDS[1 + i], name) for i, name in enumerate(list(OTHERS)[::3]))),
)
def test_precisions_dropout_and_micro_steps(grid: dict[str, int], name: str) -> None:
    assert not (found := differs(grid, **OTHERS[name], **H100)), found


@pytest.mark.parametrize("rank", few([0, 9999, 16383], 16383))
def test_any_rank_of_sixteen_thousand(rank: int) -> None:
    large = {"machine": "frontier", "precision": "bf16", "batch": {"sequences": 32768, "micro_sequences": 1}}
    assert not (found := differs({"data": 2048, "weights": 8}, rank, **large)), found


@pytest.mark.full
def test_weights_cut_over_sixteen_thousand_ranks_are_mostly_padding() -> None:
    job = describe(
        {"weights": 16384}, machine="frontier", batch={"sequences": 32768, "micro_sequences": 1}, precision="bf16"
    )
    assert not (found := difference(record(job, 12345).schedule, generated(job, 12345))), found
    gathered = [op for op, _ in generated(job).flat() if isinstance(op, Start) and op.kind == "all_gather"]
    # of every parameter each rank has one row
    columns = 64 * 3 + 256 + 4 + 2 * 2  # qkv, projection, up; down; their four biases; weight and bias of both norms
    assert {op.bytes for op in gathered if "/block" in op.name} == {16384.0 * columns * 2}


def of_twin(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Change the twin in one way."""
    if what == "gathers two ahead":
        monkeypatch.setattr(gathers, "UNITS_AHEAD", 2)
    elif what == "forgets padding":
        monkeypatch.setattr(units.Unit, "padded", lambda self, _parts: self.elements)
    elif what == "drops what is kept":
        monkeypatch.setattr(units.Units, "last", property(lambda _self: units.Unit("head", 1)))
    elif what == "does not wait for reductions":
        monkeypatch.setattr(reductions.Reductions, "_finish_flight", lambda _self: None)
    elif what == "sums replicas twice":
        once = reductions.Reductions._arrived

        def twice(self: Any, *arguments: Any, **named: Any) -> None:
            once(self, *arguments, **named)
            once(self, *arguments, **named)

        monkeypatch.setattr(reductions.Reductions, "_arrived", twice)
    elif what == "sums no loss":
        monkeypatch.setattr(step, "_sum_loss", lambda _emit, _job: None)


def of_runtime(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Change the runtime in one way."""
    if what == "gathers nothing ahead":
        monkeypatch.setattr(runtime_units.FSDPModule, "set_modules_to_forward_prefetch", lambda _self, _modules: None)
    elif what == "keeps what is dropped":
        fully_shard = runtime_units.fully_shard
        keeping: Callable[..., Any] = lambda module, **options: fully_shard(  # noqa: E731
            module, **{**options, "reshard_after_forward": False}
        )
        monkeypatch.setattr(runtime_units, "fully_shard", keeping)
    elif what == "gathers in fp32":
        policy = lambda _kind, reduce_type, **_: runtime_units.MixedPrecisionPolicy(None, reduce_type)  # noqa: E731
        monkeypatch.setattr("runtime.strategies.fsdp.assembly.MixedPrecisionPolicy", policy)
    elif what == "leaves replicas apart":
        monkeypatch.setattr(runtime_units.FSDPModule, "set_all_reduce_hook", lambda _self, _hook: None)
    elif what == "copies without a name":
        monkeypatch.setattr(runtime_gathers.Copies, "_copy_out", lambda _self, run, _args, _kwargs: run())
    elif what == "waits late":
        monkeypatch.setattr(runtime_reductions.Reductions, "open", without_settling)


def without_settling(self: runtime_reductions.Reductions, unit: runtime_units.Unit) -> None:
    """Open a unit as `Reductions.open` does, but for what is under way."""
    self.copies.bucket = unit.place.under(f"bucket{self.number}")
    self.number += 1
    self._flight.append(runtime_reductions.Reduced(self.copies.bucket, len(unit.members)))


TWIN = [
    *("gathers two ahead", "forgets padding", "drops what is kept", "does not wait for reductions"),
    *("sums replicas twice", "sums no loss"),
]
RUNTIME = [
    *("gathers nothing ahead", "keeps what is dropped", "gathers in fp32", "leaves replicas apart"),
    *("copies without a name", "waits late"),
]


@pytest.mark.parametrize("what", few([*TWIN, *RUNTIME], TWIN[0], RUNTIME[0]))
def test_a_change_of_either_side_is_seen(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    options = {"precision": "bf16", **VARIANTS["padded"], **H100}
    assert not differs({"data": 2, "weights": 4}, **options)
    (of_twin if what in TWIN else of_runtime)(monkeypatch, what)
    assert differs({"data": 2, "weights": 4}, **options)
