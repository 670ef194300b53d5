"""Jobs with many micro-steps are compared by rehearsals: against their full simulation."""

from __future__ import annotations

import pytest

from twin.engine.simulate import simulate
from twin.search import choose as choose_module
from twin.search.choose import CANDIDATES, LONG, candidates, choose, rehearsed_seconds
from twin.strategies import load_job

MODEL = {"layers": 3, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 512}


def job(**changes):
    return load_job(
        {
            "model": MODEL,
            "machine": "perlmutter",
            "ranks": 16,
            "grid": "auto",
            "batch": {"sequences": 128, "micro_sequences": 1},
            **changes,
        }
    )


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"overlap": {"reduce_scatter": False, "all_gather": False}},
        {"cache_gathered_layers": 2},
        {"data_reduction": {"mode": "overlapped"}},
        {"data_reduction": {"mode": "sharded"}},
        {"gather_unit": "block", "recompute": False},
    ],
    ids=str,
)
def test_a_rehearsal_foretells_the_step(changes):
    """Well within what keeps a candidate in the race; most agree to rounding."""
    for candidate in candidates(job(**changes))[:6]:
        assert candidate.micro_steps > LONG
        step = simulate(candidate).step_seconds
        assert rehearsed_seconds(candidate) == pytest.approx(step, rel=1e-3)


def test_the_best_is_that_of_all_candidates():
    best = min(simulate(c).step_seconds for c in candidates(job())[:CANDIDATES])
    assert choose(job()).best.step_seconds == best


def test_few_are_simulated_in_full(monkeypatch):
    whole = []

    def counted(job, **options):
        whole.append(job.micro_steps)
        return simulate(job, **options)

    monkeypatch.setattr(choose_module, "simulate", counted)
    choose(job())
    assert sum(steps > LONG for steps in whole) < CANDIDATES / 2
