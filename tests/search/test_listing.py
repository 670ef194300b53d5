"""What a search knows before it simulates: its candidates, listed here or by processes, and messages in its floors."""

from __future__ import annotations

import pytest

from tests.search.test_across import MODEL, SMALL
from twin.engine.crew import processes
from twin.engine.program import START
from twin.engine.simulate import simulate
from twin.search import candidates as listing
from twin.search.floors import hop_seconds
from twin.strategies import load_job, strategy_of

PIPED = SMALL | {"strategy": "megatron", "schedule": "gpipe", "machine": "dgx-a100", "ranks": 16}


@pytest.mark.process
@pytest.mark.quick
def test_processes_list_what_one_lists(monkeypatch: pytest.MonkeyPatch) -> None:
    job = load_job(SMALL | {"strategy": "four_d", "grid": "auto"})
    alone = listing.candidates(job)
    monkeypatch.setattr(listing, "MANY_GRIDS", 1)
    monkeypatch.setattr(listing, "GRIDS_AT_ONCE", 3)
    with processes(2) as crew:
        assert listing.candidates(job, workers=crew) == alone


@pytest.mark.parametrize("stages", [2, 4])
def test_one_micro_batch_passes_every_border_twice(stages: int) -> None:
    """So its floor is all passes, one after the other, and a message each way at every border."""
    grid = {"pipeline": stages, "tensor": 16 // stages}
    job = load_job(PIPED | {"grid": grid, "batch": {"sequences": 1, "micro_sequences": 1}})
    strategy = strategy_of(job)
    passes = {
        "F/block0/": 2.0,
        "B/block0/": 3.0,
        "F/embedding/": 0.5,
        "B/embedding/": 0.25,
        "F/head/": 1.0,
        "B/head/": 4.0,
    }
    found = strategy.closer_floor_seconds(job, lambda text: passes.get(text, 0.0), lambda: 0.125)
    blocks = MODEL["layers"] * (2.0 + 3.0)
    assert found == pytest.approx(blocks + 0.5 + 0.25 + 1.0 + 4.0 + 2 * (stages - 1) * 0.125, rel=1e-12)


def test_no_message_of_a_step_is_faster_than_the_floors_take_it_to_be() -> None:
    job = load_job(PIPED | {"grid": {"pipeline": 2, "tensor": 8}, "batch": {"sequences": 8, "micro_sequences": 1}})
    hop = hop_seconds(job)
    seconds = [
        float(part.timeline.end[0, number] - part.timeline.start[0, number])
        for part in simulate(job).parts
        for number in range(len(part.program))
        if part.program.code[number] == START and part.program.name(number).endswith(("/send", "/receive"))
    ]
    assert 0.0 < hop <= min(seconds) * (1 + 1e-9)
    assert hop > 0.5 * min(seconds)  # and it is not far from what one takes alone
    # an activation of bf16 leaves a node by one NIC of 200 Gbit/s or more slowly
    assert hop > 2 * MODEL["hidden"] * MODEL["sequence"] / 25e9
