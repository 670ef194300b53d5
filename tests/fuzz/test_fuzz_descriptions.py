"""Job, machine and study files that are nearly right."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import strategies as st

from tests.fuzz.harness import cases, fuzz, guarded, survives, tree
from tests.fuzz.mutations import as_json, as_yaml, damaged, mutated, texts
from twin.cost.memory import memory_use
from twin.description.job import Job
from twin.description.load import apply_override, load_machine
from twin.description.problems import DescriptionError
from twin.engine.report import as_json as figures_of
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.goodput.long_run import plan_of
from twin.goodput.predict import predict
from twin.goodput.run import Policy
from twin.strategies import load_job
from twin.studies.description import load_study
from twin.studies.points import points_of

ROOT = Path(__file__).parents[2]
MACHINES = ["frontier", "perlmutter", "alps", "dgx-h100", "laptop"]
JOB = {
    "name": "fuzzed",
    "model": {
        "layers": 2,
        "hidden": 64,
        "heads": 4,
        "sequence": 32,
        "vocabulary": 128,
        "activation": "swiglu",
        "positions": "rotary",
    },
    "machine": {"extends": "frontier", "nic": {"bandwidth": "25 GB/s"}, "device": {"memory": "64 GB"}},
    "ranks": 16,
    "grid": {"data": 2, "z": 2, "y": 2, "x": 2},
    "batch": {"sequences": 16, "micro_sequences": 2},
    "precision": "bf16",
    "recompute": True,
    "cache_gathered_layers": 1,
    "gather_unit": "block",
    "library": "rccl",
    "overlap": {
        "all_reduce": True,
        "reduce_scatter": True,
        "all_gather": True,
        "prefetch_depth": 2,
        "scatters_in_flight": 3,
    },
    "data_reduction": {"mode": "overlapped", "bucket_bytes": 1e6},
    "attention": "plain",
    "dropout": 0.1,
    "stragglers": [{"rank": 3, "slowdown": 1.5}],
    "degraded": [{"node": 0, "nic": 1, "rate": 0.5}],
    "placement": {"groups": 1, "order": "blocks"},
    "seed": 1,
    "train": {"steps": 5},
}
MAX_OPS = 400
"""Micro-steps × layers that a case simulates; larger steps are no other code."""
MAX_RANKS = 4096


def small(job: Job) -> bool:
    """Whether its step is simulated in a moment."""
    if job.grid == "auto" or job.batch.micro_sequences == "auto" or job.ranks > MAX_RANKS:
        return False
    return job.micro_steps * job.model.layers <= MAX_OPS


def use(job: Job) -> Any:
    """Do with a job what commands do."""
    if job.grid != "auto" and job.batch.micro_sequences != "auto":
        memory_use(job)
    if not small(job):
        return None
    simulation = simulate(job)
    figures_of(simulation, report(simulation), 0.0)
    return simulation


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "frontier.yaml").write_text("extends: frontier\nnodes: 2\n")
    (tmp_path / "loop.yaml").write_text("extends: ./loop.yaml\n")
    (tmp_path / "link.yaml").symlink_to("/dev/zero")
    (tmp_path / "folder.yaml").mkdir()
    return tmp_path


@cases(60, 2500)
def test_job_files(count: int, place: Path) -> None:
    path = place / "job.yaml"

    def check(text: bytes) -> None:
        path.write_bytes(text)
        before = tree(place)
        survives(lambda: use(load_job(path)))
        assert tree(place) == before

    fuzz(count, st.one_of(texts(JOB, as_json), texts(JOB, as_yaml)), check)


@cases(40, 1000)
def test_jobs_of_runs(count: int) -> None:
    """As manifests hold them: every number of the machine with its kind and source."""
    full = load_job(JOB).model_dump(mode="json", by_alias=True)
    fuzz(
        count, mutated(full), lambda raw: survives(lambda: use(load_job(raw if isinstance(raw, dict) else {"a": raw})))
    )


@cases(40, 1500)
def test_machine_files(count: int, place: Path) -> None:
    path = place / "machine.yaml"
    texts_of = [(ROOT / f"topologies/{name}.yaml").read_bytes() for name in MACHINES]
    whole = [yaml.safe_load(text) for text in texts_of]
    machines = st.one_of(
        st.sampled_from(whole).flatmap(mutated).map(as_json),
        st.sampled_from(texts_of).flatmap(damaged),
        texts({"extends": "frontier", "device": {"extends": "mi210", "memory": "1 GB"}, "nodes": 4}, as_yaml),
        st.sampled_from(["./loop.yaml", "./link.yaml", "./folder.yaml", "./none.yaml", "x" * 5000 + ".yaml"]).map(
            lambda name: as_json({"extends": name})
        ),
    )

    def check(text: bytes) -> None:
        path.write_bytes(text)

        def load() -> Any:
            machine = load_machine(path)
            job = {
                **JOB,
                "machine": machine.model_dump(mode="json", by_alias=True),
                "library": None,
                "degraded": [],
                "placement": "contiguous",
            }
            return use(load_job(job))

        survives(load)

    fuzz(count, machines, check)


SETTINGS = st.one_of(
    st.sampled_from(
        [
            "machine",
            "ranks",
            "grid",
            "grid.z",
            "machine.nic",
            "machine.nic.bandwidth",
            "model.layers",
            "a",
            "stragglers.0.rank",
            "stragglers.9.rank",
            "machine.device",
            "machine.reliability.restart",
            "",
        ]
    ),
    st.text(max_size=20),
    st.just("a." * 3000 + "a"),
)


@cases(40, 600)
def test_overrides(count: int) -> None:
    value = st.one_of(st.text(max_size=30), mutated(JOB).map(lambda d: as_json(d).decode(errors="replace")))
    overrides = st.builds(
        lambda key, equals, text: f"{key}{equals}{text}", SETTINGS, st.sampled_from(["=", "", "=="]), value
    )

    def check(override: str) -> None:
        survives(lambda: apply_override(JOB, override))
        survives(lambda: use(load_job(JOB, [override])))

    fuzz(count, overrides, check)


STUDY = {
    "study": "sweep",
    "title": "fuzzed",
    "job": {k: v for k, v in JOB.items() if k != "train"},
    "set": {"precision": "fp16"},
    "vary": {"ranks": [16, 32], "machine.nic.bandwidth": {"slow": "1 GB/s"}},
    "points": [{"name": "a"}, {"name": "b", "recompute": False}],
    "x": "ranks",
    "grid": "keep",
    "engine": "folded",
    "seeds": 1,
    "target": {"tokens": "2 Ttokens", "price_per_gpu_hour": 2.0, "currency": "EUR"},
    "measured": [{"at": {"ranks": 16}, "step_seconds": 1.0, "source": "x"}],
}
SENSITIVITY = {
    "study": "sensitivity",
    "job": JOB,
    "change": {"measured": 0.1, "assumed": 0.3},
    "parameters": {"machine.nic.bandwidth": ["1 GB/s", "2 GB/s"]},
}


@cases(40, 1200)
def test_study_files(count: int, place: Path) -> None:
    path = place / "study.yaml"
    (place / "job.yaml").write_bytes(as_yaml(JOB))
    files = st.one_of(
        texts(STUDY, as_json),
        texts(SENSITIVITY, as_json),
        texts(STUDY, as_yaml),
        texts({**STUDY, "job": "./job.yaml"}, as_json),
    )

    def check(text: bytes) -> None:
        path.write_bytes(text)
        survives(lambda: points_of(load_study(path), place))

    fuzz(count, files, check)


RELIABILITY = load_machine("frontier").model_dump(mode="json", by_alias=True)["reliability"]


@cases(25, 500)
def test_goodput_of_any_reliability(count: int) -> None:
    """What the rates may be is checked where they are read; no run of weeks takes forever."""

    def check(raw: Any) -> None:
        def answer() -> dict[str, Any]:
            machine = {"extends": "frontier", "reliability": raw}
            plan = plan_of(load_job({**JOB, "machine": machine}), 10.0)
            return predict(plan, Policy("memory", 600.0, spares=1), 86400.0, seeds=1).figures()

        figures = survives(answer)
        assert figures is None or 0.0 <= figures["goodput"]["mean"] <= 1.0

    fuzz(count, mutated(RELIABILITY), check)


def test_the_guard_sees_what_it_is_for(tmp_path: Path) -> None:
    """Otherwise nothing above says anything."""
    (tmp_path / "out").mkdir()
    with guarded(tmp_path / "out"):
        (tmp_path / "out" / "fine").write_text("")
    for wrong in (
        lambda: (tmp_path / "elsewhere").write_text(""),
        lambda: (tmp_path / "out" / "fine").rename(tmp_path / "moved"),
        (tmp_path / "new").mkdir,
    ):
        with pytest.raises(AssertionError), guarded(tmp_path / "out"):
            wrong()
    with pytest.raises(MemoryError), guarded():
        bytearray(4 << 30)
    with pytest.raises(KeyError):
        survives(lambda: {}["a"])
    assert survives(lambda: load_machine("none")) is None
    with pytest.raises(DescriptionError):
        load_machine("none")
