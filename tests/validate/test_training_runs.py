"""Published training runs in YAML: rows told as jobs, rows left out with a reason, files refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.validate.published import FSDP, GPT, LLAMA, TENSOR, job_of
from twin.cli import main
from twin.description.strict_yaml import read_yaml
from twin.engine.simulate import simulate
from twin.show.validation import LONGEST_NAME, labels, shortened
from twin.strategies import load_job
from twin.validate.iterations import Iteration
from twin.validate.measurements import validate_file
from twin.validate.printed_time import FORMULAS, Printed
from twin.validate.training_runs import published_rows, training_run, training_runs

FILE = Path(__file__).parents[3] / "shared" / "data" / "published-training.yaml"
needs_file = pytest.mark.skipif(not FILE.exists(), reason="../shared/data/published-training.yaml is not here")


def every_run() -> list[Iteration]:
    return training_runs(published_rows(read_yaml(FILE), str(FILE)))


def test_tensor_parallelism_times_data():
    """Megatron: fp16 with fused softmax, everything recomputed, gradients summed in fp16 after the backward pass."""
    job = job_of(TENSOR, GPT)
    assert job.strategy == "megatron"
    assert job.concrete_grid.by_axis() == {"pipeline": 1, "data": 2, "context": 1, "tensor": 8}
    assert (job.ranks, job.batch.sequences, job.batch.micro_sequences, job.micro_steps) == (16, 16, 4, 2)
    assert (job.precision, job.recompute, job.attention, job.dropout) == ("fp16", True, "fused_softmax", 0.1)
    assert (job.overlap_gradients, job.distributed_optimizer, job.gradient_precision) == (False, False, "compute")
    assert job.machine.name == "selene"
    model = job.model
    assert (model.layers, model.hidden, model.heads, model.sequence) == (48, 6144, 64, 2048)
    assert (model.vocabulary, model.mlp_hidden, model.positions, model.biases) == (51200, 24576, "learned", True)


def test_fsdp_wraps_blocks_and_its_time_comes_from_the_throughput():
    job = job_of(FSDP, LLAMA)
    assert (job.strategy, job.flavour) == ("fsdp", "fsdp2")
    assert job.concrete_grid.by_axis() == {"data": 1, "optimizer": 1, "gradients": 1, "weights": 64}
    assert (job.attention, job.recompute, job.dropout) == ("flash", False, 0.0)
    assert (job.model.activation, job.model.positions, job.model.biases) == ("swiglu", "rotary", False)
    assert (job.model.mlp_hidden, job.model.sequence) == (13824, 4096)
    assert training_run(FSDP, LLAMA).seconds == pytest.approx(2 * 4096 / 2162)


def test_zero_stages():
    assert job_of(TENSOR | {"zero_stage": 1}, GPT).distributed_optimizer
    assert job_of(TENSOR | {"zero_stage": 2, "global_batch": 8}, GPT).distributed_optimizer
    overlapped = job_of(TENSOR | {"zero_stage": "distributed optimizer, overlapped"}, GPT)
    assert overlapped.overlap_gradients
    assert overlapped.overlap_parameters
    third = job_of(TENSOR | {"zero_stage": 3}, GPT)
    assert third.concrete_grid.by_axis() == {"data": 1, "z": 2, "y": 8, "x": 1}
    assert third.gather_unit == "linear"
    alone = job_of(TENSOR | {"zero_stage": 3, "tp": 1, "dp": 16, "micro_batch": 1}, GPT)
    assert (alone.strategy, alone.flavour, alone.concrete_grid.weights) == ("fsdp", "deepspeed", 16)
    early = {"zero_stage": 3, "tp": 1, "dp": 16, "micro_batch": 1, "source": "arXiv 2104.04473 Table 2 (ZeRO-3)"}
    assert (alone.waits_for_gathers, job_of(TENSOR | early, GPT).waits_for_gathers) == (False, True)
    forge = {"source": "FORGE repository", "zero_stage": 1, "precision": "bf16"}
    assert job_of(TENSOR | forge, GPT).gradient_precision == "compute"  # DeepSpeed's optimizer keeps them as they come
    assert job_of(TENSOR | {"zero_stage": 1, "precision": "bf16"}, GPT).gradient_precision == "fp32"
    hybrid = job_of(FSDP | {"dp_shard": 16}, LLAMA)
    assert hybrid.concrete_grid.by_axis() == {"data": 4, "optimizer": 1, "gradients": 1, "weights": 16}


def test_pipelines_of_a_source():
    """What a row says of a pipeline, and what its time did where it says nothing."""
    piped = TENSOR | {"pp": 2, "dp": 1, "schedule": "1f1b", "micro_batch": 1}
    job = job_of(piped, GPT)
    assert (job.schedule, job.chunks, job.concrete_grid.pipeline, job.waits_for_messages) == ("1f1b", 1, 2, True)
    many = job_of(piped | {"interleave_v": 4, "schedule": "interleaved_1f1b"}, GPT)
    assert (many.schedule, many.chunks, many.waits_for_messages) == ("interleaved", 4, False)
    early = {"source": "arXiv 2205.05198 Table 5", "interleave_v": 4, "schedule": "interleaved_1f1b"}
    four = piped | early | {"pp": 4, "tp": 4}
    assert job_of(four, GPT).waits_for_messages
    assert job_of(four, GPT).splits_messages
    deepspeed = job_of(piped | {"schedule": "1f1b (DeepSpeed PipelineEngine)"}, GPT)
    assert (deepspeed.flavour, deepspeed.splits_messages) == ("deepspeed", True)
    assert job_of(piped | {"stage_layers": [30, 18]}, GPT).stage_layers == (30, 18)
    assert job_of(piped | {"layers_override": 49}, GPT).stage_layers == (25, 24)
    ends = job_of(piped | {"pp": 4, "tp": 4, "layers_override": 46}, GPT)  # 4·12 − 2
    assert ends.stage_layers == (11, 12, 12, 11)


def test_options_of_a_source():
    split = job_of(TENSOR | {"sequence_parallel": True, "tp_comm_overlap": True, "recompute": "selective"}, GPT)
    assert (split.sequence_parallel, split.tensor_overlap) == (True, True)
    assert (split.recompute, split.recompute_attention) == (False, True)
    eight = job_of(TENSOR | {"precision": "fp8 delayed", "machine": "dgx_h100", "flash_attention": True}, GPT)
    assert (eight.fp8_linears, eight.precision, eight.gradient_precision) == (True, "bf16", "fp32")
    ring = job_of(TENSOR | {"cp": 2, "dp": 1, "flash_attention": True}, GPT)
    assert (ring.concrete_grid.context, ring.context_exchange) == (2, "ring")
    relu = training_run(TENSOR, GPT | {"mlp": "squared_relu"})
    assert load_job(relu.job).model.activation == "gelu"  # type: ignore[arg-type]
    assert "squared_relu moves what gelu does" in relu.notes["assumed"]
    hopper = {"machine": "dgx_h100", "flash_attention": True}
    assert job_of(TENSOR | hopper | {"source": "NeMo docs"}, GPT).attention == "cudnn"
    assert job_of(TENSOR | hopper | {"source": "NeMo docs, long sequence (24.03.01)"}, GPT).attention == "flash2"
    assert job_of(TENSOR | hopper, GPT).attention == "flash2"
    assert job_of(TENSOR | {"flash_attention": True}, GPT).attention == "flash"


@pytest.mark.parametrize(
    ("change", "model", "reason"),
    [
        ({"kind": "ratio"}, {}, "kind ratio: not one training iteration"),
        ({"bound": "at least"}, {}, "a bound, not a measurement"),
        ({"gpus": "128-512 (linear)"}, {}, "gpus is not stated as a number"),
        ({"tp": "not stated"}, {}, "tp is not stated as a number"),
        ({"pp": 2, "dp": 1}, {}, "schedule not stated"),
        ({"pp": 2, "dp": 1, "schedule": "zb3p"}, {}, "schedule zb3p"),
        ({"zero_stage": 3, "precision": "fp8 delayed"}, {}, "fp8"),
        ({"precision": "fp8 rowwise"}, {}, "fp8 with a scale for each row: no rate of its products is known"),
        ({"zero_stage": 3, "pp": 2, "dp": 1}, {}, "FSDP or ZeRO-3 with pipeline parallelism"),
        ({"zero_stage": 3, "sequence_parallel": True}, {}, "FSDP or ZeRO-3 with sequence parallelism"),
        ({"tp": 3, "gpus": 6}, {}, "64 heads over 3 tensor ranks"),
        ({"strategy": "DistFlashAttn", "cp": 2, "dp": 1}, {}, "strategy DistFlashAttn"),
        ({"pp": 2, "dp": 1, "schedule": "1f1b", "stage_layers": "uneven"}, {}, "stages: uneven"),
        ({"dp": 4}, {}, "the degrees do not multiply to the GPUs"),
        ({}, {"mlp": "maxout"}, "MLP of maxout"),
        ({"model_changes": "mixture of depths"}, {}, "changes of the model"),
        ({"machine": "elsewhere"}, {}, "machine elsewhere is not known here"),
        ({"recompute": "selective per-op"}, {}, "recomputation: selective per-op"),
        ({"recompute": "not stated"}, {}, "recomputation is not stated"),
        ({"compile": True}, {}, "compiled, or tensor parallelism overlapped"),
        ({"flash_attention": "not stated"}, {}, "the attention kernel is not stated"),
        ({"zero_stage": 3, "micro_batch": "not stated"}, {}, "micro_batch is not stated as a number"),
        ({"zeropp": True}, {}, "ZeRO++"),
        ({"zero_stage": 2}, {}, "ZeRO-2 with several micro-steps"),
    ],
)
def test_what_cannot_be_expressed_is_left_out_with_its_reason(change, model, reason):
    assert training_run(TENSOR | change, GPT | model).job == reason


def test_sizes_may_stand_in_the_row_and_must_stand_somewhere():
    sizes = {key: GPT[key] for key in ("layers", "hidden", "heads", "seq")}
    assert job_of(TENSOR | sizes, {}).model.vocabulary == 51200
    assert training_run(TENSOR | sizes, {}).notes["assumed"] == ["vocabulary 51200"]
    assert job_of(TENSOR | {"layers_override": 6}, GPT).model.layers == 6
    assert training_run(TENSOR, {}).job == "the model's sizes are not given"


def test_a_row_without_a_time_is_left_out():
    row = {key: value for key, value in TENSOR.items() if key != "iteration_s"}
    assert training_run(row, GPT).job == "no iteration time, and no throughput that gives it"
    assert isinstance(training_run(row | {"tflops_per_gpu": 140, "flop_formula": "kor22_model"}, GPT).job, dict)


def write(folder: Path, rows: Any, models: Any = None) -> Path:
    path = folder / "runs.yaml"
    data = {"models": {"gpt": GPT, "llama": LLAMA} if models is None else models, "rows": rows}
    path.write_text(yaml.safe_dump(data))
    return path


def test_a_file_is_compared_by_source(capsys, tmp_path):
    tensor, fsdp = TENSOR | {"model": "gpt"}, FSDP | {"model": "llama"}
    predicted = simulate(job_of(TENSOR, GPT)).step_seconds
    rows = [tensor | {"iteration_s": predicted * 1.1}, fsdp, tensor | {"pp": 2, "dp": 1}, fsdp | {"kind": "memory"}]
    path = write(tmp_path, rows)
    with pytest.raises(SystemExit):
        main(["validate", "--measurements", str(path), "--json"])
    got = json.loads(capsys.readouterr().out)
    assert [g["name"] for g in got["groups"]] == ["a paper, Table 5", "notes of a repository"]
    assert got["rows"][0]["error"] == pytest.approx(1 / 1.1 - 1)
    assert (got["rows"][0]["inside"], got["rows"][0]["measured_from"]) == (True, "iteration_s")
    assert got["rows"][1]["assumed"] == ["eight HDR NICs a node"]
    assert sum(got["skipped"].values()) == 2
    with pytest.raises(SystemExit):
        main(["validate", "--measurements", str(path)])
    out = capsys.readouterr().out
    assert "schedule not stated" in out
    assert "a paper, Table 5" in out


def test_long_sources_are_shortened_for_people():
    assert shortened("x" * LONGEST_NAME) == "x" * LONGEST_NAME
    short = shortened("a repository, " + "x" * 100 + ", table 7")
    assert short.startswith("a repository")
    assert short.endswith("table 7")
    assert len(short) <= LONGEST_NAME + 3


def test_sources_that_would_look_alike_are_told_apart():
    """Three releases of one repository had the same name in the table."""
    releases = [
        f"a repository of benchmarks, release v{n}, README of the recipe; flags from its config" for n in range(3)
    ]
    runs = [
        f"another repository (arXiv 2509.22832), machine/model/12732{n} and statistics of batches" for n in range(3)
    ]
    shown = labels([*releases, "a paper", *runs, releases[0]])
    assert len(set(shown)) == 7
    assert shown[0] == shown[-1]
    assert [name.split(" … ")[1][:3] for name in shown[:3]] == ["v0,", "v1,", "v2,"]
    assert all("12732" in name for name in shown[4:7])


BAD: dict[str, tuple[Any, str]] = {
    "no source": ([{key: v for key, v in TENSOR.items() if key != "source"}], "rows.0 (tensor).source"),
    "text for a time": ([TENSOR | {"iteration_s": "fast"}], "rows.0 (tensor).iteration_s"),
    "no time at all": ([TENSOR | {"iteration_s": 0}], "rows.0 (tensor).iteration_s"),
    "truth for a time": ([TENSOR | {"tflops_per_gpu": True}], "rows.0 (tensor).tflops_per_gpu"),
    "text for a size": ([TENSOR | {"layers": "48"}], "rows.0 (tensor).layers"),
    "negative degree": ([TENSOR, TENSOR | {"tp": -8}], "rows.1 (tensor).tp"),
    "half a GPU": ([TENSOR | {"gpus": 0.5}], "rows.0 (tensor).gpus"),
    "unknown model": ([TENSOR | {"model": "gtp"}], "did you mean 'gpt'"),
    "model in a row": ([TENSOR | {"model": dict(GPT)}], "rows.0 (tensor).model"),
    "no run": (["fast"], "rows.0"),
    "no runs": ([], "rows"),
    "rows of another kind": ({"a": 1}, "rows"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_file_is_refused_with_row_and_key(capsys, tmp_path, name):
    rows, words = BAD[name]
    with pytest.raises(SystemExit) as ended:
        main(["validate", "--measurements", str(write(tmp_path, rows))])
    out, err = capsys.readouterr()
    assert (ended.value.code, out) == (2, "")
    assert words in err
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("models: {}\nrows: []\nrows: []\n", "given twice"),
        ("rows: [{source: a, source: b}]\n", "given twice"),
        ("models: {a: &x {layers: 1}}\nrows: [*x]\n", "anchors"),
        ("models: {}\n", "rows: missing"),
        ("rows: [{source: a}]\n", "models: missing"),
        ("models: {a: {hidden: 8, heads: 1}}\nrows: [{source: a}]\n", "models.a.layers: missing"),
        ("- 1\n", "mapping"),
        ("rows: [\n", "not valid YAML"),
        ("", "empty"),
        ("#" * (1 << 20) + "\nrows: []\n", "larger than 1 MiB"),
    ],
)
def test_what_is_no_such_yaml_is_refused(capsys, tmp_path, text, words):
    path = tmp_path / "runs.yml"
    path.write_text(text)
    with pytest.raises(SystemExit) as ended:
        main(["validate", "--measurements", str(path)])
    err = capsys.readouterr().err
    assert ended.value.code == 2
    assert words in err
    assert "Traceback" not in err


@pytest.mark.full
@needs_file
def test_every_published_row_is_expressed_or_left_out_with_a_reason():
    iterations = every_run()
    told = [one for one in iterations if not isinstance(one.job, str)]
    assert len(iterations) == 425
    assert {one.row["id"] for one in told} >= {
        "sc21_t1_3.6b",
        "kor22_t5_22b_full",
        "mlm2020_a100_8b",
        "forge_s_128_ssd",
    }
    for one in told:
        assert load_job(one.job).ranks == one.row["gpus"]
        assert one.seconds > 0


@needs_file
@pytest.mark.full
def test_times_from_printed_rates_agree_with_the_days_that_the_source_prints():
    """arXiv 2104.04473 Table 2 has both TFLOP/s and the days that 300 billion tokens take."""
    rows = [one for one in every_run() if "zero3" in one.row["id"] and "days_for_300B_tokens" in one.row]
    assert len(rows) == 3
    for one in rows:
        iterations = 300e9 / (one.row["global_batch"] * 2048)
        assert one.seconds * iterations / 86400 == pytest.approx(one.row["days_for_300B_tokens"], rel=0.006)


@needs_file
def test_formulas_agree_with_rows_that_print_both_rate_and_time():
    both = [one for one in every_run() if one.seconds and {"iteration_s", "tflops_per_gpu"} <= set(one.row)]
    assert len(both) >= 6
    for one in both:
        assert not isinstance(one.job, str)
        job, row = load_job(one.job), one.row
        model = job.model
        sizes = Printed(
            *(model.layers, model.hidden, model.sequence, model.vocabulary, job.batch.sequences, job.recompute),
            *(model.key_value_heads / model.heads, model.mlp_hidden, model.activation == "swiglu"),
        )
        if any(word in row.get("note", "") for word in ("do not agree", "plain nemo_dgxc form gives")):
            continue  # the source's own two figures differ
        flops = FORMULAS[row["flop_formula"]](sizes)
        assert flops / row["iteration_s"] / row["gpus"] / 1e12 == pytest.approx(
            row["tflops_per_gpu"], rel=0.01 if row.get("iteration_s_derived") else 0.005
        ), row["id"]


@pytest.mark.full
def test_validate_file_takes_either_ending(tmp_path):
    path = write(tmp_path, [TENSOR | {"model": "gpt"}])
    other = path.rename(tmp_path / "runs.yml")
    assert len(validate_file(other).rows) == 1
