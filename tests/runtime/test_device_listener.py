"""Times by events on a GPU's streams, with stand-ins for events and streams: no GPU is here."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import pytest
import torch

from runtime.calibration.quiet import QuietRank, quiet_context
from runtime.tracing.listener import DeviceListener
from twin.strategies.four_d.grid import Grid


class Clock:
    """Counts milliseconds, one an event."""

    now = 0.0


class Event:
    """Stands for a CUDA event."""

    def __init__(self, **_: Any) -> None:
        self.at = 0.0

    def record(self) -> None:
        Clock.now += 1.0
        self.at = Clock.now

    def elapsed_time(self, later: Event) -> float:
        return later.at - self.at


class Stream:
    """Stands for a CUDA stream."""

    def wait_stream(self, _other: Stream) -> None:
        """Nothing is under way."""

    def wait_event(self, _event: Event) -> None:
        """Nor here."""


@pytest.fixture
def listener(monkeypatch: pytest.MonkeyPatch) -> DeviceListener:
    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "Stream", Stream)
    monkeypatch.setattr(torch.cuda, "current_stream", Stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _stream: nullcontext())
    monkeypatch.setattr(torch.cuda, "synchronize", lambda: None)
    return DeviceListener(0)


def test_a_rank_that_is_alone_is_timed_though_it_sends_nothing(listener: DeviceListener) -> None:
    """As `fourfold calibrate` does on a GPU, whose collectives return no work to wait for."""
    model = {"layers": 1, "hidden": 64, "heads": 4, "sequence": 16, "vocabulary": 64}
    rank = QuietRank(quiet_context(model, Grid(z=2, y=2), torch.device("cpu")))
    rank.step(listener)
    notes = listener.finish()
    collectives = {note.op.name for note in notes if note.kind == "collective"}
    assert any("all_gather_z" in name for name in collectives)
    assert any("all_reduce_y" in name for name in collectives)
    assert all(note.end_ns - note.begin_ns == 1e6 for note in notes if note.kind == "collective")
