"""Measured training iterations: told to the twin as they were run, and read beside one constant MFU."""

from __future__ import annotations

import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.cli import main
from twin.description.problems import DescriptionError
from twin.engine.interval import interval
from twin.engine.simulate import simulate
from twin.strategies import load_job
from twin.trace.metrics import job_flops, job_peak_flops_per_second
from twin.validate.constant_mfu import best_constant_mfu
from twin.validate.groups import IterationGroup
from twin.validate.measurements import validate_file
from twin.validate.mpt import COLUMNS, mpt_job

MEASURED = Path(__file__).parents[2] / "examples" / "measured"
TABLE = Path(__file__).parents[3] / "shared" / "data" / "iteration-times-mpt-fsdp.csv"

SEVEN_B = {
    "device": "h100_80gb",
    "gpus": 8,
    "layers": 32,
    "hidden": 4096,
    "heads": 32,
    "vocabulary": 50368,
    "sequence_length": 2048,
    "global_batch_sequences": 48,
    "micro_batch_sequences": 6,
    "recompute": False,
    "precision": "amp_bf16 DEFAULT",
}
"""A row of the table of llm-foundry: MPT-7B on one node, 85,144 tokens a second, MFU 46.44 %."""


def table(folder: Path, rows: Sequence[dict[str, Any]]) -> Path:
    path = folder / "measured.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    return path


@examples()
@given(st.lists(st.floats(0.01, 0.9), min_size=1, max_size=12))
def test_no_constant_mfu_is_better_than_the_best_one(measured):
    """Brute force: all of a fine grid, and the rows' own."""
    best, error = best_constant_mfu(measured)
    rates = np.array(measured)
    tried = np.concatenate([np.linspace(0.005, 1.0, 4000), rates])
    errors = np.abs(rates[:, None] / tried[None, :] - 1).mean(axis=0)
    assert error == pytest.approx(np.abs(rates / best - 1).mean())
    assert error == pytest.approx(errors.min(), abs=1e-12)


def test_one_row_has_a_constant_mfu_without_error():
    assert best_constant_mfu([0.37]) == (0.37, 0.0)


def test_an_mpt_row_is_fsdp_over_z():
    job = load_job(mpt_job(SEVEN_B))
    assert job.concrete_grid.by_axis() == {"data": 1, "z": 8, "y": 1, "x": 1}
    assert (job.batch.sequences, job.batch.micro_sequences, job.micro_steps) == (48, 6, 1)
    assert (job.precision, job.recompute, job.gather_unit, job.attention) == ("bf16", False, "block", "flash1")
    assert (job.machine.name, job.ranks, job.dropout, job.fused_elementwise) == ("dgx-h100", 8, 0.0, False)


def test_an_mpt_row_is_what_ran_it_if_asked_for():
    """PyTorch's FullyShardedDataParallel over all ranks; all else of the job is the same."""
    job, other = load_job(mpt_job(SEVEN_B, "fsdp")), load_job(mpt_job(SEVEN_B))
    assert (job.strategy, job.flavour, job.reduce_precision) == ("fsdp", "fsdp1", "compute")
    assert job.concrete_grid.by_axis() == {"data": 1, "optimizer": 1, "gradients": 1, "weights": 8}
    same = ("model", "machine", "batch", "precision", "attention", "recompute", "kernel_tuning")
    assert all(getattr(job, key) == getattr(other, key) for key in same)


def test_the_terminal_reads_rows_as_either(capsys, tmp_path):
    path, step = table(tmp_path, [SEVEN_B | {"step_milliseconds": 1000}]), {}
    for strategy in ("four_d", "fsdp"):
        with pytest.raises(SystemExit):
            main(["validate", "--measurements", str(path), "--strategy", strategy, "--json"])
        (row,) = json.loads(capsys.readouterr().out)["rows"]
        step[strategy] = row["predicted_milliseconds"]
        job = load_job(mpt_job(SEVEN_B, strategy))
        assert row["predicted_milliseconds"] == pytest.approx(1e3 * simulate(job).step_seconds, rel=1e-9)
    assert step["fsdp"] < step["four_d"]


