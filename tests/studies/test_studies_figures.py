"""What rows and figures of a study say where names, machines or published runs could mislead."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.offloaded_job import OFFLOADED
from tests.studies.studies_files import TINY, write_study
from twin.cli import main
from twin.description.load import load_machine
from twin.engine.simulate import simulate
from twin.strategies import load_job
from twin.studies.compute import Answer
from twin.studies.derived import rows_of
from twin.studies.figures import pictures
from twin.studies.measured import measured_columns
from twin.studies.points import Point, with_values
from twin.studies.results import facts_of, results_of
from twin.studies.run import StudyRun, Where, run_study
from twin.studies.sensitivity import levers
from twin.studies.table import FIGURES, cell
from twin.validate.published import SEQUENCES, runs


def answers(tmp_path: Path, **keys: Any) -> StudyRun:
    return run_study(write_study(tmp_path, **keys), tmp_path / "out", Where())


def test_named_values_scale_as_the_values_do(tmp_path):
    """Names are shown; efficiency and the axis of ranks are those of the same study without names."""
    plain, named = [8, 16, 3], {"small": 8, "large": 16, "odd": 3}
    (tmp_path / "a").mkdir()
    run = answers(tmp_path / "a", study="strong_scaling", vary={"ranks": plain})
    expected = rows_of(run)
    run = answers(tmp_path, study="strong_scaling", vary={"ranks": named})
    results = results_of(run)
    for row, same, name in zip(results.rows, expected, named, strict=True):
        assert row["ranks"] == same["ranks"] == named[name]
        assert row["ranks_label"] == name
        assert row.get("efficiency") == same.get("efficiency")
        assert [cell(c, row) for c in results.tables[0].columns if c.key == "ranks"] == [name]
    drawn = pictures(run.loaded.study, results.rows, [])
    assert drawn[0].data[0]["x"] == [8, 16]


def test_the_median_error_of_two_is_their_mean(tmp_path):
    vary = {"recompute": [True, False]}
    run = answers(tmp_path, vary=vary)
    rows = rows_of(run)
    for row, error in zip(rows, (0.1, -0.3), strict=True):
        row["error"] = error
    assert ("error against measured", "median 20.0% over 2 points") in facts_of(run, rows)


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"grid": {"data": 32, "z": 16}, "seed": 3, "name": "mine", "train": {"steps": 1}}, True),
        ({"stragglers": [{"rank": 1, "slowdown": 2}]}, False),
        ({"degraded": [{"node": 0, "nic": 0, "rate": 0.5}]}, False),
        ({"placement": {"groups": 8}}, False),
        ({"overlap": {"all_gather": False}}, False),
        ({"recompute": False}, False),
        ({"library": "pccl"}, False),
        ({"attention": "plain"}, False),
        ({"machine": {"extends": "frontier", "name": "frontier", "nic": {"bandwidth": "1 GB/s"}}}, False),
    ],
)
def test_a_published_run_stands_beside_its_own_job_alone(changes, same):
    run = next(r for r in runs()["weak_scaling"] if (r["machine"], r["ranks"]) == ("frontier", 512))
    job = {"model": run["model"], "machine": "frontier", "ranks": 512, "batch": {"sequences": SEQUENCES}}
    figures = {
        "machine": "frontier",
        "model": run["model"],
        "ranks": 512,
        "step_seconds": 1.0,
        "tokens_per_step": SEQUENCES * 2048,
    }
    found = measured_columns("published", Point(1, {}, {}, job | changes), figures)
    assert found.get("measured_step_seconds") == (run["seconds"] if same else None)


def test_sensitivity_leaves_out_what_the_step_cannot_depend_on():
    """Of the nodes' failures, the devices' power and the engine's draws none is moved unasked."""
    job = load_job(TINY)
    keys = {lever.key for lever in levers(job, None, 0.2)}
    drawn = {lever.key for lever in levers(job, None, 0.2, draws=True)} - keys
    assert not any("reliability" in k or k.endswith((".idle", ".busy")) for k in keys | drawn)
    assert drawn <= {"machine.variation.compute_jitter", "machine.variation.network_noise"}
    assert drawn
    assert levers(job, ["machine.device.idle"], 0.2)[0].sides


