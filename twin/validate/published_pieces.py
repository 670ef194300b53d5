"""Published figures that are no iteration's time: what a layer takes, what a rank holds.

* `kind: per_layer_time`: milliseconds of one block forward and backward, in the middle of a step.
* `kind: activation_memory`: what a block keeps under options, in per cent of tensor parallelism alone.
* peak memory of a run, of its fullest rank or of each stage.
* what a profiler saw of a block in the middle of a pipeline: forward, backward, and one of its all-reduces.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from twin.description.job import Job
from twin.description.problems import DescriptionError
from twin.engine.simulate import simulate
from twin.engine.simulation import Simulation
from twin.strategies import load_job, strategy_of
from twin.validate.groups import Piece, is_measure
from twin.validate.published_job import job_keys, refusal
from twin.validate.published_run import Row, Run

GB, GIB, MIB = 1e9, 2.0**30, 2.0**20
LAYERS = 3
"""Blocks of a job that tells one block's time: it has neighbours on both sides."""
PER_LAYER, ACTIVATIONS, PEAK, PROFILED = "per_layer_time", "activation_memory", "peak memory", "profiled block"
WAYS = ("forward", "backward")
PROFILE = "profiled_first_middle_last_stage"
ENCODER, REDUCED = {"forward": "encoder_fwd_ms", "backward": "encoder_bwd_ms"}, "mp_allreduce_ms"
STAGES, MIDDLE = 3, 1
"""Of the first, the middle and the last stage that a profile tells of."""
OPTIONS: dict[str, dict[str, Any]] = {
    "sp": {"sequence_parallel": True},
    "selective": {"recompute": "selective"},
    "selective_sp": {"sequence_parallel": True, "recompute": "selective"},
    "full": {"recompute": "full"},
}


def compare_pieces(rows: Sequence[tuple[Row, Row]]) -> tuple[list[Piece], dict[str, int]]:
    """Compare all such figures of rows, each given with its model; of iterations those that a job was found for.

    Returns them, and how many rows are left out for which reason.
    """
    found: list[Piece] = []
    left_out: dict[str, int] = {}
    for row, model in rows:
        run = Run(row, model)
        if not is_piece(row) and (not (_measured_memory(row) or PROFILE in row) or refusal(run) is not None):
            continue
        try:
            if is_piece(row):
                found += pieces(row, model)
            else:
                found += [*peak_memory(row, load_job(job_keys(run))), *profiled(row, model)]
        except DescriptionError as error:
            reason = str(error.problems[0])
            left_out[reason] = left_out.get(reason, 0) + 1
    return found, left_out


def piece_problems(row: Row) -> Iterator[tuple[str, str]]:
    """Yield the keys of a row of such a kind that are missing or no numbers, each with what it must be."""
    if is_piece(row) and not (isinstance(row.get("tp"), int) and row["tp"] > 0):
        yield "tp", "must be a whole number above 0"
    if row.get("kind") == PER_LAYER:
        for which in WAYS:
            if not is_measure(row.get(key := f"layer_{which}_ms")):
                yield key, "must be a number above 0"
    percent = row.get("percent_of_tp_baseline")
    if row.get("kind") == ACTIVATIONS and not (isinstance(percent, Mapping) and all(map(is_measure, percent.values()))):
        yield "percent_of_tp_baseline", f"must be numbers above 0 by {', '.join(OPTIONS)}"
    if PROFILE in row:
        seen = row[PROFILE]
        wanted = [*ENCODER.values(), REDUCED]
        lists = [seen.get(key) for key in wanted] if isinstance(seen, Mapping) else [None]
        if not all(isinstance(of, list) and len(of) == STAGES and all(map(is_measure, of)) for of in lists):
            yield PROFILE, f"must have {', '.join(wanted)}, each {STAGES} numbers above 0"


def is_piece(row: Row) -> bool:
    """Tell whether a row is compared here instead of as an iteration."""
    return row.get("kind") in (PER_LAYER, ACTIVATIONS)


def pieces(row: Row, model: Row) -> list[Piece]:
    """Compare a row of a kind of its own."""
    compare = {PER_LAYER: _layer, ACTIVATIONS: _activations}[row["kind"]]
    return [_piece(row, row["kind"], *found) for found in compare(row, model)]


