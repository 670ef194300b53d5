"""The `fourfold` command: what it answers, what it writes, what it refuses."""

from __future__ import annotations

import gzip
import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml

import twin
from twin.cli import main
from twin.description.load import names
from twin.description.presets import presets
from twin.strategies import load_job
from twin.trace.store import read_trace
from twin.trace.table import check_table

JOB = {
    "model": {"preset": "gpt2", "layers": 2},
    "machine": "perlmutter",
    "ranks": 16,
    "grid": {"data": 2, "z": 2, "y": 2, "x": 2},
    "batch": {"sequences": 16, "micro_sequences": 2},
}
COMMANDS = ["simulate", "machines", "models", "schema", "validate", "collective", "gemm"]
PARTS = ("compute", "slowest_device_wait", "exposed_communication", "idle")
STEP_PARTS = [f"{part}_seconds" for part in PARTS]
PROMISED = {
    *STEP_PARTS,
    "step_seconds",
    "exposed_by_axis",
    "model_flops_per_second",
    "percent_of_peak",
    "hardware_flops_per_second",
    "tokens_per_second",
    "memory",
    "energy_joules",
    "grid",
    "ranks",
    "classes",
    "wall_seconds",
}


class Cli:
    """Runs the command line in this process."""

    def __init__(self, capsys: pytest.CaptureFixture[str], job: Path) -> None:
        self.capsys, self.job = capsys, str(job)

    def __call__(self, *arguments: str, code: int = 0) -> tuple[str, str]:
        with pytest.raises(SystemExit) as ended:
            main(list(arguments))
        out, err = self.capsys.readouterr()
        assert (ended.value.code or 0) == code, err
        return out, err

    def json(self, *arguments: str) -> Any:
        out, err = self(*arguments, "--json")
        assert err == ""
        return json.loads(out)

    def simulate(self, *options: str, **overrides: object) -> dict[str, Any]:
        """Simulate with options, and overrides in which `__` stands for a dot."""
        sets = [f"--set={key.replace('__', '.')}={value}" for key, value in overrides.items()]
        return self.json("simulate", self.job, *options, *sets)

    def refused(self, *arguments: str) -> str:
        out, err = self(*arguments, code=2)
        assert out == ""
        assert "Traceback" not in err
        return err


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> Cli:
    path = tmp_path / "job.yaml"
    path.write_text(yaml.safe_dump(JOB), encoding="utf-8")
    return Cli(capsys, path)


def test_version_and_help(cli):
    assert cli("--version")[0].strip() == f"fourfold {twin.__version__}"
    listing = cli("--help")[0]
    for command in COMMANDS:
        assert command in listing
        assert "Usage" in cli(command, "--help")[0]


EDITS: list[dict[str, object]] = [
    {},
    {"recompute": "false"},
    {"slowest_device": "false"},
    {"overlap__all_gather": "false"},
    {"stragglers": "[{rank: 3, slowdown: 1.5}]"},
]


@pytest.mark.parametrize("edit", EDITS, ids=lambda e: next(iter(e), "as given"))
def test_figures_of_a_step_are_complete_and_add_up(cli, edit):
    """Where the step goes sums to the step; rates follow from their definitions."""
    got = cli.simulate(**edit)
    assert set(got) >= PROMISED
    assert (got["grid"], got["ranks"]) == (JOB["grid"], 16)
    step, axes = got["step_seconds"], got["exposed_by_axis"]
    assert sum(got[p] for p in STEP_PARTS) == pytest.approx(step, rel=1e-9)
    assert sum(axes.values()) == pytest.approx(got["exposed_communication_seconds"], rel=1e-9)
    assert set(axes) == {"data", "z", "y", "x"}
    assert all(v >= 0 for v in [*axes.values(), *(got[p] for p in STEP_PARTS)])
    assert sum(got["compute_by_phase"].values()) == pytest.approx(got["compute_seconds"], rel=1e-9)
    assert got["tokens_per_second"] * step == pytest.approx(16 * 1024)
    # Section 8 of the algorithm, by hand: blocks run three or four times, the head three times.
    tokens, blocks = 16 * 1024, 24 * 2 * 768**2 * (1 + 1024 / (6 * 768))
    head = 6 * 768 * 50304
    hardware = got["hardware_flops_per_second"]
    model = got["model_flops_per_second"]
    assert model * step == pytest.approx(tokens * (3 * blocks + head), rel=1e-9)
    passes = 3 if "recompute" in edit else 4
    assert hardware * step == pytest.approx(tokens * (passes * blocks + head), rel=1e-9)
    assert got["model_percent_of_peak"] / model == pytest.approx(got["percent_of_peak"] / hardware)
    assert got["percent_of_peak"] == pytest.approx(100 * hardware / (16 * 312e12), rel=1e-9)
    memory = got["memory"]
    assert set(memory) == {"per_rank_bytes", "capacity_bytes", "fits", "by_category", "advice"}
    assert sum(memory["by_category"].values()) == pytest.approx(memory["per_rank_bytes"])
    assert memory["fits"] is (memory["per_rank_bytes"] <= memory["capacity_bytes"])
    assert bool(memory["advice"]) is not memory["fits"]
    assert got["energy_joules"] > 0
    assert 1 <= got["classes"] <= 16


