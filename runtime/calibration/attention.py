"""Attention, forward and backward, in each of its forms; on GPUs by each kernel that PyTorch has."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Literal

import torch

from runtime.calibration.busy import busy_sets, joined
from runtime.calibration.listening import AnyListener, by_kind, hear, sample_of
from runtime.calibration.quiet import quiet_context
from runtime.calibration.sample import Sample
from runtime.calibration.team import Team
from runtime.model.attention import Attention
from runtime.model.attention_backend import kernel_of, named_kernels
from runtime.parallel.ops import Place
from twin.strategies.four_d.grid import Grid

Form = Literal["flash", "plain", "fused_softmax"]
SHAPES: tuple[tuple[int, int, int, int, Form], ...] = (
    (1, 64, 2, 32, "flash"),
    (4, 64, 8, 32, "flash"),
    (2, 128, 4, 32, "flash"),
    (8, 128, 4, 32, "flash"),
    (2, 128, 8, 64, "flash"),
    (4, 128, 1, 64, "flash"),
    (1, 256, 4, 64, "flash"),
    (2, 512, 4, 64, "flash"),
    (4, 64, 4, 32, "plain"),
    (4, 128, 4, 64, "plain"),
    (2, 256, 4, 64, "plain"),
    (4, 128, 4, 64, "fused_softmax"),
)
"""(sequences, length, heads, head size, form)."""
WIDE_SHAPES: tuple[tuple[int, int, int, int, Form], ...] = (
    (16, 512, 16, 64, "flash"),
    (16, 512, 16, 128, "flash"),
    (8, 1024, 16, 64, "flash"),
    (8, 1024, 16, 128, "flash"),
    (4, 2048, 16, 64, "flash"),
    (4, 2048, 16, 128, "flash"),
    (1, 2048, 8, 128, "flash"),
    (2, 4096, 16, 64, "flash"),
    (2, 4096, 16, 128, "flash"),
    (1, 16384, 16, 64, "flash"),
    (1, 16384, 16, 128, "flash"),
    (4, 1024, 16, 64, "plain"),
    (4, 2048, 8, 128, "plain"),
    (4, 2048, 8, 128, "fused_softmax"),
)
"""The same for GPUs."""
MIN_REPEATS = 5


def measure_attention(team: Team, seconds: float) -> list[dict[str, Any]]:
    """Time attention on one rank and on all; entries on rank 0, forward and backward apart."""
    cases = list(_cases(team.device))
    each = seconds / (len(cases) * len(busy_sets(team)))
    entries = []
    for (sequences, length, heads, size, form), kernel, usual in cases:
        for busy in busy_sets(team):
            layer = TimedAttention(team.device, sequences, length, heads, size, form, kernel)
            if team.rank in busy:
                layer.times(1e-3)
            team.start_together()
            mine = layer.times(each) if team.rank in busy else {}
            everyone = team.gather(mine) or []
            for phase in ("fwd", "bwd"):
                sample = joined([found[phase] for found in everyone if found])
                if sample is not None:
                    entries.append(
                        {
                            "sequences": sequences,
                            "sequence_length": length,
                            "heads": heads,
                            "head_size": size,
                            "form": form,
                            "kernel": kernel,
                            "usual": kernel == usual,
                            "backward": phase == "bwd",
                            "busy": len(busy),
                            "seconds": sample.seconds,
                            "spread": sample.spread,
                            "repeats": sample.repeats,
                        }
                    )
    return entries


def _cases(device: torch.device) -> Iterator[tuple[tuple[int, int, int, int, Form], str, str]]:
    """Shapes, each with the kernels to time one by one, and the one that PyTorch takes by itself.

    Where there is no choice they have the form's name.
    """
    for shape in SHAPES if device.type == "cpu" else WIDE_SHAPES:
        sequences, length, heads, size, form = shape
        if form != "flash" or device.type == "cpu":
            yield shape, form, form
            continue
        query = torch.empty(sequences, heads, length, size, device=device, dtype=torch.bfloat16, requires_grad=True)
        names, usual = named_kernels(query, query)
        for name in names:
            yield shape, name, usual


class TimedAttention:
    """One attention layer with something to attend to, by one of PyTorch's kernels."""

    def __init__(
        self, device: torch.device, sequences: int, length: int, heads: int, size: int, form: Form, kernel: str = ""
    ) -> None:
        model = {"layers": 1, "hidden": heads * size, "heads": heads, "sequence": length, "vocabulary": 64}
        context = quiet_context(model, Grid(), device, sequences=sequences, attention=form)
        self.context, self.sequences = context, sequences
        self.layer = Attention(context, Place("attention"))
        rows, width = sequences * length, heads * size
        self.packed = torch.randn(rows, 3 * width, device=device, dtype=context.compute_type)
        self.packed.requires_grad_(True)
        self.gradient = torch.randn(rows, width, device=device, dtype=context.compute_type)
        self.kernel = kernel

    def _once(self, listener: AnyListener) -> None:
        self.context.ops.listener = listener
        with kernel_of(self.kernel):
            torch.autograd.grad(self.layer(self.packed, self.sequences), self.packed, self.gradient)

    def times(self, seconds: float) -> dict[str, Sample]:
        """Forward and backward times of as many runs as there is time for."""
        found: dict[str, list[float]] = {}
        begin, repeats = time.perf_counter(), 0
        while repeats < MIN_REPEATS or time.perf_counter() - begin < seconds:
            for kind, times in by_kind(hear(self.packed.device, self._once, plugs=1)).items():
                if kind.shape:  # backward also packs the gradients of queries, keys and values
                    found.setdefault(kind.phase, []).extend(times)
            repeats += 1
        return {phase: sample_of(times) for phase, times in found.items()}