def peak_memory(row: Row, job: Job) -> list[Piece]:
    """Compare the peak memory that a row gives for its run; none where it gives none."""
    given = _measured_memory(row)
    if not given:
        return []
    strategy = strategy_of(job)
    held = [float(sum(strategy.memory(job, role).values())) for role in strategy.roles(job)]
    if len(given) == 1:
        return [_piece(row, PEAK, "fullest rank, bytes", max(held), given[0])]
    if len(given) != len(held):
        return []
    return [
        _piece(row, PEAK, f"stage {stage}, bytes", found, measured)
        for stage, (found, measured) in enumerate(zip(held, given, strict=True))
    ]


def _piece(row: Row, kind: str, what: str, predicted: float, measured: float) -> Piece:
    return Piece(str(row.get("id", "")), str(row["source"]), kind, what, predicted, measured)


def _measured_memory(row: Row) -> list[float]:
    for key, unit in (("peak_memory_GB", GB), ("peak_memory_GiB", GIB)):
        if is_measure(row.get(key)):
            return [row[key] * unit]
    stages = row.get("memory_max_allocated_MB_per_stage")
    if isinstance(stages, list) and stages and all(is_measure(size) for size in stages):
        return [size * MIB for size in stages]  # Megatron prints 2^20 bytes as MB
    return []


def _job(row: Row, model: Row, layers: int, **changes: Any) -> Job:
    """Make a job of some of a row's layers, two micro-batches of its size."""
    micro = row.get("micro_batch", 1)
    whole = {"gpus": row["tp"], "micro_batch": micro, "global_batch": 2 * micro, "layers_override": layers}
    whole |= {"pp": 1, "dp": 1, "stage_layers": None}
    said = {"machine": "selene_a100_80g", "precision": "fp16", "recompute": "none", "flash_attention": False}
    return load_job(job_keys(Run({**said, **row, **whole, **changes}, model)))


def profiled(row: Row, model: Row) -> list[Piece]:
    """Compare what a profiler saw of a run's middle stage; nothing where a row has no profile."""
    seen = row.get(PROFILE)
    if not isinstance(seen, Mapping):
        return []
    simulation = simulate(_job(row, model, LAYERS))
    found = [
        _piece(row, PROFILED, f"block {which}, ms", _block_seconds(simulation, which) * 1e3, float(seen[key][MIDDLE]))
        for which, key in ENCODER.items()
    ]
    reduced = _all_reduce_seconds(simulation) * 1e3
    return [*found, _piece(row, PROFILED, "all-reduce of tensor ranks, ms", reduced, float(seen[REDUCED][MIDDLE]))]


def _layer(row: Row, model: Row) -> Iterator[tuple[str, float, float]]:
    simulation = simulate(_job(row, model, LAYERS))
    for which in WAYS:
        yield f"block {which}, ms", _block_seconds(simulation, which) * 1e3, float(row[f"layer_{which}_ms"])


def _block_seconds(simulation: Simulation, which: str) -> float:
    """Seconds of the block in the middle, forward, or backward with what is computed again."""
    spans = [span for name, *span in _spans(simulation) if name.startswith("micro1/F/") == (which == "forward")]
    return max(end for _, end in spans) - min(begin for begin, _ in spans)


def _all_reduce_seconds(simulation: Simulation) -> float:
    """Seconds of one all-reduce behind a forward product, which nothing runs beside."""
    name = "micro1/F/block1/mlp_down/all_reduce_tensor"
    return next(end - begin for found, begin, end in _spans(simulation) if found == name)


def _spans(simulation: Simulation) -> Iterator[tuple[str, float, float]]:
    """Names, begins and ends of the ops of the block in the middle, in the second micro-step."""
    (part,) = simulation.parts
    for i in range(len(part.program)):
        name = part.program.name(i)
        if name.startswith("micro1/") and "block1/" in name:
            yield name, float(part.timeline.start[0, i]), float(part.timeline.end[0, i])


def _activations(row: Row, model: Row) -> Iterator[tuple[str, float, float]]:
    alone = _kept(row, model)
    for option, percent in row["percent_of_tp_baseline"].items():
        if option in OPTIONS:
            kept = _kept(row, model, **OPTIONS[option])
            yield f"activations with {option}, per cent", 100 * kept / alone, float(percent)


def _kept(row: Row, model: Row, **changes: Any) -> float:
    """Bytes that one block more keeps."""
    return _held(_job(row, model, LAYERS + 1, **changes)) - _held(_job(row, model, LAYERS, **changes))


def _held(job: Job) -> float:
    strategy = strategy_of(job)
    (role,) = strategy.roles(job)
    memory: Mapping[str, float] = strategy.memory(job, role)
    return memory["activations"]
