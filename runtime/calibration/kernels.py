"""Ops bound by memory, timed inside small models of several widths, op by op.

The models are those of the runtime, on one rank of a pretended grid (`quiet`), so that each op finds its
operands where training leaves them. What is kept are single ops; how long a whole step takes is not looked at.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from runtime.calibration.busy import busy_sets, joined
from runtime.calibration.listening import Kind, by_kind, hear, sample_of
from runtime.calibration.quiet import QuietRank, quiet_context
from runtime.calibration.team import Team
from twin.strategies.four_d.grid import Grid

SHAPES = ((32, 64, 512), (64, 256, 256), (128, 128, 1024), (256, 512, 1024), (384, 1024, 4096))
"""(hidden, tokens, vocabulary), for CPUs."""
WIDE_SHAPES = ((1024, 2048, 32768), (2048, 4096, 50304), (4096, 4096, 50304))
"""The same for GPUs."""
SEQUENCE = 64
GRIDS = (Grid(), Grid(z=2, y=2, x=2))
"""Uncut, with the device library's own layer norm; cut, with statistics and normalisation
apart, and sums of scattered gradients."""
FAMILIES: dict[str, dict[str, Any]] = {
    "gpt": {},
    "llama": {"positions": "rotary", "norm": "rms", "activation": "swiglu", "biases": False},
}
"""Kinds of blocks, whose ops bound by memory differ."""
MIN_STEPS = 3
BETWEEN = Kind("between", "", 0.0, 0.0, (), 0)
"""What the host does from op to op: layers, autograd, memory."""
PLUGS = 8
"""Products before a pass on a GPU: about as long as the host needs to issue it."""


def measure_kernels(team: Team, seconds: float) -> list[dict[str, Any]]:
    """Time ops on one rank and on all, on CPUs by the time of the core; entries on rank 0.

    `bytes` are those that the runtime describes an op with; products have `shape` (m, n, k), attention
    (sequences, length, heads, head size); `launches` is how many kernels an op says it consists of.
    """
    shapes = SHAPES if team.device.type == "cpu" else (*SHAPES[2:], *WIDE_SHAPES)
    cases = [(family, shape, grid) for family in FAMILIES for shape in shapes for grid in GRIDS]
    each = seconds / (len(cases) * len(busy_sets(team)))
    entries = []
    for family, (hidden, tokens, vocabulary), grid in cases:
        for busy in busy_sets(team):
            mine: dict[Kind, list[float]] = {}
            rank = _model(team, family, hidden, tokens, vocabulary, grid) if team.rank in busy else None
            team.start_together()
            if rank is not None:
                mine = _listen(team, rank, each)
            entries += [
                {
                    "busy": len(busy),
                    "family": family,
                    "tokens": tokens,
                    "hidden": hidden,
                    "vocabulary": vocabulary,
                    "grid": grid.model_dump(),
                    **entry,
                }
                for entry in entries_of(team.gather(mine))
            ]
    return entries


def _model(team: Team, family: str, hidden: int, tokens: int, vocabulary: int, grid: Grid) -> QuietRank:
    sequence = min(SEQUENCE, tokens)
    model = {
        "layers": 1,
        "hidden": hidden,
        "heads": max(2, hidden // 64),
        "sequence": sequence,
        "vocabulary": vocabulary,
        **FAMILIES[family],
    }
    rank = QuietRank(quiet_context(model, grid, team.device, sequences=tokens // sequence))
    rank.step()  # what is allocated once is allocated
    return rank


def _listen(team: Team, rank: QuietRank, seconds: float) -> dict[Kind, list[float]]:
    """Times of all ops, as often as there is time for."""
    times: dict[Kind, list[float]] = {}
    begin, steps = time.perf_counter(), 0
    while steps < MIN_STEPS or time.perf_counter() - begin < seconds:
        heard = by_kind(hear(team.device, rank.step, PLUGS))
        for kind, found in heard.items():
            times.setdefault(kind, []).extend(found)
        if team.device.type == "cpu":
            ops = sum(map(len, heard.values()))
            times.setdefault(BETWEEN, []).append(seconds_between(rank.step, heard) / ops)
        steps += 1
    return times


def seconds_between(step: Callable[[], None], heard: Mapping[Kind, Sequence[float]]) -> float:
    """Do a step that nobody listens to; return the seconds of this core that it takes beside the ops `heard`.

    Of one step it may be less than nothing: two steps differ, by more than lies between small ops.

    To listen takes a core up to 100 µs an op, the more the larger they are: a step that is heard is no measure of this.
    """
    begin = time.thread_time()
    step()
    return time.thread_time() - begin - sum(map(sum, heard.values()))


def entries_of(everyone: list[dict[Kind, list[float]]] | None) -> list[dict[str, Any]]:
    """Write what each rank found of ops as one entry a kind."""
    entries = []
    for kind in dict.fromkeys(kind for mine in everyone or () for kind in mine):
        samples = [sample_of(mine[kind]) for mine in everyone or () if kind in mine]
        sample = joined(samples)
        assert sample is not None
        entries.append(
            {
                "name": kind.name,
                "phase": kind.phase,
                "work": kind.work,
                "bytes": kind.bytes,
                "flops": kind.flops,
                "shape": list(kind.shape),
                "launches": kind.launches,
                "seconds": max(0.0, sample.seconds),
                "spread": abs(sample.spread),
                "repeats": sample.repeats,
            }
        )
    return entries
