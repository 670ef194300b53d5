"""Messages, gathers and reductions of PyTorch's pipelines: its own lowering, and its own steps on stages that note."""

from __future__ import annotations

from typing import Any

import pytest

from twin.strategies.megatron.orders import Name, operations
from twin.strategies.megatron.orders.pytorch import lowered

schedules = pytest.importorskip("torch.distributed.pipelining.schedules")
mapping = pytest.importorskip("torch.distributed.pipelining._utils").generate_stage_to_rank_mapping

CLASSES: dict[Name, str] = {
    "gpipe": "ScheduleGPipe",
    "1f1b": "Schedule1F1B",
    "interleaved": "ScheduleInterleaved1F1B",
    "zb_h1": "ScheduleInterleavedZeroBubble",
    "zb_v": "ScheduleZBVZeroBubble",
    "dualpipe_v": "ScheduleDualPipeV",
}
SINGLE: tuple[Name, ...] = ("gpipe", "1f1b")
SIZES = [(2, 2), (2, 6), (3, 6), (4, 4), (4, 8), (4, 12), (5, 20), (8, 16), (8, 32)]
LOWERED: list[tuple[Name, int, int, int]] = [
    *[("interleaved", *size, chunks) for size in [*SIZES, (4, 10), (8, 20)] for chunks in (2, 3, 4, 5, 7)],
    *[("zb_h1", *size, 1) for size in [*SIZES, (4, 2), (8, 5)]],
    *[("zb_v", *size, 2) for size in [*SIZES, (2, 7), (4, 1), (5, 17)]],
    *[("dualpipe_v", *size, 2) for size in [(2, 4), (2, 7), (3, 6), (4, 8), (4, 13), (8, 16), (8, 24)]],
]


