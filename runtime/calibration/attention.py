"""Attention, forward and backward, in each of its forms."""

from __future__ import annotations

import time
from typing import Any, Literal

import torch

from runtime.calibration.busy import busy_sets, joined
from runtime.calibration.listening import AnyListener, by_kind, hear, sample_of
from runtime.calibration.quiet import quiet_context
from runtime.calibration.sample import Sample
from runtime.calibration.team import Team
from runtime.model.attention import Attention
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
    (4, 1024, 16, 64, "flash"),
    (4, 2048, 16, 64, "flash"),
    (4, 2048, 16, 128, "flash"),
    (1, 8192, 16, 128, "flash"),
    (8, 2048, 8, 128, "flash"),
    (4, 1024, 16, 64, "plain"),
)
MIN_REPEATS = 5


def measure_attention(team: Team, seconds: float) -> list[dict[str, Any]]:
    """Time attention on one rank and on all; entries on rank 0, forward and backward apart."""
    shapes = SHAPES if team.device.type == "cpu" else (*SHAPES[-1:], *WIDE_SHAPES)
    each = seconds / (len(shapes) * len(busy_sets(team)))
    entries = []
    for sequences, length, heads, size, form in shapes:
        for busy in busy_sets(team):
            layer = TimedAttention(team.device, sequences, length, heads, size, form)
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
                            "backward": phase == "bwd",
                            "busy": len(busy),
                            "seconds": sample.seconds,
                            "spread": sample.spread,
                            "repeats": sample.repeats,
                        }
                    )
    return entries


class TimedAttention:
    """One attention layer with something to attend to."""

    def __init__(self, device: torch.device, sequences: int, length: int, heads: int, size: int, form: Form) -> None:
        model = {"layers": 1, "hidden": heads * size, "heads": heads, "sequence": length, "vocabulary": 64}
        context = quiet_context(model, Grid(), device, sequences=sequences, attention=form)
        self.context, self.sequences = context, sequences
        self.layer = Attention(context, Place("attention"))
        rows, width = sequences * length, heads * size
        self.packed = torch.randn(rows, 3 * width, device=device, dtype=context.compute_type)
        self.packed.requires_grad_(True)
        self.gradient = torch.randn(rows, width, device=device, dtype=context.compute_type)

    def _once(self, listener: AnyListener) -> None:
        self.context.ops.listener = listener
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
