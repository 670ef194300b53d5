"""Bubbles of a pipeline by name: why a stage does not compute, in parts that add up to the step.

The time of a rank is cut at the ends of its passes. Then, in this order:

* *computing*: kernels of passes run.
* *exposed in passes*: a pass is under way and none of its kernels runs: collectives of tensor and context ranks that
  nothing hides, weights that are awaited, the host.
* *end of step*: from the end of the pipeline's last pass on any rank: reduction of gradients, norm, optimizer.
* *messages*: between two passes, while a message of this rank is under way.
* *warm-up*: before the rank's first backward pass (B or I): until the first micro-batch has come, and come back.
* *drain*: after its last forward pass, and after its last pass until the pipeline's last one is done. Reductions that
  run meanwhile cost nothing.
* *imbalance*: what is left, between its first backward and its last forward pass: the pipeline is full, and the rank
  waits for a slower one, for messages of others, or where its schedule has gaps of its own (interleaved has).

With free messages and stages that take equally long, warm-up and drain of 1F1B are (P - 1)(F + B) on every rank, and
imbalance is none; of interleaved 1F1B with v chunks all three are (P - 1)(F + B)/v.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from types import MappingProxyType

import numpy as np

from twin.trace.passes import Floats, Passes, RankOps

WORDS: Mapping[str, str] = MappingProxyType(
    {
        "computing": "computing",
        "exposed_in_passes": "exposed in passes",
        "warm_up": "warm-up",
        "imbalance": "imbalance",
        "drain": "drain",
        "messages": "messages",
        "end_of_step": "end of step",
    }
)
"""What a reader sees of them."""


@dataclass(frozen=True)
class Bubbles:
    """Seconds of a step of one pipeline rank, or the mean of several; all together are the step."""

    computing: float
    exposed_in_passes: float
    warm_up: float
    imbalance: float
    drain: float
    messages: float
    end_of_step: float

    @property
    def step(self) -> float:
        """All of them together."""
        return sum(self.by_name().values())

    @property
    def bubble(self) -> float:
        """Time between passes in which nothing is under way."""
        return self.warm_up + self.imbalance + self.drain

    def by_name(self) -> dict[str, float]:
        """Return them by name, in order."""
        return {field.name: getattr(self, field.name) for field in fields(self)}

    @classmethod
    def mean(cls, several: Sequence[Bubbles]) -> Bubbles:
        """Return the mean of several ranks'."""
        return cls(*(float(np.mean([getattr(one, field.name) for one in several])) for field in fields(cls)))


@dataclass(frozen=True)
class StageRun:
    """What one rank of a pipeline did in a step."""

    stage: int
    """Its place in the pipeline."""
    rank: int
    passes: Passes
    bubbles: Bubbles


@dataclass(frozen=True)
class PipelineRun:
    """One step of a pipeline: a rank of each stage, from first to last."""

    stages: tuple[StageRun, ...]
    step_seconds: float

    @classmethod
    def of(cls, ranks: Sequence[tuple[int, int, RankOps]], step_seconds: float) -> PipelineRun | None:
        """Take ranks, each with its stage and number; None if none of them has a pass.

        A stage without layers has none, and only hands messages on.
        """
        ends = [float(ops.passes.end.max()) for _, _, ops in ranks if ops.names]
        if not ends:
            return None
        last = max(ends)
        return cls(
            tuple(
                StageRun(stage, rank, ops.passes, bubbles_of(ops, last=last, step=step_seconds))
                for stage, rank, ops in ranks
            ),
            step_seconds,
        )

    @property
    def mean(self) -> Bubbles:
        """The mean of all ranks."""
        return Bubbles.mean([stage.bubbles for stage in self.stages])

    @property
    def micro_batches(self) -> int:
        """Micro-batches that go through it."""
        return max(stage.passes.micro_batches for stage in self.stages)

    @property
    def chunks(self) -> int:
        """Chunks of the model on a rank."""
        return max(stage.passes.chunks for stage in self.stages)

    @property
    def boxes(self) -> int:
        """Passes of all ranks."""
        return sum(len(stage.passes) for stage in self.stages)

    def as_json(self) -> dict[str, object]:
        """Return what `fourfold simulate --json` says of it: seconds, the mean and by stage."""
        return {
            "stages": len(self.stages),
            "chunks": self.chunks,
            "micro_batches": self.micro_batches,
            "mean": self.mean.by_name(),
            "by_stage": [{"stage": s.stage, "rank": s.rank, **s.bubbles.by_name()} for s in self.stages],
        }


def bubbles_of(ops: RankOps, *, last: float, step: float) -> Bubbles:
    """Divide a rank's step; `last` is the end of the pipeline's last pass, `step` that of the step."""
    passes = ops.passes
    backward = np.flatnonzero(~passes.forward)
    first_backward = passes.start[backward[0]] if len(backward) else np.inf
    forward = passes.end[passes.forward]
    last_forward = forward.max() if len(forward) else 0.0
    reached = np.maximum.accumulate(passes.end)  # passes at once overlap
    begin = np.concatenate([[0.0], np.minimum(reached, last)])
    end = np.maximum(np.concatenate([passes.start, [last]]), begin)
    under_way = _covered(*ops.messages)
    messages = under_way(end) - under_way(begin)
    idle = end - begin - messages
    early = end <= first_backward
    late = ~early & (begin >= last_forward)
    computing = float(passes.computing.sum())
    again = np.concatenate([[0.0], reached[:-1]])[: len(passes)]
    under_way_seconds = float((reached - np.maximum(passes.start, np.minimum(again, reached))).sum())
    return Bubbles(
        computing=computing,
        exposed_in_passes=under_way_seconds - computing,
        warm_up=float(idle[early].sum()),
        imbalance=float(idle[~early & ~late].sum()),
        drain=float(idle[late].sum()),
        messages=float(messages.sum()),
        end_of_step=step - last,
    )


class _covered:  # noqa: N801 - used as a function
    """Seconds until a time in which any of some intervals is under way."""

    def __init__(self, start: Floats, end: Floats) -> None:
        order = np.argsort(start, kind="stable")
        start, reach = start[order], np.maximum.accumulate(end[order])
        begins = np.concatenate([[True], start[1:] > reach[:-1]]) if len(start) else np.zeros(0, bool)
        self._start = start[begins]
        self._end = reach[np.concatenate([begins[1:], [True]])] if len(start) else reach
        self._sum = np.concatenate([[0.0], np.cumsum(self._end - self._start)])

    def __call__(self, time: Floats) -> Floats:
        """Return them for each of some times."""
        if not len(self._start):
            return np.zeros(len(time))
        at = np.searchsorted(self._start, time, side="right")
        before = np.maximum(at - 1, 0)
        over = np.minimum(np.maximum(time - self._start[before], 0.0), (self._end - self._start)[before])
        return np.where(at > 0, self._sum[before] + over, 0.0)
