"""SLURM scripts: bash reads them as meant, whatever a job is called, and starts ranks again where that is of use.

Commands stand in for the cluster's: no SLURM has the modules and devices of the machines that are known by name.
What the scripts start is tested on a real SLURM, in `tests/slurm`.
"""

from __future__ import annotations

import math
import re
import shlex
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.launch.environment import Process, first_host, from_environment
from runtime.slurm import script
from tests.profiles import part
from tests.runtime import runs
from twin.cli import main
from twin.description.problems import DescriptionError
from twin.strategies import load_job

EXAMPLES = Path(__file__).parents[2] / "examples"
NASTY = [
    "two words",
    "$(touch stolen)",
    "`touch stolen`",
    "it's; touch stolen",
    'a"b\\c',
    "-n",
    "~",
    "*",
    "#x",
    "end'\n#SBATCH --account=stolen\ntouch stolen\n'",
    "@JOB@ @RANKS@",
    "größe\t×",
    "$HOME",
    "!!",
    "a&b|c>d",
]


def directives(text: str) -> dict[str, str]:
    """What sbatch takes from a script: its options up to the first line that is a command."""
    found: dict[str, str] = {}
    for line in text.splitlines()[1:]:
        if line.strip() and not line.startswith("#"):
            break
        if line.startswith("#SBATCH "):
            for option in shlex.split(line)[1:]:
                key, _, value = option.removeprefix("--").partition("=")
                found[key] = value
    return found


@pytest.fixture
def cluster(tmp_path: Path) -> Path:
    """A directory with commands that only stand in for a cluster's, and a virtual environment."""
    commands = {
        "srun": 'printf "%s\\0" "$@" > "${0%/bin/*}/srun.words"; env -0 > "${0%/bin/*}/srun.environment"',
        "module": "exit 0",
        "hostname": 'echo "127.0.0.1${1:+ 10.0.0.1}"',
    }
    bin_ = tmp_path / "bin"
    bin_.mkdir()
    for name, text in commands.items():
        (bin_ / name).write_text(f"#!/bin/bash\n{text}\n")
        (bin_ / name).chmod(0o755)
    (tmp_path / "venv" / "bin").mkdir(parents=True)
    (tmp_path / "venv" / "bin" / "activate").write_text("echo $A_VARIABLE_THAT_IS_NOT_SET\n")
    return tmp_path


def submit(text: str, cluster: Path, folder: Path | None = None, **extra: str) -> subprocess.CompletedProcess[str]:
    """Run a script as a batch job's first node does."""
    asked = directives(text)
    (cluster / "job.sh").write_text(text, encoding="utf-8")
    subprocess.run(["bash", "-n", str(cluster / "job.sh")], check=True)
    given_by_slurm = {
        "SLURM_JOB_ID": "90017",
        "SLURM_JOB_NUM_NODES": asked["nodes"],
        "SLURM_CPUS_ON_NODE": "64",
        "SLURM_JOB_ACCOUNT": "abc123",
        "USER": "someone",
        "SCRATCH": str(cluster / "scratch"),
        "CRAY_LD_LIBRARY_PATH": "/cray",
        "LD_LIBRARY_PATH": "/lib",
        "FOURFOLD_VENV": str(cluster / "venv"),
    }
    environment = runs.environment(**given_by_slurm, **extra)
    environment["PATH"] = f"{cluster / 'bin'}:{environment['PATH']}"
    return subprocess.run(
        ["bash", str(cluster / "job.sh")],
        cwd=folder or cluster,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )


def started(cluster: Path) -> tuple[list[str], dict[str, str]]:
    """The words that srun got, and its environment."""
    words = (cluster / "srun.words").read_text(encoding="utf-8").split("\0")[:-1]
    environment = (cluster / "srun.environment").read_text(encoding="utf-8").split("\0")[:-1]
    return words, dict(line.split("=", 1) for line in environment)


MACHINES = [
    # example, devices of a node, ranks, options that only its machine has
    ("gpt-40b-perlmutter-4096", 4, 4096, {"constraint": "gpu", "qos": "regular", "gpus-per-node": "4"}),
    (
        "gpt-320b-frontier-32768",
        8,
        32768,
        {"partition": "batch", "network": "disable_rdzv_get", "gpus-per-task": "1", "cpus-per-task": "7"},
    ),
    ("gpt-60b-alps-6144", 4, 6144, {"partition": "normal", "gpus-per-task": "1", "cpus-per-task": "72"}),
    ("gpt-5b-auto", 8, 512, {"partition": "batch"}),
    ("tiny-gpt", 8, 4, {"exclusive": ""}),
]


