"""The chaos test's verdict: it sees each way in which a promise can be broken."""

from __future__ import annotations

from typing import Any

import pytest

from tests.chaos.events import COUNTS, Chaos, Kind
from tests.chaos.verdict import BOUND, EVERY, MEMORY_EVERY, Ending, Story, verdict

STEPS = 40
ALONE = {step: 5.0 - step / 100 for step in range(STEPS)}
KINDS: tuple[Kind, ...] = ("rank", "disk")
GOOD = Ending({1: 0, 0: 1, 2: 0}, STEPS)


def found(
    *,
    lost: int = 0,
    kind: Kind = "rank",
    happened: int = 2,
    ending: Ending = GOOD,
    lines: list[dict[str, Any]] | None = None,
) -> list[str]:
    event = {"kind": kind, "step": 10, "lost": lost, "again": lost, "what": ""}
    calm = {"kind": "disk", "step": 20, "lost": 0, "again": 0, "what": ""}
    story = Story([event, calm][:happened])
    whole = [{"step": step, "loss": loss} for step, loss in ALONE.items()]
    return verdict(story, KINDS, ALONE, whole if lines is None else lines, STEPS, ending)


def test_a_run_that_kept_all_promises():
    assert found() == []


@pytest.mark.parametrize(
    ("ending", "text"),
    [
        (Ending({1: 1, 0: 0}, STEPS), "ended badly"),
        (Ending({}, STEPS), "ended badly"),
        (Ending({1: 0, 0: None}, STEPS), "host 0 has not ended"),
        (Ending({1: 0}, STEPS - EVERY), f"of step {STEPS - EVERY}, not {STEPS}"),
        (Ending({1: 0}, None), f"of step None, not {STEPS}"),
    ],
)
def test_endings(ending, text):
    problems = found(ending=ending)
    assert len(problems) == 1
    assert text in problems[0]


def test_events_that_did_not_happen():
    assert "1 of 2 events happened" in found(happened=1)[0]


@pytest.mark.parametrize("kind", list(COUNTS))
def test_steps_that_may_be_lost(kind):
    """A copy every four steps, and one under way; two checkpoints if one is damaged; none to a full disk."""
    most = {"disk": 0, "damage": 2 * EVERY + MEMORY_EVERY}.get(kind, 2 * MEMORY_EVERY)
    assert BOUND[kind] == most
    assert found(kind=kind, lost=most) == []
    assert "at step 10 cost" in found(kind=kind, lost=most + 1)[0]


def test_losses():
    lines = [{"step": step, "loss": loss} for step, loss in ALONE.items()]
    assert found(lines=lines[:-1]) == ["metrics do not have every step once"]
    assert found(lines=[*lines, lines[-1]]) == ["metrics do not have every step once"]
    lines[7] = {"step": 7, "loss": lines[7]["loss"] * (1 + 3e-5)}
    assert found(lines=lines) == ["losses are 3e-05 from the undisturbed run's"]


@pytest.mark.parametrize("share", [0.1, 1.0])
def test_each_kind_is_drawn(share):
    kinds = Chaos.drawn(3, share).kinds
    assert {kind: kinds.count(kind) for kind in COUNTS} == {
        kind: max(1, round(share * count)) for kind, count in COUNTS.items()
    }
