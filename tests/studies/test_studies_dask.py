"""Studies on Dask's workers: a real scheduler and worker here; SLURM as far as its job script (more: `tests/slurm`)."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import time
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq
import pytest

import twin
from tests.studies.studies_files import TINY, write_study
from tests.tiers import makes
from twin.cli import main
from twin.description.problems import DescriptionError
from twin.studies.run import Where, run_study

ROOT = Path(twin.__file__).parents[1]
# Dask leaves sockets and event loops to the garbage collector
pytestmark = [
    pytest.mark.process,
    pytest.mark.skipif(find_spec("distributed") is None, reason="Dask is an extra"),
    pytest.mark.filterwarnings(
        "default::ResourceWarning", "default::DeprecationWarning", "default::pytest.PytestUnraisableExceptionWarning"
    ),
]


@pytest.fixture(scope="module")
@makes("process")
def scheduler(tmp_path_factory):
    """A scheduler with one worker of two threads, as a user starts them."""
    folder = tmp_path_factory.mktemp("dask")
    file = folder / "scheduler.json"
    common = ["--scheduler-file", str(file)]
    commands = [
        ["scheduler", "--port", "0", "--host", "127.0.0.1", "--no-dashboard", *common],
        ["worker", "--nthreads", "1", "--nworkers", "2", "--no-dashboard", *common],
    ]
    started = []
    try:
        for command in commands:
            started.append(
                subprocess.Popen(
                    [sys.executable, "-c", "from dask.__main__ import main; main()", *command],
                    cwd=ROOT,
                    env=os.environ | {"PYTHONPATH": str(ROOT)},
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                )
            )
            deadline = time.monotonic() + 60
            while not file.exists():
                assert time.monotonic() < deadline
                time.sleep(0.1)
        address = json.loads(file.read_text())["address"]
        _wait_for_workers(address)
        yield address
    finally:
        for process in reversed(started):
            process.send_signal(signal.SIGINT)
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()


def _wait_for_workers(address: str) -> None:
    from distributed import Client

    with Client(address, timeout=30) as client:
        client.wait_for_workers(2, timeout=60)


def test_workers_elsewhere_say_the_same(tmp_path, scheduler):
    study = write_study(tmp_path, vary={"model.layers": [1, 2, 3, 4, 5, 6], "grid.z": [8, 7]})
    here = run_study(study, tmp_path / "here", Where())
    there = run_study(study, tmp_path / "there", Where(scheduler=scheduler))
    assert there.computed == 12
    for number, answer in here.answers.items():
        other = there.answers[number]
        assert {k: other[k] for k in ("status", "reason", "figures", "job")} == {
            k: answer[k] for k in ("status", "reason", "figures", "job")
        }
    assert run_study(study, tmp_path / "there", Where(scheduler=scheduler)).computed == 0


@pytest.mark.parametrize("options", [["--over", "recompute"], ["--strategy", "four_d,fsdp"]])
def test_a_search_elsewhere_says_the_same(tmp_path, scheduler, capsys, options):
    """Every byte of what is printed and written, but for the seconds that it took."""
    job = tmp_path / "job.yaml"
    job.write_text(json.dumps(TINY | {"grid": "auto", "batch": {"sequences": 32}}))
    printed, written = [], []
    for name, where in (("here", ["--workers", "1"]), ("there", ["--scheduler", scheduler])):
        out = tmp_path / name
        with pytest.raises(SystemExit) as ended:
            main(["search", str(job), "--json", "--out", str(out), *where, *options])
        assert not ended.value.code
        told = capsys.readouterr()
        printed.append(re.sub(r'"wall_seconds": [^,\n]*', "", told.out))
        table = pq.read_table(out / "candidates.parquet")
        written.append((table, (out / "best.yaml").read_bytes()))
    assert "candidates, " in told.err
    assert "with 2 workers" in told.err
    assert printed[0] == printed[1]
    assert written[0][0].equals(written[1][0])
    assert written[0][1] == written[1][1]


def test_a_scheduler_that_is_not_there_is_told(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("twin.studies.cluster.CONNECT_SECONDS", 1)
    study = write_study(tmp_path, vary={"seed": [1, 2]})
    with pytest.raises(SystemExit) as ended:
        main(["study", str(study), "--out", str(tmp_path / "out"), "--scheduler", "tcp://127.0.0.1:1"])
    assert ended.value.code == 2
    assert "no Dask scheduler answers" in capsys.readouterr().err


def test_workers_with_other_code_are_refused(scheduler):
    from twin.studies.cluster import scheduler as connect

    with pytest.raises(DescriptionError, match="install the same there"), connect(scheduler, version_of_this_process):
        pass


def version_of_this_process() -> str:
    """Something that differs between this process and a worker."""
    return f"0.1.0+{os.getpid()}"


def python(code: str, folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code with an empty Dask configuration; Dask's clusters want a process of their own."""
    return subprocess.run(
        [sys.executable, "-c", code, *arguments],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": str(ROOT), "HOME": str(folder), "DASK_CONFIG": str(folder)},
    )


def test_slurm_jobs_are_those_of_the_file_in_the_docs(tmp_path):
    """What would be submitted: nodes of 64 cores, which the SLURM of the tests does not have."""
    pytest.importorskip("dask_jobqueue")
    text = (ROOT / "docs" / "howto" / "studies.md").read_text(encoding="utf-8")
    shown = text.split("# ~/.config/dask/jobqueue.yaml\n")[1].split("```")[0]
    (tmp_path / "jobqueue.yaml").write_text(shown)
    script = python(
        "from dask_jobqueue import SLURMCluster\nif __name__ == '__main__': print(SLURMCluster().job_script())",
        tmp_path,
    )
    assert "#SBATCH --cpus-per-task=64" in script.stdout, script.stderr
    assert "distributed.cli.dask_worker" in script.stdout


def test_slurm_without_a_description_is_told(tmp_path):
    pytest.importorskip("dask_jobqueue")
    study = write_study(tmp_path, vary={"seed": [1, 2]})
    done = python(
        "from twin.cli import main; import sys; main(sys.argv[1:])",
        tmp_path,
        "study",
        str(study),
        "--out",
        str(tmp_path / "out"),
        "--slurm",
        "2",
    )
    assert done.returncode == 2, done.stderr
    assert "~/.config/dask/jobqueue.yaml" in done.stderr
    assert "Traceback" not in done.stderr.split("fourfold:")[-1]


def test_one_of_both(tmp_path, capsys):
    study = write_study(tmp_path, vary={"seed": [1, 2]})
    with pytest.raises(SystemExit):
        main(["study", str(study), "--scheduler", "tcp://127.0.0.1:1", "--slurm", "2"])
    assert "leave out --scheduler" in capsys.readouterr().err
