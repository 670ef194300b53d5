"""Predictions are those that are kept, to the byte: see `python -m tests.gate`."""

from __future__ import annotations

import json

import pytest

from tests.gate.__main__ import KEPT
from tests.gate.digests import COMMANDS, command_digest, event_digest
from tests.gate.jobs import cases

CASES = cases()
DIGESTS = json.loads(KEPT.read_text(encoding="utf-8"))
SAMPLE = {
    "example gpt-320b-frontier-32768",
    "example tiny-gpt",
    "conformance axes data z y x",
    "conformance sharded",
    "conformance axes z x, every rank by SimPy",
    "dgx-h100, data 2 × z 2 × y 2",
    "laptop, z 2 × y 2 × x 2",
    "shared cores",
    "two stragglers",
    "half-rate NIC",
    "scattered, cyclic",
    "another library",
    "every rank by SimPy, with a straggler",
    "every rank, seed 0",
}
"""One of each kind."""
LONG = {"validate", "search gpt-5b, all", "study sensitivity"}


def test_all_cases_are_kept_and_no_others():
    assert set(DIGESTS) == {*CASES, *COMMANDS}
    assert set(CASES) >= SAMPLE


@pytest.mark.parametrize("name", [n if n in SAMPLE else pytest.param(n, marks=pytest.mark.full) for n in CASES])
def test_events_are_those_that_are_kept(name):
    assert event_digest(CASES[name]) == DIGESTS[name]


@pytest.mark.process
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.slow) if n in LONG else n for n in COMMANDS])
def test_what_commands_print_is_what_is_kept(name):
    assert command_digest(name) == DIGESTS[name]
