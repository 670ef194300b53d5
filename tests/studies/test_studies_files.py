"""Study files: what they stand for, and what is refused."""

from __future__ import annotations

import itertools
import json
import math
from pathlib import Path

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.studies.studies_files import TINY, write_study
from twin.description.load import with_value
from twin.description.problems import DescriptionError
from twin.strategies import load_job
from twin.studies.description import MAX_POINTS, load_study
from twin.studies.measured import own_measured
from twin.studies.points import points_of

AT_ONE = [{"at": {"seed": 1}, "step_seconds": 1.0, "source": "log"}]
BANDWIDTHS = {"machine.nic.bandwidth": ["10 GB/s", "20 GB/s"]}


def check(loaded, folder):
    own_measured(loaded.study.measured, points_of(loaded, folder))


def refused(path, **load):
    with pytest.raises(DescriptionError) as caught:
        check(load_study(path, **load), path.parent)
    return {p.path: p.message for p in caught.value.problems}


def measured_at(at):
    return [{"at": at, "step_seconds": 1.0, "source": "log"}]


@examples(0.4, derandomize=True)
@given(sizes=st.lists(st.integers(1, 4), min_size=1, max_size=3), rows=st.integers(0, 3))
def test_points_are_the_product_of_what_varies(tmp_path_factory, sizes, rows):
    """Every combination once, in the order of the file, and no other key of the job touched."""
    folder = tmp_path_factory.mktemp("study")
    keys = ["batch.sequences", "model.layers", "overlap.prefetch_depth"][: len(sizes)]
    values = [[16 * (i + 1) for i in range(n)] for n in sizes]
    listed = [{"seed": i, "name": f"row {i}"} for i in range(rows)]
    vary = dict(zip(keys, values, strict=True))
    path = write_study(folder, vary=vary, points=listed)
    points = points_of(load_study(path), folder)
    assert len(points) == math.prod(sizes) * max(1, rows)
    expected = itertools.product(listed or [{}], *values)
    for number, (point, (row, *combination)) in enumerate(zip(points, expected, strict=True), 1):
        assert point.number == number
        assert point.values == row | dict(zip(keys, combination, strict=True))
        changed = {"name": "question", **TINY, **row}
        for key, value in zip(keys, combination, strict=True):
            changed = with_value(changed, key, value)
        assert point.raw == changed


def test_values_may_be_named_and_may_be_mappings(tmp_path):
    path = write_study(
        tmp_path,
        vary={
            "degraded": {"sound": [], "one NIC": [{"node": 0, "nic": 0, "rate": 0.5}]},
            "grid": [{"data": 2, "z": 8}, {"data": 4, "z": 4}],
        },
    )
    points = points_of(load_study(path), tmp_path)
    assert [p.labels["degraded"] for p in points] == ["sound", "sound", "one NIC", "one NIC"]
    assert points[1].labels["grid"] == "{data: 4, z: 4}"
    assert load_job(points[3].raw).degraded[0].rate == 0.5


def test_the_base_job_may_be_a_file_with_a_machine_beside_it(tmp_path):
    """Paths are those of the file that names them, wherever the study is run from."""
    (tmp_path / "jobs").mkdir()
    (tmp_path / "jobs" / "mine.yaml").write_text("extends: frontier\nname: mine\n")
    job = TINY | {"machine": "mine.yaml"}
    (tmp_path / "jobs" / "base.yaml").write_text(yaml.safe_dump(job))
    path = write_study(tmp_path, job="jobs/base.yaml", vary=BANDWIDTHS)
    loaded = load_study(path)
    found = load_job(points_of(loaded, tmp_path)[1].raw)
    assert found.machine.nic.bandwidth_bytes_per_second == 20e9
    assert found.name == "base"
    before = loaded.digest
    (tmp_path / "jobs" / "mine.yaml").write_text("extends: frontier\nname: mine\nnodes: 100\n")
    assert load_study(path).digest != before


def test_a_study_is_the_same_from_every_directory(tmp_path, monkeypatch):
    (tmp_path / "mine.yaml").write_text("extends: frontier\nname: mine\n")
    write_study(tmp_path, vary={"machine": ["frontier", "mine.yaml"]})
    digests = set()
    for folder, path in (
        (tmp_path, "question.yaml"),
        (tmp_path.parent, f"{tmp_path.name}/question.yaml"),
        ("/", tmp_path / "question.yaml"),
    ):
        monkeypatch.chdir(folder)
        digests.add(load_study(Path(path)).digest)
    assert len(digests) == 1


