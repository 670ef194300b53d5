"""Jobs whose recorded and generated schedules must be equal: every option, every pattern of axes."""

from __future__ import annotations

from itertools import product
from typing import Any

from twin.description.job import Job
from twin.strategies import load_job

MODEL = {"layers": 2, "hidden": 48, "heads": 12, "sequence": 16, "vocabulary": 96}
# no weight divides by a z of 7, and the vocabulary by nothing
ODD = {"layers": 3, "hidden": 36, "heads": 6, "sequence": 10, "vocabulary": 101, "mlp_width": 66}
WIDE = {"layers": 1, "hidden": 256, "heads": 32, "sequence": 8, "vocabulary": 500}
ALL = {"data": 2, "z": 2, "y": 2, "x": 2}
EVEN = {"data": 3, "z": 4, "y": 2, "x": 3}
IN_FP32 = {"gathers": "fp32", "scatters": "fp32"}
SMALL_BUCKETS = {"mode": "overlapped", "bucket": "1 KiB"}
AHEAD = {"mode": "sharded_overlapped", "bucket": "1 KiB"}


def job(grid: dict[str, int], *, per_rank: int = 2, micro: int = 1, **options: Any) -> Job:
    """Describe a job; each (data, z) coordinate trains on `per_rank` sequences, `micro` at once."""
    sizes = {"data": 1, "z": 1, "y": 1, "x": 1, **grid}
    replicas = sizes["data"] * sizes["z"]
    return load_job(
        {
            "model": MODEL,
            "machine": "frontier",
            "ranks": replicas * sizes["y"] * sizes["x"],
            "grid": sizes,
            "batch": {"sequences": replicas * per_rank, "micro_sequences": micro},
            **options,
        }
    )


