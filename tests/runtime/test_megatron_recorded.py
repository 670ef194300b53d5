"""What PyTorch's own parallelism does on a rank of any world is what the twin simulates, op by op."""

from __future__ import annotations

from typing import Any

import pytest

from runtime.recorder import record
from runtime.sharded import units as runtime_units
from runtime.strategies.megatron import exchange as runtime_exchange
from runtime.strategies.megatron import gradients as runtime_gradients
from runtime.strategies.megatron import layers as runtime_layers
from runtime.strategies.megatron import messages as runtime_messages
from runtime.strategies.megatron import tensor as runtime_tensor
from tests.profiles import part
from tests.runtime.megatron_tasks import MODEL, describe
from tests.runtime.test_megatron import CASES
from tests.tiers import few
from twin.schedule.difference import difference
from twin.strategies import generated
from twin.strategies.megatron import attention, layer, linear, local, reduction, sharded

H100 = {"machine": "dgx-h100"}
"""Its reductions go on beside the compute stream; the laptop's do not, and the twin does not tell them apart here."""
RECORDED = [(axes, {k: v for k, v in options.items() if k != "goldfish"}) for axes, options in CASES]
BF16 = {"precision": "bf16"}
DUALPIPE = {"schedule": "dualpipe_v", "chunks": 2}
BATCH = {"sequences": 32, "micro_sequences": 1}
OTHERS: list[tuple[dict[str, int], dict[str, Any]]] = [
    ({"pipeline": 2, "data": 2}, {**BF16, "recompute": True}),
    ({"pipeline": 2, "data": 4}, {**BF16, "weight_shards": 2, "model": {**MODEL, "hidden": 20, "heads": 4}}),
    ({"pipeline": 2, "data": 2, "tensor": 2}, {**BF16, "sequence_parallel": True, "gradient_precision": "compute"}),
    ({"tensor": 2}, {**BF16, "dropout": 0.1, "sequence_parallel": True, "recompute": True}),
    ({"pipeline": 2}, {"dropout": 0.1, "attention": "plain", "schedule": "zb_h1"}),
    ({"data": 2, "tensor": 2}, {**BF16, "fused_elementwise": True, "recompute": True}),
    ({"context": 4, "data": 2}, {**BF16, "recompute": True}),
    ({"context": 2, "tensor": 2}, {**BF16, "context_exchange": "all_gather", "sequence_parallel": True}),
    ({"context": 2}, {**BF16, "dropout": 0.1}),
    ({"context": 2, "tensor": 2}, {**BF16, "context_exchange": "all_to_all", "recompute": True}),
    ({"pipeline": 4, "data": 2}, {**BF16, **DUALPIPE, "model": {**MODEL, "layers": 8}, "batch": BATCH}),
]
LARGE = {"layers": 64, "hidden": 256, "heads": 8, "sequence": 64, "vocabulary": 1000}


def differs(axes: dict[str, int], rank: int = 0, **options: Any) -> str:
    job = describe(axes, **{**H100, **options})
    return difference(record(job, rank).schedule, generated(job, rank))


@pytest.mark.parametrize(("axes", "options"), few(RECORDED, *RECORDED[::25]), ids=str)
def test_every_composition(axes: dict[str, int], options: dict[str, Any]) -> None:
    ranks = describe(axes, **options).ranks
    for rank in part(sorted({0, ranks - 1}), 1):
        assert not (found := differs(axes, rank, **options)), found


@pytest.mark.parametrize(("axes", "options"), few(OTHERS, OTHERS[0], OTHERS[8]), ids=str)
def test_precisions_padding_and_dropout(axes: dict[str, int], options: dict[str, Any]) -> None:
    assert not (found := differs(axes, 1, **options)), found


@pytest.mark.parametrize("rank", few([0, 9_999, 16_383], 16_383))
def test_any_rank_of_sixteen_thousand(rank: int) -> None:
    axes = {"pipeline": 4, "data": 512, "tensor": 8}
    batch = {"sequences": 2048, "micro_sequences": 1}
    options = {"sequence_parallel": True, **BF16, "machine": "frontier", "batch": batch}
    assert not (found := differs(axes, rank, **options)), found


