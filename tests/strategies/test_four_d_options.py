"""Options of 4D beyond the published algorithm: what is refused, what a search varies, how they are written."""

from __future__ import annotations

import re
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.strategies.test_four_d_beyond import (
    ACROSS,
    ATTENTION,
    DIVIDED,
    FLAT,
    GRIDS,
    HALVES,
    MODEL,
    PRODUCTS,
    SINGLE,
    job,
)
from twin.cost.memory import memory_use
from twin.engine.simulate import simulate
from twin.strategies import strategy_of
from twin.strategies.four_d.options import BEYOND, Options


@pytest.mark.parametrize(
    ("options", "key"),
    [
        ({"published": True, **HALVES}, "overlap.halves"),
        ({"published": True, **ACROSS}, "overlap.across_blocks"),
        ({"published": True, "recompute_layers": 1}, "recompute_layers"),
        ({"recompute": False, "recompute_layers": 1}, "recompute_layers"),
        ({"published": True, **PRODUCTS}, "recompute_keeps"),
        ({"published": True, "recompute": True, "recompute_stops_early": True}, "recompute_stops_early"),
        ({"recompute": False, **PRODUCTS}, "recompute_keeps = 'products': needs recompute: true"),
        ({"recompute": False, "recompute_stops_early": True}, "recompute_stops_early = True: needs recompute: true"),
        ({**PRODUCTS, "recompute_inputs": "host"}, "recompute_inputs"),
        ({**PRODUCTS, "offload": {"activations": "host"}}, "recompute_keeps"),
        ({"recompute_keeps": "scores"}, "recompute_keeps"),
        ({**ATTENTION, "attention": "plain"}, "recompute_keeps = 'attention': is for attention in one kernel"),
        ({"published": True, **ATTENTION}, "recompute_keeps"),
        ({"recompute_layers": 5}, "recompute_layers"),
        ({**HALVES, "batch": {"sequences": 32, "micro_sequences": 1}}, "batch.micro_sequences"),
        ({**HALVES, "ranks": 4, "grid": {"data": 1, "z": 4, "y": 1, "x": 1}}, "overlap.halves"),
        ({**HALVES, "lora": {"rank": 4}}, "overlap.halves"),
        ({"published": True, **DIVIDED}, "divide.attention"),
        ({"published": True, **FLAT}, "tensor"),
        ({**FLAT, "lora": {"rank": 4}}, "tensor"),
        (
            {"communication_precision": {"scatters": "fp32"}, "lora": {"rank": 4}},
            "communication_precision.scatters = 'fp32': weights that do not train have no gradients to scatter",
        ),
        ({"overlap": {"scatters_in_flight": 4}, "lora": {"rank": 4}}, "overlap.scatters_in_flight = 4: weights that"),
        ({**FLAT, **DIVIDED}, "divide.attention"),
        ({**FLAT, "model": {**MODEL, "qk_norm": True}}, "tensor"),
        ({**FLAT, "ranks": 16, "grid": GRIDS[2], "model": {**MODEL, "heads": 4}}, "tensor = '1d': cuts 4 heads"),
        ({"published": True, "divide": {"mlp": True}}, "divide.mlp"),
        ({**DIVIDED, "lora": {"rank": 4}}, "divide.mlp"),
        ({**DIVIDED, "model": {**MODEL, "qk_norm": True}}, "divide.attention"),
        (
            {**DIVIDED, "ranks": 16, "grid": GRIDS[2], "batch": SINGLE, "model": {**MODEL, "heads": 4}},
            "divide.attention = True: neither 1 sequences at a time nor 4 heads",
        ),
        (
            {
                "divide": {"mlp": True},
                "ranks": 16,
                "grid": GRIDS[2],
                "batch": SINGLE,
                "model": {**MODEL, "sequence": 100},
            },
            "divide.mlp = True: 100 tokens of a rank do not divide by x = 8",
        ),
    ],
)
def test_what_cannot_be_is_refused_by_name(options: dict[str, Any], key: str) -> None:
    with pytest.raises(ValueError, match=re.escape(key)):
        job(options.get("grid", GRIDS[0]), **{key: value for key, value in options.items() if key != "grid"})


