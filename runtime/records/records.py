"""What rank 0 writes down while training: figures of every step, evaluations, where the run went back."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.records.metrics_file import MetricsFile, TensorBoard


class Records:
    """The files of a run that goes on after `done` of `steps` steps; on other ranks (not `kept`) nothing."""

    def __init__(self, folder: Path, done: int, steps: int, *, kept: bool, tensorboard: bool) -> None:
        self.folder, self.steps, self.kept, self.tensorboard = folder, steps, kept, tensorboard
        self._writers: list[MetricsFile | TensorBoard] = []
        self._metrics: MetricsFile | None = None
        if kept:
            self._open(MetricsFile(folder, done, steps), done)

    def _open(self, metrics: MetricsFile, done: int) -> None:
        self._metrics = metrics
        self._writers = [metrics]
        if self.tensorboard:
            self._writers.append(TensorBoard(self.folder, done))

    def losses(self, most: int) -> list[tuple[int, float]]:
        """Return (step, loss in nats) of the last steps that are on record here."""
        return [] if self._metrics is None else self._metrics.losses(most)

    def write(self, figures: Mapping[str, Any]) -> None:
        """Write the figures of a step or of an evaluation."""
        for writer in self._writers:
            writer.write(figures)

    def go_back(self, done: int, entry: Mapping[str, Any]) -> None:
        """Cut what will be written again, after so many steps, and say why."""
        if self._metrics is None:
            return
        for writer in self._writers:
            if writer is not self._metrics:
                writer.close()
        self._metrics.go_back(done, entry)
        self._open(self._metrics, done)

    def close(self) -> None:
        """Write everything to disk."""
        for writer in self._writers:
            writer.close()


def due(every: int, step: int) -> bool:
    """Say whether what is done `every` so many steps (0: never) is done after this many."""
    return every > 0 and step % every == 0
