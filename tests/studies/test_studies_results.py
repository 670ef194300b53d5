"""What a study answers: against `simulate`, closed forms, and the published points themselves."""

from __future__ import annotations

import csv
import json
import math
import shutil
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import twin
from tests.studies.studies_files import TINY, write_study
from twin.cli import main
from twin.cost.memory import memory_use
from twin.engine.every_rank import simulate_every_rank
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.strategies import load_job
from twin.studies.derived import effects, rows_of
from twin.studies.figures import pictures
from twin.studies.results import facts_of, results_of, write_results
from twin.studies.run import StudyRun, Where, run_study

EXAMPLES = Path(twin.__file__).parents[1] / "examples"


def answers(tmp_path: Path, *, workers: int = 1, **keys) -> StudyRun:
    return run_study(write_study(tmp_path, **keys), tmp_path / "out", Where(workers=workers))


def command(*arguments: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(["study", *arguments])
    return int(ended.value.code or 0)


@pytest.mark.process
@pytest.mark.quick
def test_a_point_is_what_simulate_says(tmp_path, capsys):
    """The sweep's figures, the job files' figures and `simulate --json` of each: all the same."""
    study = write_study(tmp_path, vary={"machine.nic.bandwidth": ["1 GB/s", "25 GB/s"], "recompute": [True, False]})
    assert command(str(study), "--out", str(tmp_path / "out"), "--json") == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["done"] == answer["computed"] == 4
    for row in answer["points"]:
        job = load_job(
            TINY,
            [f"machine.nic.bandwidth={row['machine.nic.bandwidth']}", f"recompute={str(row['recompute']).lower()}"],
        )
        assert row["step_seconds"] == simulate(job).step_seconds
        with pytest.raises(SystemExit):
            main(["simulate", str(tmp_path / "out" / "jobs" / f"{row['point']:05d}.yaml"), "--json"])
        printed = json.loads(capsys.readouterr().out)
        for key in ("step_seconds", "exposed_communication_seconds", "energy_joules", "grid_z"):
            assert row[key] == printed.get(key, printed["grid"]["z"])
    table = pq.read_table(tmp_path / "out" / "points.parquet").to_pylist()
    assert [r["step_seconds"] for r in table] == [r["step_seconds"] for r in answer["points"]]
    with (tmp_path / "out" / "table.csv").open(newline="") as file:
        read = list(csv.DictReader(file))
    assert [float(r["step_seconds"]) for r in read] == [r["step_seconds"] for r in answer["points"]]


@pytest.mark.process
@pytest.mark.quick
def test_processes_change_nothing(tmp_path):
    vary = {"model.layers": [1, 2, 3, 4], "seed": [0, 1]}
    one = answers(tmp_path, vary=vary)
    (tmp_path / "b").mkdir()
    two = answers(tmp_path / "b", vary=vary, workers=2)
    for number, answer in one.answers.items():
        assert answer["figures"] == two.answers[number]["figures"]


@pytest.mark.process
def test_impossible_points_are_rows_with_their_reason(tmp_path, capsys):
    study = write_study(tmp_path, vary={"grid.z": [8, 7, 16], "batch.sequences": [32, 1 << 20]})
    assert command(str(study), "--out", str(tmp_path / "out")) == 0
    shown = capsys.readouterr().out
    rows = pq.read_table(tmp_path / "out" / "points.parquet").to_pylist()
    assert [row["status"] for row in rows] == ["done", *["refused"] * 5]
    assert "grid" in rows[2]["reason"]
    assert "more than the 40,000 blocks" in rows[1]["reason"]
    assert "point 3 refused" in shown


def test_values_that_are_no_numbers_are_refused_and_told_as_text(tmp_path, capsys):
    """JSON has no word for them."""
    study = write_study(tmp_path, vary={"energy.pue": [math.nan, math.inf, 1.5]})
    assert command(str(study), "--out", str(tmp_path / "out"), "--workers", "1", "--json") == 0
    points = json.loads(capsys.readouterr().out)["points"]
    assert [point["energy.pue"] for point in points] == ["nan", "inf", 1.5]
    assert [point["status"] for point in points] == ["refused", "refused", "done"]


@pytest.mark.process
def test_a_study_of_which_nothing_is_possible_still_ends(tmp_path, capsys):
    study = write_study(tmp_path, study="strong_scaling", job=TINY | {"model": "gpt-640b"}, vary={"ranks": [1, 2]})
    assert command(str(study), "--out", str(tmp_path / "out"), "--json") == 1
    assert json.loads(capsys.readouterr().out)["refused"] == 2
    assert "<h2>" in (tmp_path / "out" / "study.html").read_text(encoding="utf-8")


def test_a_job_that_does_not_fit_says_so(tmp_path):
    run = answers(tmp_path, job=TINY | {"model": "gpt-320b"}, vary={"seed": [0, 1]})
    assert run.answers[1]["status"] == "done"
    assert "does not fit into memory" in run.answers[1]["reason"]


def test_efficiency_of_strong_scaling(tmp_path):
    """Speed-up and efficiency from their definitions; the smallest feasible point is the measure."""
    run = answers(tmp_path, study="strong_scaling", vary={"ranks": [32, 8, 16, 3]})
    rows = {row["ranks"]: row for row in rows_of(run)}
    first = rows[8]["step_seconds"]
    for ranks in (8, 16, 32):
        step = rows[ranks]["step_seconds"]
        assert rows[ranks]["speedup"] == first / step
        assert rows[ranks]["efficiency"] == pytest.approx(first * 8 / (step * ranks), rel=1e-12)
    assert rows[3]["status"] == "refused"
    assert "efficiency" not in rows[3]
    step_time = next(each for each in pictures(run.loaded.study, rows_of(run), ()) if each.title == "Step time")
    assert len(step_time.layout["yaxis"]["tickvals"]) >= 3, "of less than a decade, without a power of ten"


def test_efficiency_is_measured_by_what_fits(tmp_path):
    """The smallest job would be the measure, but no rank has the memory for it: it has no efficiency."""
    points = [{"ranks": ranks, "grid": {"data": 2, "z": ranks // 2}} for ranks in (2, 4, 8)]
    needed = [memory_use(load_job(TINY | point)).per_rank_bytes for point in points]
    assert needed[0] > needed[1]
    room = (needed[0] + needed[1]) / 2
    memory = {"machine.device.memory": f"{room + 1e6:.0f} B", "machine.device.reserved_memory": "1 MB"}
    run = answers(tmp_path, study="strong_scaling", points=points, set=memory, grid="keep")
    small, middle, large = rows_of(run)
    assert (small["memory_fits"], middle["memory_fits"]) == (False, True)
    assert "efficiency" not in small
    assert middle["efficiency"] == middle["speedup"] == 1.0
    assert large["efficiency"] == pytest.approx(middle["step_seconds"] * 4 / (large["step_seconds"] * 8), rel=1e-12)
    results = results_of(run)
    facts = dict(results.facts)
    assert facts["points"] == "2 of 3 possible"
    assert facts["computed all the same"] == "1 more that do not fit into memory"
    step_time = next(each for each in pictures(run.loaded.study, results.rows, ()) if each.title == "Step time")
    assert "Crossed: does not fit" in step_time.note
    assert [line["x"] for line in step_time.data if line["name"] == "does not fit"] == [[2]]
    write_results(results)


def test_where_no_energy_is_known_there_is_no_importance_and_it_is_said(tmp_path):
    """The laptop's processor does not say what it draws by kind of work."""
    job = TINY | {"ranks": 8, "grid": {"z": 8}}
    vary = {"machine": ["frontier", "laptop"], "recompute": [True, False]}
    run = answers(tmp_path, job=job, vary=vary, objective="energy_joules_per_token")
    results = results_of(run)
    assert results.importance is None
    assert dict(results.facts)["no energy_joules_per_token"].startswith("2 points")
    assert "(laptop)" in dict(results.facts)["no energy_joules_per_token"]


def test_efficiency_of_weak_scaling_is_work_per_rank(tmp_path):
    points = [{"ranks": 8, "model.layers": 2}, {"ranks": 16, "model.layers": 4}]
    rows = rows_of(answers(tmp_path, study="weak_scaling", points=points))
    rates = [row["hardware_flops_per_second"] / row["ranks"] for row in rows]
    assert rows[1]["efficiency"] == pytest.approx(rates[1] / rates[0], rel=1e-12)


def test_time_energy_hours_and_cost_to_a_target(tmp_path):
    run = answers(
        tmp_path,
        study="target",
        vary={"ranks": [16]},
        grid="keep",
        target={"tokens": "1 Mtokens", "price_per_gpu_hour": 1.5},
    )
    [row] = rows_of(run)
    steps = math.ceil(1e6 / (32 * 256))
    step = simulate(load_job(TINY)).step_seconds
    assert row["target_steps"] == steps == 123
    assert row["target_seconds"] == pytest.approx(steps * step, rel=1e-12)
    assert row["target_gpu_hours"] == pytest.approx(steps * step * 16 / 3600, rel=1e-12)
    assert row["target_cost"] == pytest.approx(1.5 * steps * step * 16 / 3600, rel=1e-12)
    assert row["target_energy_joules"] == pytest.approx(steps * row["energy_joules"], rel=1e-12)


def test_energy_of_devices_is_not_that_of_the_facility(tmp_path):
    """Each boundary has a column of its own: 2 nodes of 8 GCDs draw 1 kW besides these, and 1.5 is the PUE."""
    job = TINY | {"energy": {"node": "1 kW", "pue": 1.5}}
    run = answers(tmp_path, job=job, vary={"seed": [0]}, target={"tokens": "1 Mtokens"})
    (row,) = rows_of(run)
    devices = report(simulate(load_job(TINY))).energy_joules
    nodes = devices + 2 * 1000.0 * row["step_seconds"]
    assert row["energy_joules"] == row["energy_devices_joules"] == pytest.approx(devices, rel=1e-12)
    assert row["energy_nodes_joules"] == pytest.approx(nodes, rel=1e-12)
    assert row["energy_facility_joules"] == pytest.approx(1.5 * nodes, rel=1e-12)
    assert row["target_energy_joules"] == pytest.approx(row["target_steps"] * devices, rel=1e-12)
    assert row["target_facility_energy_joules"] == pytest.approx(row["target_steps"] * 1.5 * nodes, rel=1e-12)


def test_sensitivity_moves_one_parameter_at_a_time(tmp_path):
    run = answers(
        tmp_path,
        study="sensitivity",
        change=0.5,
        parameters=["machine.nic.bandwidth", "machine.device.idle", "machine.fabric.links", "machine.nic.efficiency"],
    )
    found = {effect.parameter: effect for effect in effects(rows_of(run))}
    base = simulate(load_job(TINY))
    for factor, side in ((0.5, "low_seconds"), (1.5, "high_seconds")):
        rate = 25e9 * factor
        moved = simulate(load_job(TINY, [f"machine.nic.bandwidth={rate}"])).step_seconds
        assert getattr(found["machine.nic.bandwidth"], side) == moved
        links = [
            {
                "devices": list(link.devices),
                "bandwidth": {
                    "value": float(link.bandwidth_bytes_per_second) * factor,
                    "kind": "assumed",
                    "source": "test",
                },
            }
            for link in base.job.machine.fabric.links
        ]
        job = TINY | {"machine": {"extends": "frontier", "fabric": {"links": links}}}
        assert getattr(found["machine.fabric.links"], side) == simulate(load_job(job)).step_seconds
    assert found["machine.device.idle"].swing_seconds == 0
    assert found["machine.nic.efficiency"].high_value == "1"  # a share stays one
    assert all(effect.base_seconds == base.step_seconds for effect in found.values())


def test_sensitivity_by_kind_leaves_the_others_alone(tmp_path):
    run = answers(tmp_path, study="sensitivity", change={"assumed": 0.3})
    machine = load_job(TINY).machine
    moved = {point.labels["parameter"] for point in run.points[1:]}
    assert "machine.network.group_latency" in moved
    assert machine.network.group_latency_seconds.kind == "assumed"
    assert "machine.nic.latency" not in moved
    assert machine.nic.latency_seconds.kind == "measured"


def test_sensitivity_settles_the_grid_once(tmp_path):
    run = answers(
        tmp_path,
        study="sensitivity",
        job=TINY | {"grid": "auto"},
        parameters={"machine.nic.bandwidth": ["1 GB/s", "100 GB/s"]},
    )
    grids = {tuple(a["figures"][f"grid_{x}"] for x in "zyx") for a in run.answers.values()}
    assert len(grids) == 1


def test_seeds_give_percentiles(tmp_path):
    run = answers(tmp_path, vary={"recompute": [True]}, engine="ranks", seeds=5)
    figures = run.answers[1]["figures"]
    spread = simulate_every_rank(load_job(TINY), seeds=5, ranks=[]).distribution()["seeds"]
    assert figures["seeds"] == 5
    for mark in ("p10", "p50", "p90"):
        assert figures[f"step_seconds_{mark}"] == spread["step_seconds"][mark]


def test_figures_of_a_point_are_those_of_the_draw_of_median_step(tmp_path):
    """Whatever draw the job's own seed is: each is simulated by itself here, and the third of five taken."""
    run = answers(tmp_path, vary={"recompute": [True]}, engine="ranks", seeds=5)
    draws = [simulate_every_rank(load_job({**TINY, "seed": seed}), ranks=[]).figures for seed in range(5)]
    middle = sorted(draws, key=lambda one: one.step_seconds)[2]
    assert middle is not draws[0]
    figures = run.answers[1]["figures"]
    assert figures["step_seconds"] == figures["step_seconds_p50"] == middle.step_seconds
    assert figures["compute_seconds"] == middle.compute_seconds
    assert figures["hardware_flops_per_second"] == middle.hardware_flops_per_second
    assert ("seeds", "5 draws a point; figures are those of the draw of median step") in facts_of(run, rows_of(run))


@pytest.mark.process
def test_published_points_stand_beside(tmp_path, capsys):
    """Criterion 4, with the smallest point of each machine: the paper's figures, as printed there."""
    study = tmp_path / "weak.yaml"
    shutil.copy(EXAMPLES / "studies" / "weak-scaling.yaml", study)
    text = study.read_text().splitlines()
    study.write_text("\n".join(line for line in text if "ranks:" not in line or "ranks: 512," in line))
    assert command(str(study), "--out", str(tmp_path / "out"), "--json") == 0
    rows = json.loads(capsys.readouterr().out)["points"]
    measured = {row["machine"]: row["measured_step_seconds"] for row in rows}
    assert measured == {"perlmutter": 9.03, "frontier": 17.74}  # arXiv 2502.08145, figure 6
    for row in rows:
        assert row["error"] == pytest.approx(row["step_seconds"] / row["measured_step_seconds"] - 1)


def test_own_measured_points_stand_beside(tmp_path):
    measured = [{"at": {"recompute": False}, "step_seconds": 2.0, "source": "my log"}]
    rows = rows_of(answers(tmp_path, vary={"recompute": [True, False]}, measured=measured))
    assert "measured_step_seconds" not in rows[0]
    assert rows[1]["measured_source"] == "my log"


@pytest.mark.process
def test_the_page_escapes_what_the_file_says(tmp_path):
    evil = "</script><script>alert(1)</script><b>%DATA%"
    study = write_study(tmp_path, title=evil, vary={"seed": {f"one {evil}": 1, "two": 2}})
    assert command(str(study), "--out", str(tmp_path / "out")) == 0
    page = (tmp_path / "out" / "study.html").read_text(encoding="utf-8")
    assert "<script>alert" not in page
    assert "<b>%DATA%" not in page
    assert 'src="http' not in page
    assert "displayModeBar: false" in page


def test_every_kind_of_study_is_drawn(tmp_path):
    """All examples' pictures refer to points that are there."""
    kinds = {
        "sweep": {"vary": {"seed": [1, 2], "recompute": [True, False]}},
        "weak_scaling": {"points": [{"ranks": 8, "model.layers": 2}, {"ranks": 16, "model.layers": 4}]},
        "strong_scaling": {"vary": {"ranks": [8, 16]}},
        "target": {"vary": {"ranks": [8, 16]}, "target": {"tokens": 1e9}},
        "sensitivity": {"parameters": {"machine.nic.bandwidth": ["1 GB/s", "100 GB/s"]}},
    }
    for kind, keys in kinds.items():
        (tmp_path / kind).mkdir()
        run = answers(tmp_path / kind, study=kind, **keys)
        rows = rows_of(run)
        found = effects(rows) if kind == "sensitivity" else []
        drawn = pictures(run.loaded.study, rows, found)
        assert drawn
        assert all(picture.title and picture.data for picture in drawn)
        assert json.dumps([p.data for p in drawn], allow_nan=False)
