"""Figures of every step: a line of JSON each, TensorBoard if wanted, and what the terminal shows."""

from __future__ import annotations

import json
import os
import resource
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from twin.description.job import Job
from twin.description.problems import fail
from twin.trace.metrics import model_flops

METRICS = "metrics.jsonl"


@dataclass(frozen=True)
class Speed:
    """How fast a step was, against what the machine's description promises."""

    tokens_per_second: float
    model_flops_per_second: float
    """Of all ranks; without recomputation."""
    utilisation: float | None
    """Of the devices' peak, None if the job's machine does not say whose peak that is."""


def speed(job: Job, step_seconds: float, *, peak_known: bool) -> Speed:
    """Turn a step's time into rates."""
    model = job.model
    flops = model_flops(
        sequences=job.batch.sequences, sequence=model.sequence, layers=model.layers,
        hidden=model.hidden, mlp_ratio=model.mlp_ratio, vocabulary=model.vocabulary,
        recompute=False, mlp_width=model.mlp_width, activation=model.activation,
    )  # fmt: skip
    rate = flops / step_seconds
    peak = peak_flops_per_second(job) * job.ranks
    return Speed(job.tokens_per_step / step_seconds, rate, rate / peak if peak_known else None)


def peak_flops_per_second(job: Job) -> float:
    """Peak of one device as the job's machine has it, in the job's precision."""
    device = job.machine.device
    peak = float(device.peak_flops_per_second)
    return peak * float(device.gemm.fp32_share) if job.precision == "fp32" else peak


def peak_memory_bytes(device: torch.device) -> int:
    """Most memory this rank ever had: of the device, or of the process on a CPU."""
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device)
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit


class MetricsFile:
    """`metrics.jsonl`: one line a step; a resumed run cuts what it is about to repeat."""

    def __init__(self, folder: Path, resume_at: int) -> None:
        self.path = folder / METRICS
        try:
            kept = [line for line in self._lines() if self._step(line) < resume_at]
            temporary = self.path.with_suffix(".tmp")
            temporary.write_text("".join(kept), encoding="utf-8")
            temporary.replace(self.path)
            self._file = self.path.open("a", encoding="utf-8")
        except OSError as error:
            raise fail(str(self.path), f"cannot be written: {error.strerror}") from None

    def _lines(self) -> list[str]:
        if not self.path.exists():
            return []
        return [line for line in self.path.read_text(encoding="utf-8").splitlines(keepends=True)
                if line.endswith("\n")]  # fmt: skip

    @staticmethod
    def _step(line: str) -> float:
        try:
            return float(json.loads(line)["step"])
        except (ValueError, TypeError, KeyError):
            return float("inf")  # no line of ours: dropped

    def write(self, figures: Mapping[str, Any]) -> None:
        """Append one line."""
        self._file.write(json.dumps(figures) + "\n")
        self._file.flush()

    def close(self) -> None:
        """Write everything to disk."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()


class TensorBoard:
    """The same figures for TensorBoard, if it is installed and wanted."""

    def __init__(self, folder: Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter  # noqa: PLC0415  an optional package
        except ImportError:
            raise fail("train.tensorboard", "the package tensorboard is missing; pip install tensorboard, "
                       "or set it to false", True) from None  # fmt: skip
        self._writer = SummaryWriter(str(folder / "tensorboard"))

    def write(self, figures: Mapping[str, Any]) -> None:
        """Add the numbers of one step."""
        for name, value in figures.items():
            if isinstance(value, int | float) and name != "step":
                self._writer.add_scalar(name, value, figures["step"])

    def close(self) -> None:
        """Write everything to disk."""
        self._writer.close()