@pytest.mark.parametrize(("name", "devices", "ranks", "own"), MACHINES, ids=lambda v: str(v)[:24])
@pytest.mark.process
@pytest.mark.quick
def test_the_script_of_each_example(name, devices, ranks, own, cluster, capsys, monkeypatch):
    monkeypatch.chdir(EXAMPLES.parent)
    with pytest.raises(SystemExit) as ended:
        main(["train", f"examples/{name}.yaml", "--slurm", "--set", "seed=3"])
    assert not ended.value.code
    text = capsys.readouterr().out
    nodes = math.ceil(ranks / devices)
    assert (
        directives(text).items()
        >= {
            "account": "CHANGE_ME",
            "job-name": name,
            "nodes": str(nodes),
            "ntasks": str(ranks),
            "ntasks-per-node": str(min(devices, ranks)),
            **own,
        }.items()
    )
    done = submit(text, cluster, EXAMPLES.parent)
    assert (done.returncode, done.stderr) == (0, "")
    words, environment = started(cluster)
    assert {f"--nodes={nodes}", f"--ntasks={ranks}", "--distribution=block"} <= set(words)
    command = words[words.index("fourfold") :]
    assert command[:5] == ["fourfold", "train", f"examples/{name}.yaml", "--set", "seed=3"]
    concrete = load_job(EXAMPLES / f"{name}.yaml", command[4:-2:2])  # all that follows a --set
    assert concrete.concrete_grid.ranks == ranks
    assert concrete.concrete_micro_sequences > 0
    assert command[-2] == "--out"
    assert command[-1].endswith(f"/fourfold/runs/{name}")
    assert environment["MASTER_ADDR"] == "127.0.0.1"
    assert environment["MASTER_PORT"] == str(20_000 + 90_017 % 12_768)
    slingshot = "FI_CXI_DEFAULT_CQ_SIZE" in environment
    assert slingshot == ("NCCL_NET" in environment) == (name != "tiny-gpt")


def small(folder: Path, name: str = "small", machine: object = "laptop", **changes: object):
    path = runs.write_job(folder, name=name, machine=machine, **changes)
    return load_job(path), path


@pytest.mark.parametrize("machine", ["laptop", "perlmutter"])
@pytest.mark.parametrize("name", NASTY)
@pytest.mark.process
@pytest.mark.quick
def test_a_name_stays_a_name(name, machine, cluster):
    job, path = small(cluster, name, machine)
    wicked = cluster / ("dir " + name.replace("/", "_")) / "-job.yaml"
    wicked.parent.mkdir()
    path.rename(wicked)
    overrides = [f"name={name}", "train.steps=3"]
    text = script(job, Path("-job.yaml"), overrides)
    assert directives(text)["account"] == "CHANGE_ME"
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", directives(text)["job-name"])
    done = submit(text, cluster, wicked.parent)
    assert (done.returncode, done.stderr) == (0, "")
    words, _ = started(cluster)
    assert words[words.index("fourfold") :] == [
        "fourfold",
        "train",
        "./-job.yaml",
        "--set",
        f"name={name}",
        "--set",
        "train.steps=3",
        "--set",
        "grid={data: 1, z: 2, y: 1, x: 1}",
        "--set",
        "batch.micro_sequences=2",
        "--out",
        f"{cluster}/scratch/fourfold/runs/{name}",
    ]
    assert not list(cluster.rglob("stolen"))


@given(st.text(st.characters(blacklist_categories=["Cs"], blacklist_characters="\0")))
def test_every_text_round_trips(text):
    job = load_job({**runs.SMALL, "name": text})
    end = script(job, Path("job.yaml"), [text]).rpartition("\njob=")[2].partition("\ndo\n")[0]
    assert shlex.split("job=" + end.partition("\nout=")[0]) == ["job=job.yaml", f"name={text}"]
    command = shlex.split(end[end.index("    fourfold train") :].replace("\\\n", ""))
    assert command[3:5] == ["--set", text] or "\\\n" in text


def test_a_zero_byte_is_refused():
    job = load_job({**runs.SMALL, "name": "a\0b"})
    with pytest.raises(DescriptionError, match=r"name = .*zero byte"):
        script(job, Path("job.yaml"), [])


@pytest.mark.parametrize(
    ("machine", "template"),
    [
        ("frontier", "OLCF"),
        ({"extends": "frontier", "nic": {"bandwidth": "50 GB/s"}}, "OLCF"),
        ({"extends": "perlmutter", "name": "Perlmutter (modified) (modified)"}, "NERSC"),
        ("perlmutter-80gb", "gpu&hbm80g"),
        ("alps", "CSCS"),
        ("dgx-h100", "--gpus-per-node=8"),
        ({"extends": "alps", "name": "alpstein"}, "no template"),
        ("laptop", "no template"),
        ({"extends": "dgx-h100", "name": "frontier"}, "OLCF"),
        ({"extends": "dgx-h100", "name": "alps"}, "no template"),
    ],
)
def test_the_template_follows_the_machine(machine, template):
    assert template in script(load_job({**runs.SMALL, "machine": machine}), Path("job.yaml"), [])


