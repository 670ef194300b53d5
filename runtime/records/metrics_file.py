"""Figures of every step on disk: a line of JSON each, and TensorBoard if wanted.

Lines of steps have `step`, counted from 0; lines of evaluations have `after_steps`, how many steps
came before them; where a run went back there is a line with `from_step` and `to_step`.
"""

from __future__ import annotations

import errno
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.records.console import tell
from twin.description.problems import fail

METRICS = "metrics.jsonl"
TENSORBOARD = "tensorboard"


NO_SPACE = (errno.ENOSPC, errno.EDQUOT)
"""What a disk says that is full, or whose quota is used up: later there may be space."""


class MetricsFile:
    """`metrics.jsonl`; a run that goes on after `done` steps first cuts what it will write again.

    Lines that find no space on the disk are kept and written when there is some.
    """

    def __init__(self, folder: Path, done: int, steps: int, *, again: bool = True) -> None:
        self.path = folder / METRICS
        self._done = done
        self._again = again and (done == 0 or done >= steps)
        """True if the evaluation at this very point is made again: the first one, or the last."""
        self._pending = b""
        self._warned = False
        try:
            kept = [line for line in self._lines() if self._stays(line)]
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text("".join(kept), encoding="utf-8")
            temporary.replace(self.path)
            self._file = self.path.open("ab", buffering=0)
        except OSError as error:
            raise self._problem(error) from None

    def _problem(self, error: OSError) -> Exception:
        return fail(
            str(self.path),
            f"cannot be written: {error.strerror}; make room, and run the same "
            "command again to go on from the last checkpoint",
        )

    def _lines(self) -> list[str]:
        if not self.path.exists():
            return []
        return [
            line
            for line in self.path.read_text(encoding="utf-8", errors="replace").splitlines(keepends=True)
            if line.endswith("\n")
        ]

    def go_back(self, done: int, entry: Mapping[str, Any]) -> None:
        """Cut what will be written again, after so many steps, and say why.

        Lines are in the order of steps, so that the file is made shorter where it is: that takes no space on the disk.
        """
        self._done, self._again = done, False
        try:
            written = self.path.read_bytes()
            lines = written + self._pending  # of one line a part may be written
            whole = (line for line in lines.splitlines(keepends=True) if line.endswith(b"\n"))
            kept = b"".join(line for line in whole if self._stays(line))
            if lines.startswith(kept):
                size = min(len(kept), len(written))
                os.truncate(self._file.fileno(), size)
                self._pending = kept[size:]
            else:  # somebody has put a line of their own in
                temporary = self.path.with_suffix(".tmp")
                temporary.write_bytes(kept)
                temporary.replace(self.path)
                self._file.close()
                self._file, self._pending = self.path.open("ab", buffering=0), b""
        except OSError as error:
            raise self._problem(error) from None
        self.write(entry)

    def _stays(self, line: str | bytes) -> bool:
        try:
            figures = json.loads(line)
            if "to_step" in figures:
                return bool(figures["to_step"] <= self._done)
            if "after_steps" in figures:
                return bool(figures["after_steps"] + self._again <= self._done)
            return bool(figures["step"] < self._done and math.isfinite(figures["loss"]))
        except (ValueError, TypeError, KeyError):
            return False  # no line of ours

    def losses(self, most: int) -> list[tuple[int, float]]:
        """Return (step, loss in nats) of the last steps written."""
        lines = [json.loads(line) for line in self._lines()]
        return [(line["step"], line["loss"]) for line in lines if "step" in line][-most:]

    def write(self, figures: Mapping[str, Any]) -> None:
        """Append one line."""
        self._pending += json.dumps(figures, allow_nan=False).encode() + b"\n"
        try:
            self._flush()
        except OSError as error:
            if error.errno not in NO_SPACE:
                raise self._problem(error) from None
            if not self._warned:
                tell(f"fourfold: {self.path}: {error.strerror}; lines are kept until there is space", error=True)
            self._warned = True

    def _flush(self) -> None:
        while self._pending:
            self._pending = self._pending[self._file.write(self._pending) :]
        self._warned = False

    def close(self) -> None:
        """Write everything to disk."""
        try:
            self._flush()
            os.fsync(self._file.fileno())
            self._file.close()
        except OSError as error:
            raise self._problem(error) from None


class TensorBoard:
    """The same figures for TensorBoard, if it is installed and wanted."""

    def __init__(self, folder: Path, done: int) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  an optional package
        except ImportError:
            raise fail(
                "train.tensorboard",
                "the package tensorboard is missing; pip install tensorboard, or set it to false",
                True,
            ) from None
        self._writer = SummaryWriter(str(folder / TENSORBOARD), purge_step=done)

    def write(self, figures: Mapping[str, Any]) -> None:
        """Add the numbers of one step."""
        at = figures.get("step", figures.get("after_steps"))
        for name, value in figures.items():
            if isinstance(value, int | float) and name not in {"step", "after_steps"}:
                self._writer.add_scalar(name, value, at)

    def close(self) -> None:
        """Write everything to disk."""
        self._writer.close()
