"""What FSDP has whole at once, by hand: pieces before and after they are copied out, and the unit that comes next."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.cost.memory import memory_use
from twin.strategies import load_job
from twin.strategies.held_weights import most_gathered

HIDDEN, VOCABULARY, WIDE = 1024, 32768, 4096
BLOCK = 4 * HIDDEN * HIDDEN + 3 * HIDDEN * WIDE + 2 * HIDDEN
TABLE = VOCABULARY * HIDDEN
MODEL: dict[str, Any] = {
    "layers": 4,
    "hidden": HIDDEN,
    "heads": 8,
    "mlp_width": WIDE,
    "sequence": 256,
    "vocabulary": VOCABULARY,
    "activation": "swiglu",
    "norm": "rms",
    "positions": "rotary",
    "biases": False,
}
FSDP = {"strategy": "fsdp", "grid": {"weights": 16}, "reduce_precision": "fp32"}
COMPOSED = {"strategy": "megatron", "flavour": "torch", "grid": {"data": 16}}


def held(category: str, model: dict[str, Any] | None = None, **keys: Any) -> float:
    batch = {"sequences": 16, "micro_sequences": 1}
    job = load_job({"model": {**MODEL, **(model or {})}, "machine": "dgx-h100", "ranks": 16, "batch": batch, **keys})
    return memory_use(job).by_category[category]


@pytest.mark.parametrize("keys", [FSDP, COMPOSED])
def test_a_large_table_is_there_twice_beside_the_first_block(keys: dict[str, Any]) -> None:
    """FSDP2 lets two gathered outputs live beside what is in place (github pytorch, pull request 128884)."""
    assert held("gathered weights", **keys) == pytest.approx(2 * (2 * TABLE + BLOCK), rel=1e-3)


@pytest.mark.parametrize("keys", [FSDP, COMPOSED])
def test_of_a_small_table_blocks_decide(keys: dict[str, Any]) -> None:
    assert held("gathered weights", {"vocabulary": 1024}, **keys) == pytest.approx(2 * 3 * BLOCK, rel=1e-2)


def test_a_tied_table_is_there_all_the_time() -> None:
    """In the root, which stays: 2 blocks' pieces and the next one beside it, or its own two pieces and the first."""
    found = held("gathered weights", {"tied_embeddings": True}, **FSDP)
    assert found == pytest.approx(2 * max(TABLE + 3 * BLOCK, 2 * TABLE + BLOCK), rel=1e-3)


@pytest.mark.parametrize("flavour", ["fsdp1", "fsdp2"])
def test_the_gradient_of_a_tied_table_waits_for_the_end(flavour: str) -> None:
    """It begins with the head's: 2 bytes an element beside each block's 2 + 4, and its own 2 + 4 at the end."""
    found = held("buffers", {"tied_embeddings": True}, **FSDP, flavour=flavour)
    assert found == pytest.approx(max(2 * TABLE + 6 * BLOCK, 6 * TABLE), rel=1e-3)


def test_the_older_one_s_root_has_table_and_head() -> None:
    found = held("buffers", **FSDP, flavour="fsdp1")
    assert found == pytest.approx(max(4 * TABLE + 6 * BLOCK, 12 * TABLE), rel=1e-3)


@examples()
@given(st.lists(st.tuples(st.integers(1, 100), st.booleans()), min_size=1, max_size=8), st.sampled_from([1, 2]))
def test_it_is_what_a_walk_through_the_pass_finds(units: list[tuple[int, bool]], copies: int) -> None:
    """Brute force: pieces come, are copied, and go."""
    there: dict[str, int] = {}
    most = 0
    for number, (size, stays) in enumerate(units):
        there[f"{number} in pieces"] = size
        if copies == 2:
            there[f"{number} in place"] = size
        if number + 1 < len(units):
            there[f"{number + 1} in pieces"] = units[number + 1][0]
        most = max(most, sum(there.values()))
        if copies == 2:
            del there[f"{number} in pieces"]
        if not stays:
            del there[f"{number} in place" if copies == 2 else f"{number} in pieces"]
    assert most_gathered(units, copies) == most