def test_sensitivity_moves_shares_of_the_memorys_rate_and_under_a_cap_what_decides_the_clock(tmp_path):
    """A kind of work with a share of its own does not follow that of all others; a cap's clock follows from watts."""
    job = load_job(TINY)
    sides = {lever.key: lever.sides for lever in levers(job, None, 0.2)}
    share = "machine.device.memory_shares.adamw"
    assert {k for k in sides if "memory_shares" in k} == {
        f"machine.device.memory_shares.{kind}" for kind in job.machine.device.memory_shares
    }
    moved = [
        simulate(load_job(with_values(TINY, side.settings, tmp_path, "parameters"))).step_seconds
        for side in sides[share]
    ]
    assert moved[0] > simulate(job).step_seconds > moved[1]
    assert not any(".power." in key for key in sides)
    capped = {lever.key for lever in levers(load_job(TINY | {"power_cap": "200 W"}), None, 0.2)}
    assert capped - sides.keys() == {
        f"machine.device.power.{name}"
        for name in ("context", "products", "others", "memory", "links", "knee_share", "voltage_ratio")
    }


def test_caveats_of_modified_machines_are_told(tmp_path):
    run = answers(tmp_path, vary={"machine.nic.bandwidth": ["10 GB/s", "20 GB/s"]})
    caveats = load_machine("frontier").caveats
    assert caveats
    assert results_of(run).caveats == {"frontier (modified)": f"Inherited from frontier: {caveats}"}


def test_a_crashed_point_ends_the_command_with_one(tmp_path, monkeypatch, capsys):
    import twin.studies.run as run_module

    def broken(task: Any) -> Answer:
        return Answer(number=task["number"], status="crashed", reason="x", figures={}, job={}, wall_seconds=0.0)

    study = write_study(tmp_path, vary={"seed": [0]})
    for work, code in ((broken, 1), (run_module.compute_point, 0)):
        monkeypatch.setattr(run_module, "compute_point", work)
        with pytest.raises(SystemExit) as ended:
            main(["study", str(study), "--out", str(tmp_path / "out"), "--json"])
        assert (ended.value.code or 0) == code
        assert json.loads(capsys.readouterr().out)["crashed"] == code


def test_nothing_is_minus_nothing():
    [change] = [column for column in FIGURES if column.key == "change"]
    assert [change.show(v) for v in (-1e-9, 0.0, -0.0004, -0.0006, 0.25)] == [
        "+0.0%",
        "+0.0%",
        "+0.0%",
        "-0.1%",
        "+25.0%",
    ]


def test_where_the_step_goes_is_all_of_it_with_states_beyond_the_devices(tmp_path):
    """What is exposed of copies and of the host's updates was in the step, and in no bar: two thirds of this one."""
    run = answers(tmp_path, job=OFFLOADED, points=[{"name": "host"}])
    (row,) = rows_of(run)
    (drawn,) = [p for p in pictures(run.loaded.study, [row], []) if p.title == "Where the step goes"]
    assert sum(bar["y"][0] for bar in drawn.data) == pytest.approx(row["step_seconds"], rel=1e-9)
    assert len({bar["marker"]["color"] for bar in drawn.data}) == len(drawn.data)


def test_sensitivity_moves_a_cores_products_or_tiles_not_both():
    """What a device whose products were measured on a core says of tiles decides nothing."""
    constant = {"kind": "assumed", "source": "TEST: by hand"}
    library = {"call": {"value": "10 us", **constant}, "peak_share": {"value": 0.5, **constant}}
    core = {"operands": {"value": "20 GB/s", **constant}, "libraries": {"pytorch": library}}
    laptops = {"extends": "laptop", "nodes": 2}
    machine = {**laptops, "device": {"extends": "cpu-core", "gemm": {"core": core}}}
    tiled, measured = (load_job(TINY | {"machine": of}) for of in (laptops, machine))
    before, after = ({lever.key for lever in levers(job, None, 0.2)} for job in (tiled, measured))
    gemm = "machine.device.gemm."
    assert after - before == {f"{gemm}core.operands"} | {
        f"{gemm}core.libraries.pytorch.{name}" for name in ("call", "peak_share")
    }
    assert f"{gemm}tile" in before
    for key in before - after:
        assert key.startswith(gemm)
        lever = levers(measured, [key], 0.2)[0]
        for side in lever.sides:
            varied = load_job(with_values(TINY | {"machine": machine}, side.settings, Path(), "parameters"))
            assert simulate(varied).step_seconds == simulate(measured).step_seconds, key
