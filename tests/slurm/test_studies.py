"""Studies and searches in SLURM jobs that Dask submits: the same tables as here."""

from __future__ import annotations

import json
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest
import yaml

from tests.slurm.cluster import Cluster
from tests.studies.studies_files import TINY, write_study

pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(not (find_spec("distributed") and find_spec("dask_jobqueue")), reason="Dask is an extra"),
]

JOBS = {
    "cores": 1,
    "processes": 1,
    "memory": "1GB",
    "walltime": "00:10:00",
    "queue": "all",
    "interface": "lo",  # the nodes are on this host
}


def fourfold(slurm: Cluster, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a command on the host that SLURM's jobs are submitted from, with Dask's description of them."""
    (folder / "dask").mkdir(exist_ok=True)
    (folder / "dask" / "jobqueue.yaml").write_text(yaml.safe_dump({"jobqueue": {"slurm": JOBS}}))
    return subprocess.run(
        [sys.executable, "-m", "twin", *arguments],
        cwd=folder,
        env={**slurm.environment, "DASK_CONFIG": str(folder / "dask")},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def test_a_study_in_slurm_jobs_says_the_same(slurm: Cluster, tmp_path: Path) -> None:
    study = write_study(tmp_path, vary={"model.layers": [1, 2, 3], "grid.z": [8, 7]})
    tables = []
    for name, where in (("here", ["--workers", "1"]), ("there", ["--slurm", "2"])):
        done = fourfold(slurm, tmp_path, "study", str(study), "--out", str(tmp_path / name), *where)
        assert done.returncode == 0, done.stderr + slurm.logs()
        tables.append((tmp_path / name / "table.csv").read_bytes())
    assert tables[0] == tables[1]
    assert no_jobs_left(slurm)


def test_a_search_in_slurm_jobs_says_the_same(slurm: Cluster, tmp_path: Path) -> None:
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(TINY | {"grid": "auto", "batch": {"sequences": 32}}))
    best = []
    for name, where in (("here", ["--workers", "1"]), ("there", ["--slurm", "2"])):
        done = fourfold(slurm, tmp_path, "search", str(job), "--out", str(tmp_path / name), *where)
        assert done.returncode == 0, done.stderr + slurm.logs()
        best.append((tmp_path / name / "best.yaml").read_bytes())
    assert best[0] == best[1]
    assert no_jobs_left(slurm)


def no_jobs_left(slurm: Cluster) -> bool:
    """Wait until Dask's jobs have ended: it cancels them when the answer is there."""
    slurm.wait_until(lambda: "dask" not in slurm.ask("squeue", "--noheader", "--format=%j"), "jobs are left")
    return True