def test_set_and_overrides_reach_every_point(tmp_path):
    path = write_study(tmp_path, vary=BANDWIDTHS, set={"recompute": False, "batch.sequences": 64})
    points = points_of(load_study(path, ["batch.sequences=16"]), tmp_path)
    assert [(p.raw["recompute"], p.raw["batch"]["sequences"]) for p in points] == [(False, 16)] * 2


def test_scaling_chooses_grids_and_sweeps_keep_them(tmp_path):
    vary = {"ranks": [16, 32]}
    scaling = load_study(write_study(tmp_path, study="strong_scaling", vary=vary))
    assert scaling.base["grid"] == "auto"
    assert scaling.base["batch"] == {"sequences": 32, "micro_sequences": "auto"}
    kept = load_study(write_study(tmp_path, study="strong_scaling", vary=vary, grid="keep"))
    assert kept.base["grid"] == load_study(write_study(tmp_path, vary=vary)).base["grid"]


@pytest.mark.parametrize(
    ("keys", "path", "words"),
    [
        ({"study": "weak"}, "study", "'weak_scaling'"),
        ({"vary": {}}, "vary", "nothing varies"),
        ({"vary": {"seed": []}}, "vary.seed", "no values"),
        ({"vary": {"seed": [1, 2, 1]}}, "vary.seed", "twice"),
        ({"vary": {"seed": [1]}, "points": [{"seed": 2}]}, "vary.seed", "also in points"),
        ({"points": [{}]}, "points.0", "empty"),
        ({"varry": {"seed": [1]}}, "varry", "did you mean 'vary'"),
        ({"vary": {"machine.nic.bandwith": ["1 GB/s"]}}, "machine.nic.bandwith", "did you mean 'bandwidth'"),
        ({"vary": {"machin.nic": [1]}}, "machin", "did you mean 'machine'"),
        ({"vary": {"seed": [1], "rnaks": [8]}}, "rnaks", "did you mean 'ranks'"),
        ({"vary": {"model.layers.deep": [1]}}, "vary.model.layers.deep", "has no keys below"),
        (
            {"vary": {"seed": list(range(200)), "model.layers": list(range(1, 60))}},
            "vary",
            f"more than the {MAX_POINTS:,}",
        ),
        ({"vary": {"seed": [1]}, "x": "ranks"}, "x", "does not vary"),
        ({"vary": {"seed": [1]}, "set": {"modl": 1}}, "modl", "did you mean 'model'"),
        ({"vary": {"seed": [1]}, "seeds": 5}, "seeds", "engine: ranks"),
        ({"study": "weak_scaling", "vary": {"seed": [1]}}, "vary", "vary ranks"),
        ({"study": "target", "vary": {"seed": [1]}}, "target", "missing"),
        ({"study": "target", "vary": {"seed": [1]}, "target": {"tokens": "2 T"}}, "target.tokens", "tokens"),
        ({"study": "target", "vary": {"seed": [1]}, "target": {"tokens": -1}}, "target.tokens", "greater than 0"),
        ({"study": "target", "vary": {"seed": [1]}, "target": {"tokens": 1.1e18}}, "target.tokens", ""),
        (
            {"study": "target", "vary": {"seed": [1]}, "target": {"tokens": 1, "price_per_gpu_hour": math.inf}},
            "target.price_per_gpu_hour",
            "finite",
        ),
        (
            {"vary": {"seed": [1]}, "measured": [{"at": {"seed": 1}, "step_seconds": 1e-10, "source": "log"}]},
            "measured.0.step_seconds",
            "greater than or equal",
        ),
        ({"vary": {"seed": [1]}, "measured": measured_at({"sed": 1})}, "measured.0.at.sed", "did you mean 'seed'"),
        ({"vary": {"seed": [1, 2]}, "measured": measured_at({"seed": 3})}, "measured.0.at", "is none of"),
        (
            {"vary": {"seed": [1], "recompute": [True, False]}, "measured": measured_at({"seed": 1})},
            "measured.0.at",
            "name it by recompute too",
        ),
        ({"vary": {"seed": [1, 2]}, "measured": measured_at({})}, "measured.0.at", "is 2 of"),
        ({"vary": {"seed": {"a": 1, "b": 2}}, "measured": measured_at({"seed": 3})}, "measured.0.at", "seed: a, b"),
        (
            {"vary": {"seed": [1]}, "measured": [*measured_at({"seed": 1}), *measured_at({"seed": 1})]},
            "measured.1.at",
            "of measured.0",
        ),
        ({"study": "sensitivity", "vary": {"seed": [1]}}, "vary", "use parameters"),
        ({"study": "sensitivity", "parameters": []}, "parameters", "is empty"),
        (
            {"study": "sensitivity", "parameters": ["machine.nic.bandwith"]},
            "parameters",
            "did you mean 'machine.nic.bandwidth'",
        ),
        ({"study": "sensitivity", "parameters": {"seed": [1, 2, 3]}}, "parameters.seed", "two values"),
        ({"study": "sensitivity", "parameters": {"sed": [1, 2]}}, "sed", "did you mean 'seed'"),
        ({"study": "sensitivity", "change": 1.5}, "change", ""),
    ],
)
def test_impossible_studies_are_refused(tmp_path, keys, path, words):
    found = refused(write_study(tmp_path, **keys))
    assert words in found.get(path, ""), found