def test_reference_engine_gives_the_folded_figures(cli):
    slow = "[{rank: 5, slowdown: 2}]"
    folded, whole = cli.simulate(stragglers=slow), cli.simulate("--engine=des", stragglers=slow)
    assert whole["classes"] == 16
    assert folded["classes"] <= 16
    for key in ("step_seconds", *STEP_PARTS, "exposed_by_axis", "energy_joules"):
        assert folded[key] == pytest.approx(whole[key], rel=1e-9, abs=1e-15)


def test_the_same_job_gives_the_same_figures(cli):
    first, second = cli.simulate(), cli.simulate()
    del first["wall_seconds"], second["wall_seconds"]
    assert first == second


def test_set_reaches_job_grid_and_machine(cli):
    """Each override moves what it should, in the direction it must."""
    plain = cli.simulate()
    regrid = cli.simulate(grid__z=4, grid__data=1)["grid"]
    assert (regrid["z"], regrid["data"]) == (4, 1)
    larger = cli.simulate(ranks=32, grid__data=4)
    assert (larger["ranks"], larger["grid"]["data"]) == (32, 4)
    halved = cli.simulate(batch__micro_sequences=1)
    assert halved["micro_steps"] == 2 * plain["micro_steps"]
    slower = cli.simulate(machine__nic__bandwidth="1 GB/s")
    assert slower["step_seconds"] > plain["step_seconds"]
    assert cli.simulate(machine__device__memory="3 GB")["memory"]["capacity_bytes"] < 3e9
    assert cli.simulate(machine="frontier")["machine"] == "frontier"


AUTO = {"grid": "auto", "batch__micro_sequences": "auto"}


def test_auto_grid_and_micro_batch_are_resolved(cli):
    got = cli.simulate(**AUTO, ranks=4, batch__sequences=8)
    sizes = got["grid"]
    assert sizes["data"] * sizes["z"] * sizes["y"] * sizes["x"] == 4
    assert sizes["data"] * sizes["z"] * got["micro_sequences"] * got["micro_steps"] == 8
    assert got["memory"]["fits"]


def test_how_many_grids_were_chosen_from_is_said(cli):
    out, _ = cli("simulate", cli.job, "--set", "batch.micro_sequences=auto")
    assert out.startswith("One grid keeps the rules and fits into memory:")
    out, _ = cli("simulate", cli.job, "--set", "grid=auto")
    assert re.match(r"Chosen from \d+ grids that keep the rules", out)


def test_auto_that_cannot_fit_says_why(cli):
    message = cli.refused(
        "simulate", cli.job, "--set=grid=auto", "--set=ranks=2", "--set=machine.device.memory=2.001 GB"
    )
    assert all(word in message for word in ("grid", "memory"))


def test_run_directory_reads_back(cli, tmp_path):
    out = tmp_path / "runs" / "first"
    got = cli.simulate("--out", str(out), "--ranks", "0,5,15")
    trace = read_trace(out)
    assert check_table(trace.events) == []
    assert sorted(set(trace.events["rank"].to_pylist())) == [0, 5, 15]
    span = max(trace.events["end_ns"].to_pylist()) - min(trace.events["start_ns"].to_pylist())
    assert span / 1e9 <= got["step_seconds"] + 1e-8
    manifest = trace.manifest
    assert manifest["kind"] == "predicted"
    assert manifest["schema_version"] == 1
    assert manifest["code_version"] == twin.__version__
    assert manifest["figures"]["step_seconds"] == got["step_seconds"]
    assert sum(c["ranks"] for c in manifest["classes"]) == 16
    assert load_job(manifest["job"]) == load_job(out / "job.yaml") == load_job(JOB)
    page = (out / "timeline.html").read_text(encoding="utf-8")
    assert page.lstrip().lower().startswith("<!doctype html")
    assert not re.search(r"<(script|link|img)[^>]+(src|href)=[\"']?https?:", page), "the page needs the network"
    assert [p.name for p in out.parent.iterdir()] == ["first"], "temporary files are left"