@pytest.mark.full
def test_any_rank_that_shares_its_sequences_with_others() -> None:
    axes = {"pipeline": 4, "data": 64, "context": 8, "tensor": 8}
    model = {**LARGE, "layers": 8, "sequence": 256}
    options = {"sequence_parallel": True, **BF16, "machine": "frontier", "model": model}
    for rank in (0, 9_999):
        found = differs(axes, rank, batch={"sequences": 256, "micro_sequences": 1}, **options)
        assert not found, found


@pytest.mark.full
@pytest.mark.parametrize(("schedule", "rank"), [("1f1b", 0), ("1f1b", 40), ("zb_h1", 63), ("gpipe", 20)])
def test_any_stage_of_sixty_four(schedule: str, rank: int) -> None:
    batch = {"sequences": 64, "micro_sequences": 1}
    found = differs({"pipeline": 64}, rank, schedule=schedule, model=LARGE, machine="frontier", batch=batch, **BF16)
    assert not found, found


def of_twin(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Change the twin in one way."""
    if what == "forgets padding":
        monkeypatch.setattr(sharded, "padded", lambda shapes, _parts: local.padded(shapes, 1))
    elif what == "sums no parts of tensor ranks":
        monkeypatch.setattr(reduction, "_partial", lambda _emit, _parameters, _stages: None)
    elif what == "input gradients first":
        monkeypatch.setattr(linear.Linears, "_accumulate_torch", lambda _self, _emit, _linear: None)
    elif what == "adds positions before the sum":
        monkeypatch.setattr(layer, "_positions_apart", lambda _linears: False)
    elif what == "merges for nothing":
        monkeypatch.setattr(attention, "merge_bytes", lambda *_: 0.0)
    elif what == "reduces nothing":
        monkeypatch.setattr(sharded.Sharding, "reduce", lambda _self, _emit, _stage: None)


def of_runtime(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    """Change the runtime in one way."""
    if what == "keeps tokens in the order they come in":
        monkeypatch.setattr(runtime_tensor, "_ordered", lambda _context, _place, rows, _shape, _phase: rows)
    elif what == "defers nothing":
        later = runtime_gradients.Sums.take

        def at_once(self: Any, name: str, place: Any, weight_gradient: Any) -> Any:
            half, self.context.half = self.context.half, "whole"
            try:
                return later(self, name, place, weight_gradient)
            finally:
                self.context.half = half

        monkeypatch.setattr(runtime_gradients.Sums, "take", at_once)
    elif what == "computes all again":
        monkeypatch.setattr(runtime_layers, "needless", lambda _context, _name: False)
    elif what == "messages without names":
        monkeypatch.setattr(runtime_messages.Messages, "named", lambda _self, ops, *_of, **_way: ops)
    elif what == "sends keys alone":
        monkeypatch.setattr(runtime_exchange.Exchange, "block", lambda _self, k, _v: k[None].expand(2, *k.shape))
    elif what == "gathers in fp32":
        policy = lambda _kind, reduce_type, **_: runtime_units.MixedPrecisionPolicy(None, reduce_type)  # noqa: E731
        monkeypatch.setattr("runtime.strategies.megatron.assembly.MixedPrecisionPolicy", policy)


TWIN = [
    *("forgets padding", "sums no parts of tensor ranks", "input gradients first", "adds positions before the sum"),
    *("reduces nothing", "merges for nothing"),
]
RUNTIME = [
    *("keeps tokens in the order they come in", "defers nothing", "computes all again", "messages without names"),
    *("gathers in fp32", "sends keys alone"),
]


@pytest.mark.parametrize("what", few([*TWIN, *RUNTIME], RUNTIME[0]))
def test_a_change_of_either_side_is_seen(monkeypatch: pytest.MonkeyPatch, what: str) -> None:
    options: dict[str, Any] = {
        **BF16,
        "sequence_parallel": True,
        "recompute": True,
        "schedule": "zb_v",
        "chunks": 2,
        "model": {**MODEL, "vocabulary": 37},
    }
    axes = {"pipeline": 2, "data": 3, "context": 2, "tensor": 2}
    options["batch"] = {"sequences": 6, "micro_sequences": 1}
    assert not (found := differs(axes, **options)), found
    (of_twin if what in TWIN else of_runtime)(monkeypatch, what)
    assert differs(axes, **options)
