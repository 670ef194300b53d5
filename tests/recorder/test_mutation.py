"""Either side changed alone is caught, and the diff names what was changed.

A wait dropped, x and y swapped in one layer, a count of bytes changed, two collectives in another order: first in the
generator, then in the runtime.
"""

from __future__ import annotations

import pytest

from runtime.parallel.collectives import Handle
from runtime.recorder import record
from runtime.strategies.four_d.gathers import WeightGathers
from runtime.strategies.four_d.layers import norm
from runtime.strategies.four_d.layers.linear import Linear4D
from tests.recorder.jobs import ALL, job
from twin.description.problems import DescriptionError
from twin.schedule.difference import difference
from twin.schedule.emit import Emitter
from twin.strategies.four_d.linear import WeightGathers as GeneratedGathers
from twin.strategies.four_d.shapes import Shapes
from twin.strategies.four_d.step import generate

JOB = job(ALL, overlap={"prefetch_depth": 2})
WAIT = "micro0/fwd/block1/qkv/all_reduce_x"


@pytest.fixture(scope="module")
def recorded():
    """What the runtime does when nothing was changed."""
    return record(JOB, 3).schedule


@pytest.fixture(scope="module")
def generated():
    """What the twin generates when nothing was changed."""
    return generate(JOB)


def changed(text: str) -> list[str]:
    """Lines of a diff that differ, without the head."""
    return [line for line in text.splitlines()[3:] if line[:1] in "+-"]


def test_without_a_change_there_is_no_difference(recorded, generated) -> None:
    assert difference(recorded, generated) == ""


def test_generator_drops_a_wait(monkeypatch, recorded) -> None:
    wait = Emitter.wait
    monkeypatch.setattr(Emitter, "wait", lambda self, name: None if name == WAIT else wait(self, name))
    assert changed(difference(recorded, generate(JOB))) == [f"+wait    {WAIT} [fwd, layer 1]"]


def test_runtime_drops_a_wait(monkeypatch) -> None:
    wait = Handle.wait

    def dropped(self):
        return self._finish() if self.op.name == WAIT else wait(self)

    monkeypatch.setattr(Handle, "wait", dropped)
    with pytest.raises(DescriptionError, match=f"{WAIT}: is started and never waited for"):
        record(JOB, 3)


def test_generator_swaps_x_and_y_in_one_layer(monkeypatch, recorded) -> None:
    linear = Shapes._linear

    def swapped(self, name, layer, n, k, *, transposed):
        return linear(self, name, layer, n, k, transposed=transposed != (name == "mlp_down"))

    monkeypatch.setattr(Shapes, "_linear", swapped)
    found = changed(difference(recorded, generate(JOB)))
    assert found
    assert all("/mlp_down/" in line for line in found)
    assert any(line.startswith("-start") and "all_reduce on x" in line for line in found)
    assert any(line.startswith("+start") and "all_reduce on y" in line for line in found)


def test_runtime_swaps_x_and_y_in_one_layer(monkeypatch, generated) -> None:
    make = Linear4D.__init__

    def swapped(self, context, name, *args, transposed, **options):
        make(self, context, name, *args, transposed=transposed != (name == "blocks.0.projection"), **options)

    monkeypatch.setattr(Linear4D, "__init__", swapped)
    found = changed(difference(record(JOB, 3).schedule, generated))
    assert found
    # its bias is split over the other axis, too, so that the norm of replicated ones may differ
    assert any("block0/projection/all_reduce_x" in line for line in found)
    assert not [line for line in found if "block1" in line]


def test_generator_changes_a_count_of_bytes(monkeypatch, recorded) -> None:
    start = Emitter.start

    def more(self, kind, communicator, bytes_, name=""):
        extra = 4 if self.prefix == "micro1/bwd/block1/norm2/" else 0
        return start(self, kind, communicator, bytes_ + extra, name)

    monkeypatch.setattr(Emitter, "start", more)
    name, size = ("micro1/bwd/block1/norm2/all_reduce_x", 2 * 16 * 4)  # two sums for each of 16 tokens
    assert changed(difference(recorded, generate(JOB))) == [
        f"-start   {name} [bwd, layer 1] all_reduce on x, {size + 4} bytes",
        f"+start   {name} [bwd, layer 1] all_reduce on x, {size} bytes",
    ]


def test_runtime_changes_a_count_of_bytes(monkeypatch, generated) -> None:
    """A third sum for each token, of which nobody makes use."""
    sums = norm._sums
    monkeypatch.setattr(norm, "_sums", lambda *a: sums(*a)[[0, 1, 1]])
    found = changed(difference(record(JOB, 3).schedule, generated))
    assert f"+start   micro0/fwd/block0/norm1/all_reduce_x [fwd, layer 0] all_reduce on x, {3 * 16 * 4} bytes" in found
    assert all("norm" in line for line in found)


def test_generator_reorders_two_collectives(monkeypatch, recorded) -> None:
    """The first two gathers of the forward pass are started the other way round."""
    enter = GeneratedGathers.enter

    def other_way(self):
        enter(self)
        emit, _ = self.units[0]
        if emit.prefix == "micro0/fwd/block0/":
            emit.ops[-2:] = emit.ops[:-3:-1]

    monkeypatch.setattr(GeneratedGathers, "enter", other_way)
    text = difference(recorded, generate(JOB))
    assert "in another order" in text
    name = "micro0/fwd/block0/qkv/all_gather_z"
    # of two that changed places a diff shows one leaving and coming again
    moved = changed(text)
    assert len(moved) == 2
    assert name in moved[0] or "projection/all_gather_z" in moved[0]


def test_runtime_reorders_two_collectives(monkeypatch, generated) -> None:
    begin = WeightGathers.begin

    def other_way(self, *parts):
        swapped = [([*units[1::-1], *units[2:]] if phase == "recompute" else units, phase) for units, phase in parts]
        begin(self, *swapped)

    monkeypatch.setattr(WeightGathers, "begin", other_way)
    found = changed(difference(record(JOB, 3).schedule, generated))
    assert found
    assert all("recompute" in line and "all_gather_z" in line for line in found)
