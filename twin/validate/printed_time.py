"""The measured time of a published run: printed, or from the throughput that its source prints.

A printed TFLOP/s per GPU becomes a time by the formula of FLOPs that the source itself used, never by ours.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

TIMES = ("iteration_s", "tokens_per_s_per_gpu", "samples_per_gpu_s", "tflops_per_gpu")
"""What a row may be measured in, the most direct first."""


@dataclass(frozen=True)
class Printed:
    """What the formulas of published FLOPs are made of."""

    layers: int
    hidden: int
    sequence: int
    vocabulary: int
    sequences: int
    recomputed: bool
    kv_share: float = 1.0
    """Heads of keys over heads of queries."""
    mlp_width: int = 0
    """Width inside the MLP; 0: four times hidden."""
    gated: bool = False
    """Whether the MLP has a gate."""

    @property
    def tokens(self) -> float:
        """Of all sequences."""
        return float(self.sequences) * self.sequence

    @property
    def dense(self) -> float:
        """B·s·L·h²."""
        return float(self.sequences) * self.sequence * self.layers * self.hidden**2

    def with_parts(self, attention: float, head: float) -> float:
        """Return 1 + s/(attention·h) + V/(head·L·h)."""
        attended = self.sequence / (attention * self.hidden)
        return 1 + attended + self.vocabulary / (head * self.layers * self.hidden)


def _model(run: Printed) -> float:
    return 72 * run.dense * run.with_parts(6, 12)


def _hardware(run: Printed) -> float:
    return (96 if run.recomputed else 72) * run.dense * run.with_parts(6, 16)


def _nemo(run: Printed, attended: float = 1.0) -> float:
    """NeMo's and DGX Cloud's: attention not halved for causality, grouped heads counted in Llama's form."""
    layers, h, s = run.layers, run.hidden, run.sequence
    head = 6.0 * run.vocabulary * h
    if not run.gated:
        return run.tokens * (24.0 * layers * h**2 + 12.0 * layers * h * s + 48.0 * layers * h**2 + head)
    projections = 12.0 * layers * h**2 * (1 + run.kv_share + attended * s / h)
    return run.tokens * (projections + 18.0 * layers * (run.mlp_width or 4 * h) * h + head)


FORMULAS: dict[str, Callable[[Printed], float]] = {
    "sc21_eq3": lambda run: 96 * run.dense * run.with_parts(6, 16),
    "kor22_model": _model,
    "deepspeed_megatron_hardware": _hardware,
    "gpt_neox_printed": _hardware,
    "nemo_dgxc": _nemo,
    "mbridge_causal": lambda run: _nemo(run, 0.5),
}
"""Formula of a row (its first word) → FLOPs of one iteration of all devices."""


def printed_time(row: Mapping[str, Any], run: Printed, ranks: int) -> tuple[float, str] | None:
    """Return the seconds of one iteration and the key they come from; None if the row has no time."""
    if "use iteration_s_min" in str(row.get("note", "")) and "iteration_s_min" in row:
        return float(row["iteration_s_min"]), "iteration_s_min, as the row's note asks: others were on the machine"
    if "iteration_s" in row:
        derived = ", derived by the source's table" if row.get("iteration_s_derived") else ""
        return float(row["iteration_s"]), f"iteration_s{derived}"
    if "tokens_per_s_per_gpu" in row:
        return run.sequences * run.sequence / (row["tokens_per_s_per_gpu"] * ranks), "tokens_per_s_per_gpu"
    if "samples_per_gpu_s" in row:
        return run.sequences / (row["samples_per_gpu_s"] * ranks), "samples_per_gpu_s"
    formula = FORMULAS.get(str(row.get("flop_formula", "")).partition(" ")[0])
    if "tflops_per_gpu" in row and formula is not None:
        return formula(run) / (row["tflops_per_gpu"] * 1e12 * ranks), "tflops_per_gpu"
    return None
