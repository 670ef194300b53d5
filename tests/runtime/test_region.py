"""Regions: a timer hears of the same passes as who runs them apart, and gradients stay the same bits."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch

from runtime.parallel.ops import Op, Ops, Place
from runtime.parallel.region import Region, add, branch, unpack
from runtime.tracing.listener import HostListener
from twin.schedule.kernels import Memory


@dataclass
class Apart:
    """A listener that runs ops apart, and knows their names."""

    names: list[tuple[str, str]] = field(default_factory=list)
    in_autograd: bool = False

    def compute(self, op: Op, run: Callable[[], Any]) -> Any:
        self.names.append((op.name, op.phase))
        return run()

    start = wait = compute


def region(ops: Ops, name: str, run: Callable[..., torch.Tensor], backward: str = "") -> Region:
    return Region(ops, Place("block"), name, run, lambda: Memory(8.0), lambda: Memory(16.0), backward_name=backward)


def soft(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Many nodes, three ways out."""
    return (torch.softmax(q @ k.t(), -1) @ v).transpose(0, 1).reshape(q.shape).exp()


def block(ops: Ops, x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
    """Pass through all that regions are used for: a leaf, one input of several, none that is computed."""
    kept, branched = branch(x, ops, Place("block"), "split")
    normed = region(ops, "norm", lambda t, w: torch.nn.functional.layer_norm(t, t.shape[1:], w), "slope")(
        branched, weight
    )
    q, k, v = unpack(torch.cat((normed, normed * 2, normed - 1), 1), (6, 6, 6), ops, Place("block"))
    attended = region(ops, "attention", soft)(q, k, v)
    same = region(ops, "same", lambda t: t)(attended)
    return add(kept, region(ops, "gelu", torch.nn.functional.gelu)(same), None, ops, Place("block"), "sum")


def passed(listener: Any) -> tuple[torch.Tensor, ...]:
    ops, generator = Ops(listener), torch.Generator().manual_seed(0)
    leaf, weight = (torch.randn(size, generator=generator, requires_grad=True) for size in ((4, 6), (6,)))
    with ops.micro_step(0):
        out = block(ops, leaf * 1.5, weight)
        out.backward(torch.ones_like(out))
    assert leaf.grad is not None
    assert weight.grad is not None
    return out.detach(), leaf.grad, weight.grad


def test_gradients_are_the_same_bits_whoever_listens():
    want = passed(None)
    for listener in (Apart(), HostListener(0)):
        assert all(torch.equal(one, other) for one, other in zip(passed(listener), want, strict=True))


def test_a_timer_hears_of_what_is_run_apart():
    apart, timer = Apart(), HostListener(0)
    passed(apart)
    passed(timer)
    assert [(note.op.name, note.op.phase) for note in timer.notes] == apart.names
    assert [name for name, phase in apart.names if phase == "bwd"] == [
        f"micro0/bwd/block/{name}" for name in ("gelu", "same", "attention", "pack", "slope", "split")
    ]
    assert {note.op.bytes for note in timer.notes if note.op.name.endswith(("bwd/block/gelu", "slope"))} == {16.0}


def test_what_is_heard_lies_within_the_backward_pass_one_after_the_other():
    timer = HostListener(0)
    passed(timer)
    notes = [note for note in timer.notes if note.op.phase == "bwd"]
    assert all(note.begin_ns <= note.end_ns for note in notes)
    assert all(one.end_ns <= other.begin_ns for one, other in pairwise(notes))


@pytest.mark.parametrize("place", ["first", "last", "side"])
def test_all_of_a_pass_is_between_begin_and_end(place):
    """Wherever in the region's graph a node stands, it runs after the begin and before the end that counts."""
    events: list[str] = []

    class Timer(HostListener):
        def begin(self, op: Op) -> Any:
            events.append("begin")
            return super().begin(op)

        def end(self, begun: Any) -> None:
            events.append("end")
            super().end(begun)

    class Node(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, gradient: torch.Tensor) -> torch.Tensor:
            events.append("ran")
            return gradient

    def run(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if place == "first":
            return Node.apply(x * y)
        if place == "last":
            return Node.apply(x).exp() * y
        return x.exp() + Node.apply(y.sin())

    x, y = (torch.ones(3, requires_grad=True) for _ in range(2))
    out = region(Ops(Timer(0)), "work", run)(x * 2, y * 2)
    out.sum().backward()
    assert events[0] == "begin"
    assert events[-1] == "end"
    assert events.count("begin") == events.count("ran") == 1


def test_what_reads_a_parameter_runs_apart():
    """Its gradient would be added up, and sent by hooks, between begin and end."""
    sent, timer = [], HostListener(0)
    rows, positions = (torch.ones(3, requires_grad=True) for _ in range(2))
    positions.register_post_accumulate_grad_hook(lambda _: sent.append(timer.notes[-1].op.phase))
    out = region(Ops(timer), "lookup", lambda a, b: a.sin() + b)(rows, positions)
    out.sum().backward()
    assert [note.op.phase for note in timer.notes] == ["fwd", "bwd"]
    assert sent == ["bwd"]  # the note was complete by then


def test_a_pass_that_breaks_off_leaves_no_note():
    timer = HostListener(0)
    x = torch.ones(3, requires_grad=True)

    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(_ctx: Any, x: torch.Tensor) -> torch.Tensor:
            return x.clone()

        @staticmethod
        def backward(_ctx: Any, _gradient: torch.Tensor) -> torch.Tensor:
            raise ValueError("broken")

    out = region(Ops(timer), "work", Broken.apply)(x * 2)
    with pytest.raises(ValueError, match="broken"):
        out.sum().backward()
    assert [note.op.phase for note in timer.finish()] == ["fwd"]


def test_the_same_ops_of_the_next_step_are_not_described_again():
    ops, asked = Ops(HostListener(0)), []

    def step(sizes: tuple[float, ...], shape: tuple[int, ...]) -> list[Op]:
        found = []
        with ops.micro_step(0, shape):
            for size in sizes:

                def describe(size: float = size) -> Memory:
                    asked.append(size)
                    return Memory(size)

                found.append(ops.work(Place("loss"), "sum", describe))
        return found

    first = step((1.0, 1.0, 5.0), (2, 8))  # a last chunk that is smaller has the same name
    assert [op.bytes for op in first] == [1.0, 1.0, 5.0]
    assert [op is other for op, other in zip(step((1.0, 1.0, 5.0), (2, 8)), first, strict=True)] == [True] * 3
    assert asked == [1.0, 1.0, 5.0]
    assert [op.bytes for op in step((2.0, 2.0), (4, 8))] == [2.0, 2.0]
    assert [op.bytes for op in step((1.0,), (2, 8))] == [1.0]


def test_without_a_shape_every_op_is_described():
    ops = Ops(HostListener(0))
    for size in (1.0, 2.0):
        with ops.micro_step(0):
            assert ops.work(Place(""), "sum", lambda size=size: Memory(size)).bytes == size
        assert ops.op(Place(""), "all", sent_bytes=size).bytes == size
