"""A pipeline on a terminal: a line a stage, where there are few, and its bubbles by name."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
from rich.text import Text

from twin.trace.bubbles import WORDS

if TYPE_CHECKING:
    from rich.console import Console

    from twin.trace.bubbles import PipelineRun, StageRun

MAX_STAGES = 16
"""More lines than this push the figures of the step off the screen."""
STYLES = {"F": "white on blue", "B": "black on yellow", "I": "black on red", "W": "black on green"}
IDLE = "·"


def pipeline(console: Console, run: PipelineRun) -> None:
    """Print a picture of a pipeline that is small enough for one, and the shares of its bubbles."""
    count = run.micro_batches
    console.print(
        f"\nPipeline of {len(run.stages)} stages"
        + (f" with {run.chunks} chunks each" if run.chunks > 1 else "")
        + f", {count} micro-batch{'es' if count > 1 else ''}; where the time of a rank of each goes, mean over stages:"
    )
    mean, whole = run.mean, run.step_seconds

    def said(*names: str) -> str:
        return ", ".join(f"{WORDS[name]} {100 * mean.by_name()[name] / whole:.1f} %" for name in names)

    console.print("  " + said("computing", "exposed_in_passes", "messages", "end_of_step"))
    console.print(f"  bubble {100 * mean.bubble / whole:.1f} %: " + said("warm_up", "imbalance", "drain"))
    labels = [f"  stage {stage.stage} " for stage in run.stages]
    column = max(map(len, labels))
    lines = [
        lane(stage, run.step_seconds, console.width - column - 1) if len(run.stages) <= MAX_STAGES else None
        for stage in run.stages
    ]
    if None in lines:
        console.print("  (too many passes for a picture here; --out DIR draws them in timeline.html)")
        return
    for label, line in zip(labels, lines, strict=True):
        console.print(Text(label.ljust(column)).append_text(line or Text()), no_wrap=True)


def lane(stage: StageRun, seconds: float, width: int) -> Text | None:
    """Draw the passes of a stage: each character is the pass that takes most of its time, or idle.

    A pass is written as the number of its micro-batch, if there is room, and the letter of its kind. None if some
    pass would not be seen.
    """
    passes = stage.passes
    if len(passes) > width:
        return None
    edges = np.linspace(0.0, seconds, width + 1)
    share = np.zeros((len(passes) + 1, width))
    for number in range(len(passes)):
        overlap = np.minimum(edges[1:], passes.end[number]) - np.maximum(edges[:-1], passes.start[number])
        share[number] = np.maximum(overlap, 0.0)
    share[-1] = np.diff(edges) - share.sum(axis=0)
    most = share.argmax(axis=0)
    if len(np.union1d(most, [len(passes)])) <= len(passes):
        return None
    drawn = Text()
    for cells in np.split(most, np.flatnonzero(np.diff(most)) + 1):
        number = int(cells[0])
        if number == len(passes):
            drawn.append(IDLE * len(cells), "dim")
            continue
        kind, micro = passes.kind[number], str(passes.micro[number])
        word = micro if len(micro) < len(cells) else ""
        drawn.append(word + kind * (len(cells) - len(word)), STYLES[kind])
    return drawn
