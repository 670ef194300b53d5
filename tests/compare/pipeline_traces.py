"""Small traces of pipelines made by hand: two stages, one rank each."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.compare.compare_traces import Row, collective, table, write

JOB: dict[str, Any] = {
    "strategy": "megatron",
    "flavour": "torch",
    "ranks": 2,
    "grid": {"pipeline": 2},
    "model": {"layers": 2, "hidden": 16, "heads": 2, "sequence": 8, "vocabulary": 32},
}
STREAMS = {"F": "pipeline_activations_even", "B": "pipeline_gradients_even"}
PHASES = {"F": "fwd", "B": "bwd"}


def gemm(step: str, start: int, end: int) -> Row:
    """A product of a pass, such as `0F` of micro-batch 0, forward."""
    micro, kind = step
    return Row(f"micro{micro}/{kind}/qkv/gemm", "compute", start, end, phase=PHASES[kind])


def message(step: str, way: str, arrival: int, start: int, end: int, waited: tuple[int, int]) -> list[Row]:
    """One end of a message."""
    micro, kind = step
    name = f"messages/micro{micro}/{kind}/{way}"
    return collective(name, arrival, start, end, waited, PHASES[kind], "pipeline", STREAMS[kind])


def everyone(arrival: int, start: int, end: int, waited: tuple[int, int]) -> list[Row]:
    """The norm of all gradients, of all ranks."""
    name = "optimizer/clip/all_reduce_pipeline"
    return collective(name, arrival, start, end, waited, "optimizer", "pipeline", "pipeline_everyone")


def by_hand(work: int = 10) -> dict[int, list[Row]]:
    """One micro-batch through two stages; `work` nanoseconds of stage 1's passes, 10 and 20 of stage 0's.

    Messages take 2 ns, the norm 1 ns, the optimizer 4 ns: 39 ns and 2 · work.
    """
    back = 12 + 2 * work
    norm = back + 22
    return {
        0: [
            gemm("0F", 0, 10),
            *message("0F", "send", 10, 10, 12, (10, 12)),
            *message("0B", "receive", 12, back, back + 2, (12, back + 2)),
            gemm("0B", back + 2, norm),
            *everyone(norm, norm, norm + 1, (norm, norm + 1)),
            Row("optimizer/adamw", "compute", norm + 1, norm + 5, phase="optimizer"),
        ],
        1: [
            *message("0F", "receive", 0, 10, 12, (0, 12)),
            gemm("0F", 12, 12 + work),
            gemm("0B", 12 + work, back),
            *message("0B", "send", back, back, back + 2, (back, back + 2)),
            *everyone(back + 2, norm, norm + 1, (back + 2, norm + 1)),
            Row("optimizer/adamw", "compute", norm + 1, norm + 5, phase="optimizer"),
        ],
    }


@dataclass(frozen=True)
class Meeting:
    """What one member of a message or a collective comes to."""

    key: str
    rows: Callable[[int, int, int, tuple[int, int]], list[Row]]


def _end(step: str, way: str) -> Meeting:
    def rows(arrival: int, start: int, end: int, waited: tuple[int, int]) -> list[Row]:
        return message(step, way, arrival, start, end, waited)

    return Meeting(step, rows)


NORM = Meeting("norm", everyone)
PROGRAMS: tuple[tuple[str | Meeting, ...], ...] = (
    (
        "0F",
        _end("0F", "send"),
        _end("0B", "receive"),
        "0B",
        "1F",
        _end("1F", "send"),
        _end("1B", "receive"),
        "1B",
        NORM,
    ),
    (
        _end("0F", "receive"),
        "0F",
        "0B",
        _end("0B", "send"),
        _end("1F", "receive"),
        "1F",
        "1B",
        _end("1B", "send"),
        NORM,
    ),
)
"""Both come to the same meetings in the same order."""


def played(draw: Callable[[], int]) -> dict[int, list[Row]]:
    """Play both programs: whoever comes to a meeting waits for the other one; all lengths are drawn."""
    rows: dict[int, list[Row]] = {0: [], 1: []}
    now, at = [draw(), draw()], [0, 0]
    free = dict.fromkeys(("F", "B", "m"), 0)
    while any(place < len(PROGRAMS[rank]) for rank, place in enumerate(at)):
        waiting: list[Meeting | None] = [None, None]
        for rank, program in enumerate(PROGRAMS):
            while at[rank] < len(program) and isinstance(step := program[at[rank]], str):
                begin = now[rank] + draw()
                now[rank] = begin + draw()
                rows[rank].append(gemm(step, begin, now[rank]))
                at[rank] += 1
            last = program[at[rank]] if at[rank] < len(program) else None
            waiting[rank] = last if isinstance(last, Meeting) else None
        first, second = waiting
        assert first is not None
        assert second is not None
        arrivals = [moment + draw() for moment in now]
        start = max(*arrivals, free[first.key[-1]])
        for rank, meeting in enumerate((first, second)):
            end = start + draw()
            begin = arrivals[rank] + draw()
            now[rank] = max(begin, end) + draw()
            rows[rank] += meeting.rows(arrivals[rank], start, end, (begin, now[rank]))
            free[first.key[-1]] = max(free[first.key[-1]], end)
            at[rank] += 1
    return rows


def written(folder: Path, kind: str, *steps: dict[int, list[Row]], **changes: Any) -> Path:
    """Write a run of two stages, steps from 0."""
    job = {**JOB, "batch": {"sequences": 2, "micro_sequences": 1}, **changes.pop("job", {})}
    return write(folder, kind, *(table(rows, step=n) for n, rows in enumerate(steps)), job=job, **changes)


def length_of(ranks: dict[int, Sequence[Row]]) -> int:
    """From the first begin to the last end, nanoseconds."""
    every = [row for rows in ranks.values() for row in rows]
    return max(r.end for r in every) - min(r.start if r.arrival is None else r.arrival for r in every)