def made(name: Name, ranks: int, micro_steps: int, chunks: int) -> Any:
    """A schedule as its constructor leaves it, without stages and processes."""
    schedule = object.__new__(getattr(schedules, CLASSES[name]))
    rounds = max(1, micro_steps // ranks)
    schedule.__dict__ |= {
        "pp_group_size": ranks,
        "n_local_stages": chunks,
        "num_stages": ranks * chunks,
        "_num_stages": ranks * chunks,
        "_n_microbatches": micro_steps,
        "number_of_rounds": rounds,
        "microbatches_per_round": micro_steps // rounds,
        "_defer_pp_recv": False,
        "_stages": [],
    }
    return schedule


def with_comms(name: Name, ranks: int, micro_steps: int, chunks: int) -> dict[int, list[Any]]:
    """What PyTorch's constructor calls `pipeline_order_with_comms`."""
    schedule = made(name, ranks, micro_steps, chunks)
    orders = {rank: schedule._calculate_single_rank_operations(rank) for rank in range(ranks)}
    if name == "zb_h1":
        schedule.pipeline_order = orders
        orders = schedule._add_bubbles_to_actions(ranks * chunks)
    style = "v" if name in ("zb_v", "dualpipe_v") else "loop"
    to_rank = mapping(ranks, ranks * chunks, style)
    lists = {
        rank: schedules._add_reduce_grad(schedules._add_unshard_reshard(actions), micro_steps)
        for rank, actions in orders.items()
    }
    return dict(schedules._add_send_recv(lists, stage_to_rank=to_rank.__getitem__, num_stages=ranks * chunks))


def theirs(actions: list[Any]) -> list[tuple[str, int, int]]:
    leaves = [one for action in actions for one in (action.sub_actions or [action])]
    return [
        (one.computation_type.value, one.stage_index, -1 if one.microbatch_index is None else one.microbatch_index)
        for one in leaves
    ]


def stage(name: Name, rank: int, chunk: int, ranks: int) -> int:
    v = name in ("zb_v", "dualpipe_v")
    return 2 * ranks - 1 - rank if v and chunk else chunk * ranks + rank


@pytest.mark.parametrize(("name", "ranks", "micro_steps", "chunks"), LOWERED)
def test_lowered(name: Name, ranks: int, micro_steps: int, chunks: int) -> None:
    group = micro_steps // max(1, micro_steps // ranks) if name == "interleaved" else None
    found = lowered(name, ranks, micro_steps, chunks, group)
    table = with_comms(name, ranks, micro_steps, chunks)
    for rank in range(ranks):
        mine = [(one.kind, stage(name, rank, one.chunk, ranks), one.micro) for one in found[rank]]
        assert mine == theirs(table[rank])
        pairs = [one.with_next for one in found[rank]]
        subs = [[True, False] if action.sub_actions else [False] for action in table[rank]]
        assert pairs == [one for each in subs for one in each]


class Noting:
    """A stage whose methods note that they were called; it has the messages that its place has."""

    def __init__(self, index: int, stages: int, chunk: int, notes: list[Any]) -> None:
        self.stage_index, self.chunk, self.notes = index, chunk, notes
        self.is_first, self.is_last = index == 0, index == stages - 1
        self.submod = Submodule(chunk, notes)

    def _op(self, does: str, kind: str, micro: int, there: bool) -> list[Any]:
        return [Message((does, kind, self.chunk, micro), self.notes)] if there else []

    def get_fwd_recv_ops(self, micro: int) -> list[Any]:
        return self._op("receive", "F", micro, not self.is_first)

    def get_fwd_send_ops(self, micro: int) -> list[Any]:
        return self._op("send", "F", micro, not self.is_last)

    def get_bwd_recv_ops(self, micro: int) -> list[Any]:
        return self._op("receive", "B", micro, not self.is_last)

    def get_bwd_send_ops(self, micro: int) -> list[Any]:
        return self._op("send", "B", micro, not self.is_first)

    def forward_one_chunk(self, micro: int, *_: Any, **__: Any) -> None:
        self.notes.append(("pass", "F", self.chunk, micro))

    def backward_one_chunk(self, micro: int, full_backward: bool = True, **_: Any) -> None:
        self.notes.append(("pass", "B" if full_backward else "I", self.chunk, micro))

    def backward_weight_one_chunk(self, micro: int, **_: Any) -> None:
        self.notes.append(("pass", "W", self.chunk, micro))

    def perform_reduce_grad(self, _: int) -> None:
        self.notes.append(("reduce", "F", self.chunk, -1))

    def set_local_fwd_input(self, *_: Any) -> None:
        """Nothing travels."""

    set_local_bwd_input = get_local_bwd_output = set_local_fwd_input


class Message:
    """One that is started, and then waited for."""

    peer = 0

    def __init__(self, what: tuple[str, str, int, int], notes: list[Any]) -> None:
        self.what, self.notes = what, notes

    def start(self) -> Message:
        self.notes.append(self.what)
        return self

    def wait(self) -> None:
        does, *rest = self.what
        self.notes.append(({"receive": "received", "send": "sent", "unshard": "unsharded"}[does], *rest))


class Sharded:
    """Stands for FSDPModule."""


class Submodule(Sharded):
    """One unit."""

    def __init__(self, chunk: int, notes: list[Any]) -> None:
        self.chunk, self.notes = chunk, notes

    def modules(self) -> list[Any]:
        return [self]

    def unshard(self, async_op: bool) -> Message:
        assert async_op
        return Message(("unshard", "F", self.chunk, -1), self.notes).start()

    def reshard(self) -> None:
        self.notes.append(("reshard", "F", self.chunk, -1))


@pytest.fixture
def noting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(schedules, "_batch_p2p", lambda ops, **_: [op.start() for op in ops])
    monkeypatch.setattr(schedules, "FSDPModule", Sharded)


def performed(name: Name, rank: int, ranks: int, micro_steps: int, chunks: int) -> list[tuple[str, str, int, int]]:
    """Run PyTorch's own `_step_microbatches` on stages that note."""
    notes: list[tuple[str, str, int, int]] = []
    schedule = made(name, ranks, micro_steps, chunks)
    stages = [Noting(stage(name, rank, chunk, ranks), ranks * chunks, chunk, notes) for chunk in range(chunks)]
    kind = type(schedule)

    class Quiet(kind):  # type: ignore[valid-type,misc]
        """Without inputs, losses and a first step."""

        def _check_inputs(self, *_: Any) -> Any:
            return [[None] * micro_steps] * 2

        def _initialize_stage(self, *_: Any) -> None: ...
        def _initialize_stages(self, *_: Any) -> None: ...
        def _maybe_compute_loss(self, *_: Any) -> None: ...
        def _maybe_get_loss(self, *_: Any) -> None: ...
        def _update_losses(self, *_: Any) -> None: ...

    quiet = object.__new__(Quiet)
    quiet.__dict__ |= {**vars(schedule), "_stage": stages[0], "_stages": stages, "rank": rank, "scale_grads": False}
    if name not in SINGLE:
        quiet.pipeline_order_with_comms = with_comms(name, ranks, micro_steps, chunks)
        quiet.__dict__ |= {
            "backward_counter": schedules.Counter(),
            "bwd_recv_ops": {},
            "fwd_recv_ops": {},
            "unshard_ops": schedules.defaultdict(list),
            "unsharded_stages": set(),
            "_comp_type_to_function_map": {},
        }
    quiet._step_microbatches()
    return notes


STEPS: list[tuple[Name, int, int, int]] = [
    *[("gpipe", *size, 1) for size in [*SIZES, (3, 1), (4, 2), (1, 3)]],
    *[("1f1b", *size, 1) for size in [*SIZES, (3, 1), (4, 2), (4, 5), (1, 3)]],
    *LOWERED[::3],
]


@pytest.mark.usefixtures("noting")
@pytest.mark.parametrize(("name", "ranks", "micro_steps", "chunks"), STEPS)
def test_operations_are_those_of_its_own_step(name: Name, ranks: int, micro_steps: int, chunks: int) -> None:
    group = micro_steps // max(1, micro_steps // ranks) if name == "interleaved" else None
    for rank in range(ranks):
        mine = [tuple(one) for one in operations(name, rank, ranks, micro_steps, chunks, group)]
        assert mine == performed(name, rank, ranks, micro_steps, chunks)