def test_run_directory_is_not_overwritten_unless_asked(cli, tmp_path):
    out = tmp_path / "run"
    cli.simulate("--out", str(out))
    assert "--force" in cli.refused("simulate", cli.job, "--out", str(out))
    cli.simulate("--out", str(out), "--force", "--ranks", "1")
    assert set(read_trace(out).events["rank"].to_pylist()) == {1}


@pytest.mark.parametrize("force", [(), ("--force",)], ids=["", "force"])
def test_what_is_not_a_run_is_never_replaced(cli, tmp_path, force):
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter.txt").write_text("words")
    for target in (precious, precious / "chapter.txt", precious / "chapter.txt" / "below"):
        assert str(target) in cli.refused("simulate", cli.job, "--out", str(target), *force)
    assert (precious / "chapter.txt").read_text() == "words"
    assert sorted(p.name for p in tmp_path.iterdir()) == ["job.yaml", "thesis"]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_chrome_trace(cli, tmp_path, name):
    path = tmp_path / name
    step = cli.simulate("--chrome", str(path), "--ranks", "0,7")["step_seconds"]
    text = gzip.decompress(path.read_bytes()).decode() if name.endswith("gz") else path.read_text()
    events = json.loads(text)["traceEvents"]
    spans = [e for e in events if e["ph"] == "X"]
    assert {e["pid"] for e in spans} == {0, 7}
    assert min(e["ts"] for e in spans) >= 0 <= min(e["dur"] for e in spans)
    assert max(e["ts"] + e["dur"] for e in spans) <= step * 1e6 + 0.01
    assert "data 0" in next(e["args"]["name"] for e in events if e["name"] == "process_name")
    assert "--force" in cli.refused("simulate", cli.job, "--chrome", str(path))


@pytest.mark.parametrize("ranks", ["16", "-1", "a", "0,,1", "1.5", "0;1", "9" * 5000])
def test_bad_ranks_are_refused(cli, tmp_path, ranks):
    out = tmp_path / "run"
    assert "--ranks" in cli.refused("simulate", cli.job, "--out", str(out), f"--ranks={ranks}")
    assert not out.exists()


def test_tables_for_people(cli):
    table = cli("simulate", cli.job)[0]
    words = ("per step", "peak", "compute", "exposed communication", "Memory", "fits")
    assert all(word in table for word in words)
    machines, models = (cli(known)[0] for known in ("machines", "models"))
    assert all(name in machines for name in ("frontier", "alps", "perlmutter"))
    frontier = cli("machines", "frontier")[0]
    assert all(word in frontier for word in ("nic.bandwidth", "25 GB/s", "datasheet", "OLCF"))
    assert all(name in models for name in presets())


def test_a_short_step_and_its_parts_are_told_in_milliseconds(cli):
    """A step of 0.714 ms was printed as 0.001 s, each of its parts as 0.000 s."""
    small = ["model={layers: 1, hidden: 64, heads: 1, sequence: 16, vocabulary: 32}", "machine=dgx-h100", "ranks=1"]
    small += ["grid={data: 1}", "batch={sequences: 1, micro_sequences: 1}"]
    options = [word for each in small for word in ("--set", each)]
    milliseconds = 1e3 * cli.simulate(*options)["step_seconds"]
    assert milliseconds < 10
    table = cli("simulate", cli.job, *options)[0]
    assert f"{milliseconds:.3f} ms per step" in table
    parts = [float(found) for found in re.findall(r"(\d+\.\d{3}) ms +\d+\.\d %", table)]
    assert sum(parts) == pytest.approx(milliseconds, abs=0.003)


def test_lists_for_programs(cli):
    assert [m["name"] for m in cli.json("machines")] == names()
    bandwidth = cli.json("machines", "frontier")["nic"]["bandwidth"]
    assert (bandwidth["value"], bandwidth["kind"]) == (25e9, "datasheet")
    assert "OLCF" in bandwidth["source"]
    assert {m["name"] for m in cli.json("models")} == set(presets())
    assert cli.json("models", "gpt2")[0]["parameters"] == presets()["gpt2"].parameters


