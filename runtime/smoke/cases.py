"""What is tried: a small model of the job's family, as the job is and with one thing changed at a time."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from twin.description.job import DEFAULT_STRATEGY, Job
from twin.description.model import Model
from twin.description.problems import DescriptionError
from twin.strategies import load_job

MAX_SEQUENCE, MAX_VOCABULARY, MAX_HEAD = 512, 8192, 128
HEADS = 4
MICRO_SEQUENCES, MICRO_STEPS = 2, 2


@dataclass(frozen=True)
class Case:
    """One path: what it is called, and what it changes in the job."""

    name: str
    changes: dict[str, Any] = field(default_factory=dict)


CASES = (
    Case("as the job is"),
    Case("fp32", {"precision": "fp32"}),
    Case("bf16", {"precision": "bf16"}),
    Case("nothing recomputed", {"recompute": False}),
    Case("everything recomputed", {"recompute": True}),
    Case("products kept", {"recompute": True, "recompute_keeps": "products"}),
    Case("attention kept", {"recompute": True, "recompute_keeps": "attention", "attention": "flash"}),
    Case("fused attention", {"attention": "flash"}),
    Case("plain attention, dropout", {"attention": "plain", "dropout": 0.1}),
    Case("documents apart", {"document_mask": True}),
    Case("fused element-wise work", {"fused_elementwise": True}),
    Case("loss by tokens", {"loss_rows": 256}),
    Case("adapters", {"lora": {}}),
    Case(
        "rotary, RMS norm, SwiGLU",
        {"model": {"positions": "rotary", "norm": "rms", "activation": "swiglu", "biases": False}},
    ),
)


def small(model: Model) -> dict[str, Any]:
    """Describe a model of the same family that any device holds: two blocks of four heads."""
    size = min(model.head_size, MAX_HEAD) // 8 * 8 or 8
    shared = HEADS if model.key_value_heads == model.heads else HEADS // 2
    kept = ("activation", "norm", "norm_epsilon", "qk_norm", "residual", "positions", "biases", "tied_embeddings")
    return {
        **{key: getattr(model, key) for key in kept},
        "layers": 2,
        "hidden": HEADS * size,
        "heads": HEADS,
        "kv_heads": shared,
        "sequence": min(model.sequence, MAX_SEQUENCE),
        "vocabulary": min(model.vocabulary, MAX_VOCABULARY),
    }


def described(case: Case, job: Job) -> Job | str:
    """Return the job of a case on one rank of the job's machine; or why there is none such."""
    changes = dict(case.changes)
    model = {**small(job.model), **changes.pop("model", {})}
    raw = {
        "name": "smoke",
        "model": model,
        "machine": job.machine.model_dump(mode="json", by_alias=True),
        "ranks": 1,
        "strategy": DEFAULT_STRATEGY,
        "grid": {"data": 1},
        "batch": {"sequences": MICRO_SEQUENCES * MICRO_STEPS, "micro_sequences": MICRO_SEQUENCES},
        "precision": job.precision if job.precision in ("bf16", "fp32") else "bf16",
        "recompute": job.recompute,
        "attention": job.attention if job.attention in ("flash", "plain") else "flash",
        "dropout": 0.0,
        "fused_elementwise": job.fused_elementwise,
        **changes,
    }
    try:
        return load_job(raw)
    except DescriptionError as error:
        return "; ".join(map(str, error.problems))