def test_a_base_job_that_is_not_there_is_refused(tmp_path):
    path = write_study(tmp_path, job="none.yaml", vary={"seed": [1]})
    assert "no such file" in next(iter(refused(path).values()))


def test_every_example_is_a_study():
    import twin

    examples = sorted((Path(twin.__file__).parents[1] / "examples" / "studies").glob("*.yaml"))
    assert len(examples) >= 5
    for example in examples:
        assert load_study(example).study.study
        assert example.read_text(encoding="utf-8").startswith("# ")


def test_a_model_of_a_directory_decides_the_points(tmp_path, monkeypatch):
    """Half of a study of the old model and half of a new one would be one table."""
    shape = {"model_type": "gpt2", "n_layer": 2, "n_embd": 64, "n_head": 4, "n_positions": 256, "vocab_size": 512}
    config = shape | {"activation_function": "gelu_new", "attn_pdrop": 0.0, "resid_pdrop": 0.0, "embd_pdrop": 0.0}
    (tmp_path / "models" / "mine").mkdir(parents=True)
    (tmp_path / "studies").mkdir()
    file = tmp_path / "models" / "mine" / "config.json"
    file.write_text(json.dumps(config), encoding="utf-8")
    job = TINY | {"model": {"preset": "hf:../models/mine", "sequence": 256}}
    study = write_study(tmp_path / "studies", job=job, vary={"seed": [1, 2]})
    before = load_study(study)
    assert before.base["model"]["preset"] == f"hf:{file.parent}"
    monkeypatch.chdir(tmp_path / "models")
    assert load_study(study).digest == before.digest
    assert load_job(points_of(before, study.parent)[0].raw).model.layers == 2
    file.write_text(json.dumps(config | {"n_layer": 3}), encoding="utf-8")
    assert load_study(study).digest != before.digest


def test_what_is_trained_on_is_named_from_anywhere_and_is_no_part_of_the_points(tmp_path):
    """A text in the study's folder: its points are written as jobs of their own, elsewhere."""
    (tmp_path / "text.yaml").write_text("- none of: ours", encoding="utf-8")
    job = TINY | {"train": {"data": "./text.yaml"}}
    study = write_study(tmp_path, job=job, vary={"seed": [1]})
    before = load_study(study)
    assert before.base["train"]["data"] == str(tmp_path / "text.yaml")
    (tmp_path / "text.yaml").write_text("- others", encoding="utf-8")
    assert load_study(study).digest == before.digest


def test_a_measured_point_is_named_by_value_or_by_name_and_the_exact_one_is_meant(tmp_path):
    points = [{"ranks": 16}, {"ranks": 16, "seed": 1}]
    loaded = load_study(write_study(tmp_path, points=points, measured=measured_at({"ranks": 16})))
    assert list(own_measured(loaded.study.measured, points_of(loaded, tmp_path))) == [1]
    named = {"ranks": {"small": 16, "large": 32}}
    for at in ({"ranks": 32}, {"ranks": "large"}):
        loaded = load_study(write_study(tmp_path, vary=named, measured=measured_at(at)))
        assert list(own_measured(loaded.study.measured, points_of(loaded, tmp_path))) == [2]


def test_a_job_is_no_study_and_a_study_no_job():
    """Each has the other's keys missing and its own unknown: forty names, and no word of what it is."""
    with pytest.raises(DescriptionError, match="this is a job; use `fourfold simulate`"):
        load_study(Path("examples/tiny-gpt.yaml"))
    with pytest.raises(DescriptionError, match="this is a study; use `fourfold study`"):
        load_job("examples/studies/weak-scaling.yaml")