def patterns() -> dict[str, Job]:
    """Every choice of axes of one rank and of several, with different options by turns."""
    found = {}
    for index, several in enumerate(product((False, True), repeat=4)):
        grid = {axis: size for axis, size, on in zip(("data", "z", "y", "x"), (2, 3, 2, 2), several, strict=True) if on}
        name = "axes " + (" ".join(grid) or "none")
        found[name] = job(
            grid, recompute=index % 2 == 0, precision=("bf16", "fp32")[index // 2 % 2], per_rank=1 + index % 3
        )
    return found


def options() -> dict[str, Job]:
    """Every option in each of its values, on a grid that is large in all axes."""
    cases: dict[str, dict[str, Any]] = {
        "no recomputation": {"recompute": False},
        "no overlap": {"overlap": {"all_reduce": False, "reduce_scatter": False, "all_gather": False}},
        "no OAR": {"overlap": {"all_reduce": False}, "recompute": False},
        "no ORS": {"overlap": {"reduce_scatter": False}},
        "no OAG": {"overlap": {"all_gather": False}, "recompute": False},
        "prefetch 2": {"overlap": {"prefetch_depth": 2}},
        "prefetch 5, not recomputed": {"overlap": {"prefetch_depth": 5}, "recompute": False},
        "one in flight": {"overlap": {"scatters_in_flight": 1}},
        "three in flight, buckets": {"overlap": {"scatters_in_flight": 3}, "data_reduction": SMALL_BUCKETS},
        "all in flight": {"overlap": {"scatters_in_flight": 99}, "per_rank": 3},
        "cached 1": {"cache_gathered_layers": 1},
        "cached 1, not recomputed": {"cache_gathered_layers": 1, "recompute": False},
        "cached all": {"cache_gathered_layers": 2},
        "cached all, blocks": {"cache_gathered_layers": 2, "gather_unit": "block", "recompute": False},
        "blocks": {"gather_unit": "block"},
        "blocks, not recomputed": {"gather_unit": "block", "recompute": False, "precision": "fp32"},
        "blocks, ahead 2": {"gather_unit": "block", "overlap": {"prefetch_depth": 2}},
        "blocks, no OAG": {"gather_unit": "block", "overlap": {"all_gather": False}},
        "buckets of everything": {"data_reduction": {"mode": "overlapped"}},
        "buckets": {"data_reduction": SMALL_BUCKETS, "per_rank": 3},
        "buckets, blocks": {"data_reduction": SMALL_BUCKETS, "gather_unit": "block", "recompute": False},
        "buckets, no ORS": {"data_reduction": SMALL_BUCKETS, "overlap": {"reduce_scatter": False}},
        "sharded": {"data_reduction": {"mode": "sharded"}},
        "sharded fp32, no clipping": {
            "data_reduction": {"mode": "sharded"},
            "precision": "fp32",
            "clip_gradients": False,
        },
        "no clipping": {"clip_gradients": False},
        "plain attention": {"attention": "plain", "precision": "fp32"},
        "fused softmax, dropout": {"attention": "fused_softmax", "dropout": 0.1},
        "dropout": {"dropout": 0.1, "recompute": False},
        "dropout, fused": {"dropout": 0.1, "fused_elementwise": True},
        "fused": {"fused_elementwise": True, "recompute": False},
        "fused swiglu": {"fused_elementwise": True, "model": {**MODEL, "activation": "swiglu"}},
        "fused rotary": {"fused_elementwise": True, "model": {**MODEL, "positions": "rotary"}},
        "no biases": {"model": {**MODEL, "biases": False}},
        "llama": {"model": {**MODEL, "biases": False, "activation": "swiglu", "positions": "rotary", "mlp_width": 84}},
        "rotary": {"model": {**MODEL, "positions": "rotary"}, "precision": "fp32", "per_rank": 3},
        "one layer": {"model": {**MODEL, "layers": 1}, "cache_gathered_layers": 1},
        "micro-steps of two": {"per_rank": 6, "micro": 2},
        "five micro-steps": {"per_rank": 5, "data_reduction": SMALL_BUCKETS},
        "tuning off": {"kernel_tuning": False},
        "wide gathers": {"communication_precision": {"gathers": "fp32"}, "cache_gathered_layers": 1},
        "wide scatters": {"communication_precision": {"scatters": "fp32"}, "recompute": False},
        "wide, blocks": {"communication_precision": IN_FP32, "gather_unit": "block", "data_reduction": SMALL_BUCKETS},
        "documents": {"document_mask": True, "per_rank": 3},
        "documents, llama, plain attention": {
            "document_mask": True,
            "model": {**MODEL, "biases": False, "activation": "swiglu", "positions": "rotary", "kv_heads": 6},
            "attention": "plain",
            "precision": "fp32",
            "recompute": False,
        },
        "wide in fp32": {"communication_precision": IN_FP32, "precision": "fp32"},
    }
    return {name: job(ALL, **case) for name, case in cases.items()}


def uneven() -> dict[str, Job]:
    """What does not divide is padded, on every rank to the same size."""
    return {
        "odd": job({"data": 3, "z": 7, "y": 3, "x": 2}, model=ODD),
        "odd, sharded": job({"data": 5, "z": 7, "y": 2, "x": 3}, model=ODD, data_reduction={"mode": "sharded"}),
        "odd, sharded, overlapped": job({"data": 5, "z": 7, "y": 2, "x": 3}, model=ODD, data_reduction=AHEAD),
        "odd, blocks": job({"data": 2, "z": 7, "y": 6}, model=ODD, gather_unit="block", data_reduction=SMALL_BUCKETS),
        "odd, one z": job({"y": 3, "x": 3}, model=ODD, recompute=False),
        "more y than words": job({"y": 32}, model={**WIDE, "vocabulary": 5}),
    }


def large() -> dict[str, Job]:
    """Up to 32,768 ranks."""
    return {
        "4,096": job({"data": 16, "z": 64, "x": 4}, model=WIDE, per_rank=1),
        "32,768": job({"data": 64, "z": 16, "y": 4, "x": 8}, model=WIDE, per_rank=1),
        "32,768 replicas": job({"data": 32_768}, model=WIDE, per_rank=1, data_reduction={"mode": "sharded"}),
        "32,768 over z": job({"z": 32_768}, model=WIDE, per_rank=1, data_reduction=SMALL_BUCKETS),
    }


def beyond() -> dict[str, Job]:
    """What goes beyond the published algorithm."""
    halves, across, both = {"halves": True}, {"across_blocks": True}, {"attention": True, "mlp": True}
    llama = {**MODEL, "biases": False, "activation": "swiglu", "positions": "rotary", "norm": "rms", "qk_norm": True}
    products = {"recompute": True, "recompute_keeps": "products"}
    attention = {"recompute": True, "recompute_keeps": "attention", "attention": "flash"}
    early = {"recompute": True, "recompute_stops_early": True}
    cases: dict[str, dict[str, Any]] = {
        "halves": {"overlap": halves},
        "halves, not recomputed": {"overlap": halves, "recompute": False, "per_rank": 6},
        "halves in fp32": {"overlap": halves, "precision": "fp32", "fused_elementwise": True},
        "halves, across blocks": {"overlap": {**halves, **across, "prefetch_depth": 3}},
        "halves, some recomputed": {"overlap": {**halves, **across}, "recompute_layers": 1, "cache_gathered_layers": 1},
        "halves, nothing overlaps": {
            "overlap": {**halves, "all_reduce": False, "reduce_scatter": False, "all_gather": False}
        },
        "halves, blocks, buckets": {"overlap": halves, "gather_unit": "block", "data_reduction": SMALL_BUCKETS},
        "halves, llama": {"overlap": halves, "model": llama, "data_reduction": {"mode": "sharded"}},
        "halves, parallel": {"overlap": halves, "model": {**llama, "residual": "parallel"}, "recompute": False},
        "halves, dropout": {"overlap": halves, "dropout": 0.1, "attention": "plain"},
        "halves, documents": {"overlap": halves, "document_mask": True, "model": {**llama, "qk_norm": False}},
        "halves, wide": {"overlap": halves, "communication_precision": IN_FP32},
        "halves, tied": {"overlap": halves, "model": {**MODEL, "tied_embeddings": True}},
        "stops early": early,
        "stops early, halves": {**early, "overlap": {**halves, **across}},
        "stops early, llama": {**early, "model": llama, "gather_unit": "block", "fused_elementwise": True},
        "stops early, divided": {**early, "divide": both, "recompute_layers": 1},
        "stops early, dropout": {**early, "dropout": 0.1, "attention": "plain"},
        "stops early, flat": {**early, "tensor": "1d", "model": {**llama, "qk_norm": False}},
        "attention kept": attention,
        "attention kept, halves": {**attention, "overlap": {**halves, **across}},
        "attention kept, llama": {**attention, "model": llama, "gather_unit": "block", "fused_elementwise": True},
        "attention kept, divided": {**attention, "divide": both, "recompute_layers": 1},
        "attention kept, dropout": {**attention, "dropout": 0.1},
        "attention kept, flat": {**attention, "tensor": "1d", "model": {**llama, "qk_norm": False}},
        "sharded, overlapped": {"data_reduction": AHEAD, "per_rank": 6},
        "sharded, overlapped, whole": {"data_reduction": {"mode": "sharded_overlapped"}, "gather_unit": "block"},
        "sharded, overlapped, no OAG": {"data_reduction": AHEAD, "overlap": {"all_gather": False}, "recompute": False},
        "sharded, overlapped, ahead 5": {
            "data_reduction": AHEAD,
            "overlap": {"prefetch_depth": 5},
            "precision": "fp32",
        },
        "sharded, overlapped, tied": {"data_reduction": AHEAD, "model": {**MODEL, "tied_embeddings": True}},
        "sharded, overlapped, halves": {"data_reduction": AHEAD, "overlap": {**halves, **across}},
        "sharded, overlapped, halves, tied": {
            "data_reduction": AHEAD,
            "overlap": halves,
            "model": {**llama, "tied_embeddings": True},
        },
        "divided": {"divide": both},
        "divided, not recomputed": {"divide": both, "recompute": False, "dropout": 0.1, "fused_elementwise": True},
        "attention by heads": {"divide": {"attention": True}, "micro": 1},
        "attention by heads, llama": {"divide": both, "micro": 1, "model": {**llama, "qk_norm": False}},
        "divided, nothing overlaps": {"divide": both, "overlap": {"all_reduce": False}, "precision": "fp32"},
        "divided, dropped scores": {"divide": both, "attention": "plain", "dropout": 0.1, "recompute": False},
        "divided, documents": {"divide": both, "document_mask": True, "model": {**llama, "qk_norm": False}},
        "divided, parallel": {"divide": both, "model": {**llama, "qk_norm": False, "residual": "parallel"}},
        "divided halves": {"divide": both, "overlap": halves, "micro": 4, "per_rank": 8},
        "divided halves, heads": {"divide": both, "overlap": halves, "recompute": False},
        "divided halves, nothing overlaps": {"divide": both, "overlap": {**halves, "all_reduce": False}},
        "flat": {"tensor": "1d"},
        "flat, not recomputed": {"tensor": "1d", "recompute": False, "dropout": 0.1, "fused_elementwise": True},
        "flat, llama": {"tensor": "1d", "model": {**llama, "qk_norm": False}, "gather_unit": "block"},
        "flat, nothing overlaps": {"tensor": "1d", "overlap": {"all_reduce": False}, "precision": "fp32"},
        "flat, dropped scores": {"tensor": "1d", "attention": "plain", "dropout": 0.1, "recompute": False},
        "flat, documents": {"tensor": "1d", "document_mask": True, "model": {**llama, "qk_norm": False}},
        "flat, parallel": {"tensor": "1d", "model": {**llama, "qk_norm": False, "residual": "parallel"}},
        "flat halves": {"tensor": "1d", "overlap": {**halves, **across}, "recompute_layers": 1},
        "flat halves, nothing overlaps": {"tensor": "1d", "overlap": {**halves, "all_reduce": False}},
        "loss by tokens": {"loss_rows": 5},
        "loss by tokens, halves, fp32": {"loss_rows": 7, "overlap": halves, "precision": "fp32"},
        "products kept": products,
        "products kept, dropout, fp32": {**products, "dropout": 0.1, "attention": "plain", "precision": "fp32"},
        "products kept of some, llama": {**products, "recompute_layers": 1, "model": llama, "gather_unit": "block"},
        "products kept, fused, nothing overlaps": {
            **products,
            "fused_elementwise": True,
            "overlap": {"all_reduce": False, "all_gather": False},
        },
        "products kept, divided": {**products, "divide": both},
        "products kept, flat": {**products, "tensor": "1d"},
        "products kept, halves": {**products, "overlap": {**halves, **across}, "cache_gathered_layers": 1},
        "products kept, divided halves": {**products, "overlap": halves, "divide": both, "micro": 4, "per_rank": 8},
        "products kept, flat halves": {**products, "overlap": halves, "tensor": "1d"},
        "across blocks": {"overlap": across},
        "across blocks, not recomputed": {"overlap": across, "recompute": False, "gather_unit": "block"},
        "across blocks, some recomputed": {"overlap": across, "recompute_layers": 1},
        "across blocks, cached": {"overlap": across, "cache_gathered_layers": 1, "recompute": False},
        "across blocks, nothing overlaps": {"overlap": {**across, "all_gather": False}},
        "some recomputed": {"recompute_layers": 1, "dropout": 0.1},
    }
    found = {name: job(ALL, **{"micro": 2, "per_rank": 4, **case}) for name, case in cases.items()}
    for name, grid in (("x", {"x": 4}), ("y", {"y": 4}), ("z y", {"z": 3, "y": 2}), ("data x", {"data": 2, "x": 3})):
        found[f"halves over {name}"] = job(grid, overlap=halves, micro=2, recompute=name != "x")
    found["flat over x"] = job({"x": 4}, tensor="1d")
    found["divided over x"] = job({"x": 4}, divide=both, micro=4, per_rank=8)
    grid = {"data": 16, "z": 16, "y": 4, "x": 2}
    found["halves over z y, across blocks"] = job(
        {"z": 2, "y": 2}, overlap={**halves, **across}, recompute=False, micro=2
    )
    found["halves, 2,048"] = job(grid, overlap=halves, micro=2, model=WIDE)
    return found


JOBS = {**patterns(), **options(), **beyond(), **uneven(), **large()}


def some_ranks(job: Job) -> list[int]:
    """The first, one in the middle, and the last, which often holds padding."""
    return sorted({0, job.ranks * 5 // 8, job.ranks - 1})