COLLECTIVE = ["collective", "--machine=frontier", "--kind=all_gather", "--ranks=512", "--bytes"]
GEMM = ["gemm", "--machine", "frontier", "--m", "4096", "--n", "8192", "--k", "1024"]


def test_one_collective(cli):
    got = cli.json(*COLLECTIVE, "64MiB")
    assert (got["bytes"], got["ranks"], got["nodes"]) == (2**26, 512, 64)
    bus = got["bus_bandwidth_bytes_per_second"]
    assert bus * got["seconds"] == pytest.approx(2**26 * 511 / 512)
    assert cli.json(*COLLECTIVE, "1 GiB")["seconds"] > got["seconds"]
    assert "algorithm" in cli(*COLLECTIVE, "64MiB")[0]
    assert cli.json(*COLLECTIVE, "1 GiB", "--library", "pccl")["library"] == "pccl"


def test_one_matrix_product(cli):
    got = cli.json(*GEMM)
    assert got["flops"] == 2 * 4096 * 8192 * 1024
    assert got["percent_of_peak"] == pytest.approx(100 * got["flops"] / got["seconds"] / 191.5e12)
    assert 0 < got["percent_of_peak"] < 100
    assert "mode" in cli(*GEMM, "--mode", "NT", "--untuned")[0]


# After the words of a valid question, what is wrong; and what the message must contain.
WRONG_QUESTIONS: dict[str, tuple[list[str], list[str], list[str]]] = {
    "bytes in words": (COLLECTIVE, ["64 megabytes"], ["--bytes", "megabytes", "64 MiB"]),
    "bytes as a rate": (COLLECTIVE, ["64 MB/s"], ["--bytes", "MB/s"]),
    "no bytes": (COLLECTIVE, ["0"], ["--bytes", "0"]),
    "negative bytes": (COLLECTIVE, ["-1 MB"], ["--bytes", "-1 MB"]),
    "nan bytes": (COLLECTIVE, ["nan"], ["--bytes", "nan"]),
    "too many ranks": (COLLECTIVE, ["1MB", "--ranks", "99999999"], ["99999999", "78,848"]),
    "no ranks": (COLLECTIVE, ["1MB", "--ranks", "0"], ["--ranks", "1"]),
    "stride too long": (COLLECTIVE, ["1MB", "--stride", "1000"], ["512", "1000", "78,848"]),
    "unknown library": (COLLECTIVE, ["1MB", "--library", "rcl"], ["--library", "'rcl'", "'rccl'"]),
    "unknown machine": (COLLECTIVE, ["1MB", "--machine", "fronter"], ["'fronter'", "'frontier'"]),
    "unknown kind": (COLLECTIVE, ["1MB", "--kind", "all_to_one"], ["--kind", "all_gather"]),
    "no rows": (GEMM, ["--m", "0"], ["--m", "1"]),
    "unknown mode": (GEMM, ["--mode", "TT"], ["--mode", "TN"]),
    "rows in words": (GEMM, ["--m", "many"], ["--m", "integer"]),
    "huge product": (GEMM, ["--m", "1" + "0" * 400], ["m"]),
    "unknown model": (["models"], ["gpt-321b"], ["gpt-321b", "'gpt-320b'"]),
    "unknown schema": (["schema"], ["jobs"], ["machine", "job"]),
    "unknown engine": (["simulate", "x.yaml"], ["--engine", "fast"], ["--engine", "folded"]),
    "unknown option": (["simulate", "x.yaml"], ["--jason"], ["--jason", "--json"]),
    "no job": (["simulate"], [], ["job"]),
    "too many workers": (["validate"], ["--workers", "9999"], ["--workers", "256"]),
}


@pytest.mark.parametrize("name", WRONG_QUESTIONS)
def test_wrong_question_is_refused(cli, name):
    question, wrong, needles = WRONG_QUESTIONS[name]
    message = cli.refused(*question, *wrong)
    assert [n for n in needles if n not in message] == [], message


def test_waiting_for_members_is_a_part_of_idle_only_where_nothing_else_is_under_way(cli):
    """A stage waits for messages while sums over its tensor ranks are on their way: that is exposed, not idle."""
    example = "examples/gpt-175b-megatron-a100-64.yaml"
    got = cli.json("simulate", example)
    assert sum(got["peers_by_axis"].values()) > got["idle_seconds"]
    out = cli("simulate", example)[0]
    assert "in it, and beside other communication, waiting for a group's last member" in out
    ranks = cli("simulate", cli.job, "--engine", "ranks")[0]
    assert "of it waiting for a group's last member" in ranks
