"""A search over recomputation of a job whose file says what it recomputes more finely."""

from __future__ import annotations

from typing import Any

import pytest

from twin.search.best import settled
from twin.search.candidates import candidates, unsettled
from twin.strategies import load_job, strategy_of

COMMON: dict[str, Any] = {
    "model": "gpt-5b",
    "machine": "perlmutter",
    "ranks": 16,
    "batch": {"sequences": 64},
    "recompute": True,
    "grid": "auto",
}
FINER: dict[str, dict[str, Any]] = {
    "some layers, inputs on the host": {"strategy": "four_d", "recompute_layers": 4, "recompute_inputs": "host"},
    "products kept": {"strategy": "four_d", "recompute_keeps": "products"},
    "stops early": {"strategy": "four_d", "recompute_stops_early": True},
    "fsdp's": {"strategy": "fsdp", "recompute_stops_early": True},
    "megatron's": {"strategy": "megatron", "recompute_layers": 2, "recompute_keeps": "attention"},
}


@pytest.mark.parametrize("finer", FINER.values(), ids=list(FINER))
def test_nothing_recomputed_is_tried_and_is_the_plain_job(finer: dict[str, Any]) -> None:
    """What is found without recomputation is what a search of the job without its finer keys finds."""
    raw = COMMON | finer
    plain = {key: value for key, value in raw.items() if not key.startswith("recompute")} | {"recompute": False}
    found, expected = ({_key(one) for one in _without(given)} for given in (raw, plain))
    assert found == expected
    assert found


def _without(raw: dict[str, Any]) -> list[Any]:
    base = unsettled(load_job(raw))
    every = [one for one in candidates(base, frozenset({"recompute"})) if one.feasible]
    jobs = [one.job(base) for one in every]
    for one, job in zip(every, jobs, strict=True):
        assert one.micro_sequences is not None
        written = load_job(settled(raw, one.grid, one.micro_sequences, one.options))
        assert written.model_dump() == job.model_dump()
    assert any(job.recompute for job in jobs)  # type: ignore[attr-defined]
    assert not any(strategy_of(job).check(job) for job in jobs)
    return [job for job in jobs if not job.recompute]  # type: ignore[attr-defined]


def _key(job: Any) -> str:
    return str(job.model_dump_json())