def test_a_partly_filled_node_comes_last():
    """Of 9 ranks on nodes of four, eight fill two nodes."""
    job = load_job(
        {
            **runs.SMALL,
            "machine": "alps",
            "ranks": 9,
            "batch": {"sequences": 9},
            "grid": {"data": 9, "z": 1, "y": 1, "x": 1},
        },
        ["batch.micro_sequences=1"],
    )
    text = script(job, Path("job.yaml"), [])
    asked = directives(text)
    assert (asked["nodes"], asked["ntasks"], asked["ntasks-per-node"]) == ("3", "9", "4")
    assert "--distribution=block,Pack" in text


@pytest.mark.process
@pytest.mark.quick
def test_submitted_from_the_wrong_directory(cluster):
    job, _ = small(cluster)
    done = submit(script(job, Path("elsewhere.yaml"), []), cluster)
    assert done.returncode == 2
    assert "no job file elsewhere.yaml" in done.stderr
    assert not (cluster / "srun.words").exists()


STARTS = """\
echo start >> "$STARTS"
count=$(wc -l < "$STARTS")
read -r code saves <<< "$(sed -n "${count}p" "$PLAN")"
[ "$saves" = saves ] && mkdir -p "${!#}/checkpoints/step-0000000$count"
echo "$FOURFOLD_ATTEMPT" >> "$STARTS.attempts"
exit "$code"
"""


@pytest.mark.parametrize(
    ("plan", "code"),
    [
        (["0"], 0),
        (["137 saves", "1 saves", "137", "0 saves"], 0),  # killed, failed, killed before it saved, done
        (["137", "0 saves"], 0),
        (["137", "137"], 137),  # two in a row that save nothing
        (["1 saves", "1", "1"], 1),
        (["2"], 2),
        (["137 saves", "3 saves"], 3),
    ],
    ids=str,
)
@pytest.mark.process
@pytest.mark.quick
def test_ranks_start_again_as_long_as_they_get_further(plan, code, cluster):
    (cluster / "bin" / "srun").write_text(f"#!/bin/bash\n{STARTS}")
    (cluster / "plan").write_text("\n".join(plan) + "\n")
    job, path = small(cluster)
    files = {"PLAN": str(cluster / "plan"), "STARTS": str(cluster / "starts")}
    done = submit(script(job, path, []), cluster, **files)
    assert done.returncode == code
    assert (cluster / "starts.attempts").read_text().split() == [str(start) for start in range(len(plan))]
    assert done.stderr.count("in this job") == len(plan) - 1


STEP = {
    "SLURM_STEP_ID": "0",
    "SLURM_PROCID": "9",
    "SLURM_NTASKS": "16",
    "SLURM_LOCALID": "1",
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NODELIST": "nid[000007-000008]",
    "SLURM_STEP_TASKS_PER_NODE": "8(x2)",
}


def test_a_rank_reads_what_srun_says():
    assert from_environment(STEP) == Process(
        rank=9, ranks=16, local_rank=1, local_ranks=8, launcher="srun", address="nid000007", port=20_077
    )
    given_ = {**STEP, "MASTER_ADDR": "10.0.0.1", "MASTER_PORT": "3442", "SLURM_RESTART_COUNT": "2"}
    process = from_environment(given_)
    assert (process.address, process.port, process.attempt) == ("10.0.0.1", 3442, 2)
    assert from_environment({**given_, "FOURFOLD_ATTEMPT": "3"}).attempt == 5


@pytest.mark.parametrize("step", [{"SLURM_NTASKS": "1"}, {"SLURM_STEP_NUM_TASKS": "1"}])
def test_a_shell_inside_an_allocation_is_alone(step):
    """`srun --pty bash`, or the step salloc opens: SLURM_NTASKS may still tell of the whole job."""
    process = from_environment({**STEP, **step, "SLURM_PROCID": "0", "SLURM_RESTART_COUNT": "1"})
    assert process == Process(attempt=1)


def test_ports_are_not_those_of_outgoing_connections():
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [from_environment({**STEP, "SLURM_JOB_ID": str(job)}).port for job in part(range(50_000), 2_000)]
    assert 1024 < min(ports) <= max(ports) < lowest


@pytest.mark.parametrize(
    ("nodes", "host"),
    [
        ("nid001", "nid001"),
        ("nid001,nid002", "nid001"),
        ("f[012-015,020],g1", "f012"),
        ("[3,5]a", "3a"),
        ("r[1-2]n[07-09]-ib", "r1n07-ib"),
        ("127.0.0.1", "127.0.0.1"),
    ],
)
def test_the_first_host_of_a_list(nodes, host):
    assert first_host(nodes) == host