@pytest.mark.parametrize("arguments", [[], ["--measurements", str(MEASURED / "polaris-tcp.csv")]])
def test_other_measurements_have_no_reading(capsys, arguments):
    with pytest.raises(SystemExit) as ended:
        main(["validate", *arguments, "--strategy", "fsdp"])
    assert ended.value.code == 2
    assert "--strategy = 'fsdp'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("precision", "section", "scatters"),
    [
        ("amp_bf16 DEFAULT", "H100 80GB BF16", "compute"),
        ("amp_bf16 DEFAULT", "H100 80GB BF16 (Large Scale, >= 128 GPUs)", "fp32"),
        ("bf16 PURE", "H100 80GB BF16 (Large Scale, >= 128 GPUs)", "compute"),
        ("amp_bf16", "", "compute"),
    ],
)
def test_gradients_are_summed_as_the_software_of_the_time_did(precision, section, scatters):
    job = load_job(mpt_job(SEVEN_B | {"precision": precision, "section": section}))
    assert job.communication_precision.scatters == scatters
    assert job.communication_precision.gathers == "compute"


def test_a_mode_that_is_not_known_is_left_out():
    assert mpt_job(SEVEN_B | {"precision": "amp_bf16 FULL"}) == (
        "mixed precision mode 'FULL'; those of this format are DEFAULT, PURE"
    )


def test_the_a100_section_has_1600_gigabits_a_node():
    machine = load_job(mpt_job(SEVEN_B | {"device": "a100_80gb"})).machine
    assert len(machine.nic.devices) * machine.nic.bandwidth_bytes_per_second == 1600e9 / 8
    assert machine.device.name == "a100-sxm4-80gb"
    assert load_job(mpt_job(SEVEN_B | {"device": "a100_80gb"})).attention == "triton"


def test_the_section_of_40_gigabytes_has_the_same_nodes():
    other, mine = (load_job(mpt_job(SEVEN_B | {"device": f"a100_{size}gb"})).machine for size in (80, 40))
    assert mine.device.name == "a100-sxm4-40gb"
    assert (mine.nic, mine.fabric, mine.devices_per_node) == (other.nic, other.fabric, other.devices_per_node)


def test_what_no_device_can_do_is_no_measurement(tmp_path):
    """Two rows of llm-foundry's torch2.csv print an MFU of 195 and 199 %: as many sequences, four times as long."""
    possible = 8 * 312e12 / (6 * 6.66e9 * 2048 * 48)  # steps a second, of 6 FLOPs a parameter and token
    row = SEVEN_B | {"device": "a100_80gb"}
    rows = [row | {"step_milliseconds": 1e3 / possible * longer} for longer in (0.5, 2.0)]
    got = validate_file(table(tmp_path, rows))
    assert got.skipped == {"measured faster than the devices' peak: an impossible row": 1}
    assert len(got.rows) == 1


@pytest.mark.full
def test_rows_that_were_never_looked_at_are_predicted():
    """A hundred rows of A100 with 40 GB and others of the two with 80, to which nothing was set."""
    got = validate_file(MEASURED / "mpt-fsdp.csv")
    assert got.skipped == {
        "measured faster than the devices' peak: an impossible row": 4,
        "precision 'amp_fp8 DEFAULT'": 10,
    }
    groups = {group.name: group for group in got.groups if isinstance(group, IterationGroup)}
    assert {name: group.count for name, group in groups.items()} == {"A100-40GB": 100, "A100-80GB": 45, "H100": 22}
    for group in groups.values():
        assert group.mean < min(0.1, group.constant_mfu_mean)
        assert abs(group.bias) < 0.06
        assert group.inside >= 0.8


@pytest.mark.parametrize(
    ("layers", "hidden", "heads", "printed"),
    [(32, 4096, 32, 6_658_859_008), (80, 8192, 64, 64_862_437_376), (40, 5120, 40, 12_853_954_560)],
)
def test_the_model_has_the_parameters_that_the_source_prints(layers, hidden, heads, printed):
    """Learned positions, biases everywhere; only the head, which MPT shares with the embedding, stands twice."""
    sizes = {"layers": layers, "hidden": hidden, "heads": heads}
    model = load_job(mpt_job(SEVEN_B | sizes)).model
    assert model.parameters - model.vocabulary * model.hidden == printed


def test_the_measured_mfu_is_the_one_that_the_source_prints(tmp_path):
    milliseconds = 48 * 2048 / 85144 * 1e3
    (row,) = validate_file(table(tmp_path, [SEVEN_B | {"step_milliseconds": milliseconds}])).rows
    assert row["measured_mfu"] == pytest.approx(0.4644, abs=0.001)


