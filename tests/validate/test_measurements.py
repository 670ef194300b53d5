"""A user's own measurements: told apart by header, compared row by row, refused when broken."""

from __future__ import annotations

import csv
import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.cli import main
from twin.engine.simulate import simulate
from twin.engine.single import collective_answer
from twin.strategies import load_job
from twin.validate.groups import summary
from twin.validate.measurements import validate_file
from twin.validate.megatron import iteration_job

COLLECTIVES = ["machine", "collective", "library", "ranks", "bytes", "microseconds"]
GEMMS = ["device", "m", "n", "k", "microseconds"]
ITERATIONS = [
    "nodes",
    "gpus",
    "global_batch_sequences",
    "micro_batch_sequences",
    "layers",
    "hidden",
    "heads",
    "sequence_length",
    "data_parallel",
    "tensor_parallel",
    "iteration_milliseconds",
]


def table(folder: Path, header: Sequence[str], rows: Sequence[Sequence[object]]) -> Path:
    path = folder / "measured.csv"
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])
    return path


@pytest.fixture
def ask(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run a command that must succeed and return its JSON object."""

    def run(*arguments: object) -> Any:
        with pytest.raises(SystemExit) as ended:
            main([*map(str, arguments), "--json"])
        out, err = capsys.readouterr()
        assert (ended.value.code or 0) == 0, err
        return json.loads(out)

    return run


@pytest.fixture
def refused(capsys: pytest.CaptureFixture[str]) -> Any:
    """Run `validate --measurements` on a broken file and return what it says."""

    def run(path: Path) -> str:
        with pytest.raises(SystemExit) as ended:
            main(["validate", "--measurements", str(path)])
        out, err = capsys.readouterr()
        assert (ended.value.code, out) == (2, ""), err
        assert "Traceback" not in err
        assert str(path) in err
        return err

    return run


QUESTIONS = [
    (machine, kind, library, ranks, size)
    for machine, library in (("frontier", "rccl"), ("frontier", "pccl"), ("dgx-a100", "nccl"))
    for kind in ("all_gather", "reduce_scatter", "all_reduce")
    for ranks, size in ((8, 2**20), (64, 2**26))
]


@pytest.fixture
def collective_rows(ask) -> list[list[object]]:
    """Measurements as the twin itself would make them, by asking it one at a time."""
    rows: list[list[object]] = []
    for machine, kind, library, ranks, size in QUESTIONS:
        answer = ask(
            "collective", "--machine", machine, "--kind", kind, "--library", library, "--ranks", ranks, "--bytes", size
        )
        rows.append([machine, kind, library, ranks, size, answer["seconds"] * 1e6])
    return rows


@pytest.mark.parametrize("scale", [1.0, 1.1, 0.5])
def test_collectives_measured_as_predicted_but_for_a_factor(ask, tmp_path, collective_rows, scale):
    """A perfect table has no error; one that is 10 % slower has 1 − 1/1.1 everywhere."""
    rows = [[*row[:-1], float(row[-1]) * scale] for row in collective_rows]
    got = ask("validate", "--measurements", table(tmp_path, COLLECTIVES, rows))
    expected = 1 / scale - 1
    assert got["kind"] == "collectives"
    assert got["skipped"] == {}
    assert [r["error"] for r in got["rows"]] == pytest.approx([expected] * len(rows), abs=1e-9)
    for group in got["groups"]:
        for figure in ("median", "mean", "p90"):
            assert group[figure] == pytest.approx(abs(expected), abs=1e-9)
        assert group["bias"] == pytest.approx(expected, abs=1e-9)
    # (machine, collective, library) × (one node, several): 3 × 3 × 2 groups of one row.
    assert len(got["groups"]) == 18
    assert sum(g["count"] for g in got["groups"]) == len(rows)
    assert sum("one node" in g["name"] for g in got["groups"]) == 9
    assert sum("multi-node" in g["name"] for g in got["groups"]) == 9
    for group, (machine, kind, library, *_) in zip(got["groups"], QUESTIONS, strict=True):
        assert all(word in group["name"] for word in (machine, kind, library))
    for row, given_row in zip(got["rows"], rows, strict=True):
        assert row["measured"] == pytest.approx(given_row[-1])
        assert row["predicted"] / row["measured"] - 1 == pytest.approx(row["error"])


def test_products_measured_as_predicted_but_for_a_factor(ask, tmp_path):
    sizes = [(128, 256, 512), (4096, 4096, 4096), (8192, 12288, 1000)]
    rows = []
    for m, n, k in sizes:
        seconds = ask("gemm", "--machine", "frontier", "--m", m, "--n", n, "--k", k, "--untuned")
        rows.append(["mi250x-gcd", m, n, k, seconds["seconds"] * 1e6 * 1.1])
    got = ask("validate", "--measurements", table(tmp_path, GEMMS, rows))
    assert got["kind"] == "gemm"
    assert [r["error"] for r in got["rows"]] == pytest.approx([1 / 1.1 - 1] * 3)
    assert [(g["name"], g["count"]) for g in got["groups"]] == [("mi250x-gcd", 3)]


def test_what_operands_hold_is_heeded(ask, tmp_path):
    """Random numbers are priced as in training, zeros as in tables that were never filled; fp8 is no row of ours."""
    header, product = "device,m,n,k,microseconds,dtype,operands", "a100-sxm4-80gb,8192,8192,8192,4000"
    rows = [f"{product},bf16,{operands}" for operands in ("randn", "zeros", "activation 0 (x)", "")]
    path = tmp_path / "table.csv"
    path.write_text("\n".join([header, *rows, f"{product},fp8 (bf16 out),randn"]))
    got = ask("validate", "--measurements", path)
    filled, *empty = (row["predicted"] for row in got["rows"])
    assert 2 * 8192**3 / filled / 1e6 == pytest.approx(257, rel=0.01)
    assert len(set(empty)) == 1
    assert empty[0] < 0.95 * filled
    assert got["skipped"] == {"products of fp8": 1}


ITERATION = {
    "nodes": "one-node",
    "gpus": 8,
    "global_batch_sequences": 32,
    "micro_batch_sequences": 2,
    "layers": 4,
    "hidden": 1024,
    "heads": 16,
    "sequence_length": 512,
    "data_parallel": 2,
    "tensor_parallel": 4,
}


def test_the_job_of_an_iteration_is_what_was_run():
    """Megatron's tensor parallelism, fp16, recomputation; the table padded to 128 × 4."""
    job = load_job(iteration_job(ITERATION))
    grid = job.concrete_grid
    assert (job.ranks, grid.data, grid.z, grid.y * grid.x) == (8, 2, 1, 4)
    assert (job.batch.sequences, job.batch.micro_sequences, job.micro_steps) == (32, 2, 8)
    model = job.model
    assert (model.layers, model.hidden, model.heads, model.sequence) == (4, 1024, 16, 512)
    assert model.vocabulary == 50688  # the next multiple of 512 after 50,257
    assert (job.precision, job.recompute, job.machine.name) == ("fp16", True, "dgx-a100-4nic")


def test_iterations_measured_as_predicted_but_for_a_factor(ask, tmp_path):
    rows = []
    for nodes, gpus, data in (("one-node", 8, 2), ("multi-node", 16, 4)):
        row = ITERATION | {"nodes": nodes, "gpus": gpus, "data_parallel": data}
        seconds = simulate(load_job(iteration_job(row))).step_seconds
        rows.append([*row.values(), seconds * 1e3 * 1.1])
    got = ask("validate", "--measurements", table(tmp_path, ITERATIONS, rows))
    assert got["kind"] == "iterations"
    assert [r["error"] for r in got["rows"]] == pytest.approx([1 / 1.1 - 1] * 2)
    assert {g["name"]: g["count"] for g in got["groups"]} == {"one-node": 1, "multi-node": 1}


@pytest.mark.process
def test_workers_change_nothing(tmp_path):
    rows = [[*(ITERATION | {"layers": n}).values(), 100] for n in range(1, 6)]
    path = table(tmp_path, ITERATIONS, rows)
    assert validate_file(path, workers=1) == validate_file(path, workers=2)


def test_rows_that_are_not_known_are_counted_and_named(ask, tmp_path):
    rows = [
        ["frontier", "all_gather", "rccl", 16, 2**20, 100],
        ["frontier", "all_gather", "cray-mpich", 16, 2**20, 100],
        ["frontier", "all_gather", "cray-mpich", 32, 2**20, 100],
        ["summit", "all_gather", "nccl", 16, 2**20, 100],
        ["frontier", "scan", "rccl", 16, 2**20, 100],
        ["frontier", "all_gather", "rccl", 10**6, 2**20, 100],
    ]
    got = ask("validate", "--measurements", table(tmp_path, COLLECTIVES, rows))
    assert len(got["rows"]) == 1
    assert sum(got["skipped"].values()) == 5
    reasons = {
        word: n
        for word in ("cray-mpich", "summit", "scan", "more ranks")
        for reason, n in got["skipped"].items()
        if word in reason
    }
    assert reasons == {"cray-mpich": 2, "summit": 1, "scan": 1, "more ranks": 1}


def test_table_for_people_shows_groups_and_what_is_left_out(capsys, tmp_path):
    rows = [["frontier", "all_gather", library, 16, 2**20, 100] for library in ("rccl", "mpich")]
    with pytest.raises(SystemExit) as ended:
        main(["validate", "--measurements", str(table(tmp_path, COLLECTIVES, rows))])
    out, err = capsys.readouterr()
    assert (ended.value.code or 0, err) == (0, "")
    for words in ("frontier all_gather rccl", "median", "1 rows left out", "mpich"):
        assert words in out


def test_columns_in_any_order_and_further_ones(ask, tmp_path):
    """Logs of a cluster carry more than is asked for."""
    row = ["quiet night", 100, 2**20, 16, "rccl", "all_gather", "frontier"]
    got = ask("validate", "--measurements", table(tmp_path, ["note", *COLLECTIVES[::-1]], [row]))
    assert got["rows"][0]["note"] == "quiet night"
    assert got["groups"][0]["count"] == 1


@pytest.mark.parametrize(
    "text",
    [
        "\ufeff{header}\n{row}\n",  # as spreadsheets write it
        "{spaced}\n{row}\n",
        "{header}\r\n{row}\r\n",
    ],
    ids=["byte order mark", "spaces after commas", "CRLF"],
)
def test_other_ways_to_write_the_same_table(ask, tmp_path, text):
    path = tmp_path / "measured.csv"
    words = {
        "header": ",".join(COLLECTIVES),
        "spaced": ", ".join(COLLECTIVES),
        "row": "frontier,all_gather,rccl,16,1048576,100",
    }
    path.write_bytes(text.format(**words).encode())
    assert len(ask("validate", "--measurements", path)["rows"]) == 1


GOOD = ["frontier", "all_gather", "rccl", "16", "1048576", "100"]
BAD_CELLS = [
    ("ranks", "many"),
    ("ranks", "0"),
    ("ranks", "-8"),
    ("ranks", "2.5"),
    ("bytes", ""),
    ("bytes", "1 lot"),
    ("bytes", "nan"),
    ("microseconds", "0"),
    ("microseconds", "inf"),
    ("microseconds", "1e999"),
    ("machine", ""),
    ("library", ""),
]


@pytest.mark.parametrize(("column", "value"), BAD_CELLS)
def test_bad_cell_is_refused_with_line_column_and_value(refused, tmp_path, column, value):
    bad = list(GOOD)
    bad[COLLECTIVES.index(column)] = value
    message = refused(table(tmp_path, COLLECTIVES, [GOOD, bad, GOOD]))
    assert "line 3" in message
    assert column in message
    assert value in message


def test_all_bad_cells_are_told_at_once(refused, tmp_path):
    rows = [[*GOOD[:3], "x", "y", "z"], GOOD, [*GOOD[:5], "-1"]]
    message = refused(table(tmp_path, COLLECTIVES, rows))
    assert "4 problems" in message
    assert "line 4" in message


BAD_FILES = {
    "empty": b"",
    "blank lines": b"\n\n",
    "header alone": (",".join(COLLECTIVES) + "\n").encode(),
    "other header": b"a,b,c\n1,2,3\n",
    "column missing": b"device,m,n,microseconds\nh200,1,1,1\n",
    "bytes": bytes(range(256)) * 4,
    "UTF-16": "device,m,n,k\n".encode("utf-16"),
    "short row": (",".join(GEMMS) + "\nh200,1,1\n").encode(),
    "NUL": b"device,m,n,k,microseconds\nh200,1,1,1,\0\n",
    "endless field": b"device,m,n,k,microseconds\n" + b"x" * 200_000,
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_what_is_not_a_table_of_measurements_is_refused(refused, tmp_path, name):
    path = tmp_path / "measured.csv"
    path.write_bytes(BAD_FILES[name])
    message = refused(path)
    if "header" in name or "column" in name:
        assert "rows" in message or "machine,collective,library,ranks,bytes,microseconds" in message


def test_missing_file_and_directory(refused, tmp_path):
    assert "No such file" in refused(tmp_path / "none.csv")
    assert "directory" in refused(tmp_path)


def test_huge_cells_do_not_break_the_comparison(tmp_path):
    """Whatever a row holds, it is compared, left out with a reason, or refused; never a crash."""
    assert validate_file(table(tmp_path, GEMMS, [["h200", "1e5", "1e5", "1e5", "1e300"]])).rows
    got = validate_file(table(tmp_path, COLLECTIVES, [[*GOOD[:3], "1e300", "1e300", "1e-300"]]))
    assert sum(got.skipped.values()) == 1


@examples(derandomize=True)
@given(st.lists(st.floats(-0.99, 5), min_size=1, max_size=30))
def test_figures_of_a_group_are_those_of_statistics(errors):
    got = summary("g", errors)
    sizes = [abs(e) for e in errors]
    assert (got.name, got.count) == ("g", len(errors))
    assert got.median == pytest.approx(statistics.median(sizes))
    assert got.mean == pytest.approx(statistics.fmean(sizes))
    assert got.bias == pytest.approx(statistics.fmean(errors), abs=1e-12)
    if len(errors) > 1:
        tenths = statistics.quantiles(sizes, n=10, method="inclusive")
        assert got.p90 == pytest.approx(tenths[8], abs=1e-12)


def test_own_machine_is_placed_by_its_own_file(tmp_path):
    """Not by the packaged machine whose name it may have inherited."""
    text = "extends: dgx-h100\ndevices_per_node: 4\nnic: {devices: [[0], [1], [2], [3]]}\n"
    (tmp_path / "mine.yaml").write_text(text)
    machine = str(tmp_path / "mine.yaml")
    path = tmp_path / "measured.csv"
    path.write_text(f"machine,collective,library,ranks,bytes,microseconds\n{machine},all_reduce,nccl,16,1GiB,9000\n")
    (row,) = validate_file(path).rows
    asked = collective_answer(machine, "all_reduce", 16, "1 GiB", 1, None)
    assert asked["nodes"] == 4
    assert row["predicted"] == pytest.approx(asked["seconds"] * 1e6)