def test_a_search_varies_them_unless_the_job_is_as_published() -> None:
    opened = job(GRIDS[0])
    over = frozenset((*BEYOND, "recompute_layers"))
    found = list(strategy_of(opened).variants(opened, over))
    assert {(o.halves, o.across_blocks) for o in found} == {(False, True), (True, True)}
    assert {o.recompute_layers for o in found} == {None, 1, 2, 3}
    found = list(strategy_of(opened).variants(opened, frozenset({"divide"})))
    assert [(o.attention, o.mlp) for o in found] == [(False, False), (False, True), (True, False), (True, True)]
    flat = job(GRIDS[1])
    assert [(o.attention, o.mlp) for o in strategy_of(flat).variants(flat, frozenset({"divide"}))] == [(False, False)]
    found = list(strategy_of(opened).variants(opened, frozenset({"tensor", "divide"})))
    assert [(o.tensor, o.attention, o.mlp) for o in found if o.tensor == "1d"] == [("1d", False, False)]
    found = list(strategy_of(opened).variants(opened, frozenset({"recompute_keeps", "recompute"})))
    kept = [(o.recompute, o.recompute_keeps) for o in found]
    assert kept == [(True, "nothing"), (True, "attention"), (True, "products"), (False, "nothing")]
    plain = job(GRIDS[0], attention="plain")
    found = list(strategy_of(plain).variants(plain, frozenset({"recompute_keeps"})))
    assert [o.recompute_keeps for o in found] == ["nothing", "products"]
    adapted = job(GRIDS[0], lora={"rank": 4})
    found = list(strategy_of(adapted).variants(adapted, frozenset({"recompute_keeps", "divide", "halves"})))
    assert [o.recompute_keeps for o in found] == ["nothing", "attention", "products"]
    over |= {"divide", "tensor", "recompute_keeps", "recompute_stops_early"}
    published = job(GRIDS[0], published=True)
    assert list(strategy_of(published).variants(published, over)) == [Options.of(published)]


def test_a_search_lets_blocks_stop_early_wherever_that_leaves_something_out() -> None:
    """Then never without: no step is slower for it, and none holds more."""
    over = frozenset({"recompute", "recompute_keeps", "recompute_stops_early"})
    for grid in GRIDS:
        opened = job(grid)
        found = list(strategy_of(opened).variants(opened, over))
        early = [(o.recompute, o.recompute_keeps, o.stops_early) for o in found]
        whole, *others = early
        assert whole == (True, "nothing", True)
        assert others == [(True, "attention", False), (True, "products", False), (False, "nothing", False)]
        described = found[0].on(opened)
        assert described.stops_early
        assert simulate(described).step_seconds < simulate(opened).step_seconds
        assert memory_use(described) == memory_use(opened)


@settings(max_examples=40)
@given(
    halves=st.booleans(),
    across=st.booleans(),
    layers=st.none() | st.integers(1, 4),
    recompute=st.booleans(),
    divided=st.tuples(st.booleans(), st.booleans()),
    tensor=st.sampled_from(["2d", "1d"]),
    keeps=st.sampled_from(["nothing", "attention", "products"]),
    early=st.booleans(),
)
def test_options_are_read_as_they_are_written(
    halves: bool,
    across: bool,
    layers: int | None,
    recompute: bool,
    divided: tuple[bool, bool],
    tensor: str,
    keeps: str,
    early: bool,
) -> None:
    divided = divided if tensor == "2d" else (False, False)
    described = job(
        GRIDS[0],
        recompute=recompute,
        recompute_layers=layers if recompute else None,
        recompute_keeps=keeps if recompute else "nothing",
        overlap={"halves": halves, "across_blocks": across},
        divide=dict(zip(("attention", "mlp"), divided, strict=True)),
        tensor=tensor,
        recompute_stops_early=early and recompute,
    )
    options = Options.of(described)
    assert Options.read(options.as_json()) == options
    assert options.on(job(GRIDS[0])) == described.model_copy()
    raw: dict[str, Any] = {}
    options.settle(raw)
    assert Options.of(job(GRIDS[0], **raw)) == options