@pytest.mark.parametrize("factor", [1.0, 3.0])
def test_the_figures_of_a_group(capsys, tmp_path, factor):
    rows, errors, mfus = [], [], []
    for layers, slower in ((2, 1.0), (4, 1.02), (4, 1.05)):
        row = SEVEN_B | {"layers": layers}
        job = load_job(mpt_job(row))
        seconds = simulate(job).step_seconds * factor * slower
        mfus.append(job_flops(job, recompute=False) / (job_peak_flops_per_second(job) * seconds))
        errors.append(1 / (factor * slower) - 1)
        rows.append(row | {"step_milliseconds": seconds * 1e3})
    with pytest.raises(SystemExit):
        main(["validate", "--measurements", str(table(tmp_path, rows)), "--json"])
    got = json.loads(capsys.readouterr().out)
    (group,) = got["groups"]
    assert (got["kind"], group["name"], group["count"]) == ("iterations", "H100", 3)
    assert [r["error"] for r in got["rows"]] == pytest.approx(errors)
    assert group["bias"] == pytest.approx(np.mean(errors))
    assert group["inside"] == (1.0 if factor == 1 else 0.0)
    assert group["constant_mfu_mean"] == pytest.approx(best_constant_mfu(mfus)[1])
    bounds = interval(load_job(mpt_job(rows[0])))
    assert got["rows"][0]["interval"] == pytest.approx([bounds.low * 1e3, bounds.high * 1e3])


def test_rows_that_no_strategy_expresses_are_counted(capsys, tmp_path):
    bad = [{"device": "tpu_v4"}, {"precision": "amp_fp8 DEFAULT"}, {"gpus": 7}, {"precision": " x"}, {"layers": 1e300}]
    bad += [{"step_milliseconds": 1e-320}, {"step_milliseconds": 1e308}]
    rows = [SEVEN_B | {"step_milliseconds": 1000} | change for change in ({}, *bad)]
    got = validate_file(table(tmp_path, rows))
    assert (len(got.rows), sum(got.skipped.values()), len(got.skipped)) == (1, 7, 6)
    assert any("tpu_v4" in reason for reason in got.skipped)
    assert any("amp_fp8" in reason for reason in got.skipped)
    with pytest.raises(SystemExit):
        main(["validate", "--measurements", str(tmp_path / "measured.csv"), "--workers", "1"])
    out = capsys.readouterr().out
    for words in ("in interval", "one MFU", "H100", "1 rows left out"):
        assert words in out


@pytest.mark.parametrize(
    ("column", "value"), [("recompute", "perhaps"), ("layers", "many"), ("step_milliseconds", "0"), ("precision", "")]
)
def test_a_bad_cell_is_refused_with_line_and_column(tmp_path, column, value):
    rows = [SEVEN_B | {"step_milliseconds": 1000}, SEVEN_B | {"step_milliseconds": 1000} | {column: value}]
    with pytest.raises(DescriptionError) as refused:
        validate_file(table(tmp_path, rows))
    (problem,) = refused.value.problems
    assert problem.path == f"line 3, {column}"


needs_table = pytest.mark.skipif(not TABLE.exists(), reason="../shared/data/iteration-times-mpt-fsdp.csv is not here")


@needs_table
def test_every_row_of_the_published_table_is_expressed():
    """All make jobs; those of a part keep every rule."""
    with TABLE.open(newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) == 131
    for number, row in enumerate(rows):
        keys = mpt_job(row | {"recompute": row["recompute"] == "True"})
        assert isinstance(keys, dict)
        assert keys["grid"] == {"z": keys["ranks"]} == {"z": int(row["gpus"])}
        if number % 15 == 0:
            assert load_job(keys).recompute == (row["recompute"] == "True")


@needs_table
@pytest.mark.full
def test_a_part_of_the_published_table_is_compared(tmp_path):
    header, *lines = TABLE.read_text(encoding="utf-8").splitlines()
    part = tmp_path / "part.csv"
    part.write_text("\n".join([header, *lines[::20]]) + "\n", encoding="utf-8")
    got = validate_file(part)
    assert {g.name for g in got.groups} == {"H100", "A100-80GB"}
    assert all(isinstance(g, IterationGroup) and 0 <= g.inside <= 1 for g in got.groups)
    assert (len(got.rows), got.skipped) == (len(lines[::20]), {})
