"""Flops that recomputation leaves out, by the convention of published rates: attention not halved for its mask."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from twin.strategies.megatron.job import MegatronJob


def kept_flops(job: MegatronJob) -> float:
    """Return the flops of a step that all blocks' recomputation would be, and that are not done.

    Below zero without `recompute`, where scores alone are computed again.
    """
    model = job.model
    tokens = float(job.batch.sequences * model.sequence)
    queries, keys = model.qkv_parts[0], model.qkv_parts[1]
    attention = 4.0 * model.sequence * queries
    if not job.recompute:
        return -tokens * model.layers * attention if job.recomputes_scores else 0.0
    up = (2 if model.mlp_kind == "swiglu" else 1) * model.mlp_hidden  # gate and up
    down = 2.0 * model.hidden * model.mlp_hidden
    products = 2.0 * model.hidden * (2 * queries + 2 * keys + up) + down
    kept = down if job.flavour == "torch" else 0.0
    if job.recompute_keeps != "nothing":
        kept += attention
    if job.recompute_keeps == "half_products":
        kept += 2.0 * model.hidden * (queries + keys + model.mlp_hidden)
    again = model.layers
    if job.recompute_layers is not None:
        again = sum(min(len(stage), job.recompute_layers) for stage in job.layers_by_stage)
    return tokens * (again * kept + (model.layers - again) * (products + attention))
