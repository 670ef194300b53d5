"""A real SLURM on this host: its own daemons, several virtual nodes, all in one temporary directory.

    munged ── a key and a socket of its own
    slurmctld (the controller) ── slurmd n1, slurmd n2, … (each a node of two cores, all on this host)

Nothing outside the directory is read or written, so a SLURM that the host may be part of is not touched. Every
process carries `SLURM_CONF` with the directory's path in its environment: that is how what a daemon has started
(`slurmstepd`, tasks) is found again, to be killed with its node, and at the end.
"""

from __future__ import annotations

import os
import secrets
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from tests.testbed.network import orderly_end

TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "scontrol", "scancel", "squeue", "sinfo")
SBIN = "/usr/sbin"
"""Daemons are there, which need not be on the path of who runs tests."""
CORES = 2
"""Of a node, as SLURM is told; the host's own are shared by all nodes."""
SECONDS = 60.0
"""How long a daemon or a job may take to do what it must; the host may be busy."""
OWNER = "FOURFOLD_TESTS_SLURM"
"""Environment of every process of a cluster: process number of who made it."""
CONFIGURATION = """\
ClusterName=fourfold
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
SchedulerParameters=sched_min_interval=100000,bf_interval=5
ReturnToService=2
KillWait=20
EnforcePartLimits=ALL
MinJobAge=3600
PropagateResourceLimits=NONE
NodeName=DEFAULT CPUs={cores} RealMemory=4000
NodeName=n[1-{nodes}] NodeHostname={host} NodeAddr=127.0.0.1 Port=[{first_port}-{last_port}]
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
"""


@dataclass
class Cluster:
    """Daemons that run, and what one asks of them."""

    folder: Path
    nodes: int
    environment: dict[str, str]
    daemons: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    def ask(self, *command: str, folder: Path | None = None, **extra: str) -> str:
        """Give one of SLURM's commands; returns what it prints."""
        done = subprocess.run(
            command,
            cwd=folder or self.folder,
            env={**self.environment, **extra},
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=False,
        )
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}{self.logs()}"
        return done.stdout

    def submit(self, script: Path, *options: str, **extra: str) -> int:
        """Submit a script from its directory; returns the job's number."""
        said = self.ask("sbatch", "--parsable", *options, script.name, folder=script.parent, **extra)
        return int(said.partition(";")[0])

    def job(self, number: int) -> dict[str, str]:
        """Return what `scontrol show job` says."""
        words = self.ask("scontrol", "--oneliner", "show", "job", str(number)).split()
        return dict(word.split("=", 1) for word in words if "=" in word)

    def wait_for(self, number: int, *states: str) -> dict[str, str]:
        """Wait until a job is in one of these states; fail if it has ended in another."""
        over = {"COMPLETED", "FAILED", "CANCELLED", "TIMEOUT", "NODE_FAIL", "OUT_OF_MEMORY", "BOOT_FAIL", "DEADLINE"}

        def there() -> bool:
            state = self.job(number)["JobState"]
            assert state in states or state not in over, f"job {number} is {state}{self.logs()}"
            return state in states

        self.wait_until(there, f"job {number} is not {' or '.join(states)}")
        return self.job(number)

    def wait_until(self, holds: Callable[[], bool], otherwise: str, seconds: float = 2 * SECONDS) -> None:
        """Look again and again."""
        deadline = time.monotonic() + seconds
        while not holds():
            assert time.monotonic() < deadline, f"{otherwise}{self.logs()}"
            time.sleep(0.1)

    def start_node(self, node: int) -> None:
        """Let a node come."""
        self.daemons[f"n{node}"] = _start(["slurmd", "-D", "-N", f"n{node}"], self.folder, self.environment)

    def mend_node(self, node: int) -> None:
        """Let a lost node come again, and be given work."""
        self.start_node(node)
        self.ask("scontrol", "update", f"NodeName=n{node}", "State=RESUME")
        self.wait_for_nodes()

    def lose_node(self, node: int) -> None:
        """Kill all of a node at once: its daemon, steps and tasks, as when the power fails.

        That it is down is said as a site's health check does; SLURM itself would notice in five minutes.
        """
        daemon = self.daemons.pop(f"n{node}")
        daemon.kill()
        daemon.wait()
        tasks = [number for number, words in self.processes().items() if words.get("SLURMD_NODENAME") == f"n{node}"]
        steps = {parent for task in tasks if (parent := _parent(task)) and parent not in tasks}
        for process in (*(step for step in steps if _name(step).startswith("slurmstepd")), *tasks):
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        self.ask("scontrol", "update", f"NodeName=n{node}", "State=DOWN", "Reason=no power")

    def wait_for_nodes(self) -> None:
        """Wait until all nodes may be given work."""

        def idle() -> bool:
            return self.ask("sinfo", "--noheader", "--Node", "--format=%T").split() == ["idle"] * self.nodes

        self.wait_until(idle, "the nodes do not come")

    def ranks(self, job: int) -> dict[int, int]:
        """Process number of each rank of a job's steps."""
        found = {}
        for number, words in self.processes().items():
            is_rank = words.get("SLURM_JOB_ID") == str(job) and words.get("SLURM_STEP_ID", "").isdecimal()
            if is_rank and "SLURM_PROCID" in words and not _name(number).startswith(("slurmstepd", "srun")):
                found[int(words["SLURM_PROCID"])] = number
        return found

    def processes(self) -> dict[int, dict[str, str]]:
        """Number and environment of every process of this cluster that lives."""
        return _processes(lambda words: words.get("SLURM_CONF") == self.environment["SLURM_CONF"])

    def logs(self) -> str:
        """Return the ends of what daemons and jobs have written, for whoever reads a failure."""
        texts = [f"--- {path.name}\n{path.read_text(errors='replace')[-1500:]}" for path in self.folder.glob("*.log")]
        return "\n" + "\n".join(texts)

    def close(self) -> None:
        """Leave nothing running."""
        for daemon in reversed(self.daemons.values()):
            daemon.terminate()
        for daemon in self.daemons.values():
            with suppress(subprocess.TimeoutExpired):
                daemon.wait(5)
        _kill_all(self.processes)
        for daemon in self.daemons.values():
            daemon.wait()


def reason_missing() -> str | None:
    """Why there can be no cluster here; None if there can."""
    path = _path()
    if missing := [tool for tool in TOOLS if shutil.which(tool, path=path) is None]:
        return f"needs {', '.join(missing)} (Debian: apt-get install slurm-wlm munge)"
    try:
        socket.gethostbyname(socket.gethostname())
    except OSError as error:
        return f"this host does not know its own name: {error}"
    return None


@contextmanager
def cluster(folder: Path, environment: Mapping[str, str], nodes: int = 3) -> Iterator[Cluster]:
    """Start the daemons in an empty directory; they are gone at the end, also after an error, Ctrl-C or SIGTERM."""
    remove_leftovers()
    ports = _free_ports(nodes + 1)
    configuration = folder / "slurm.conf"
    configuration.write_text(
        CONFIGURATION.format(
            host=socket.gethostname(),
            user=_user(),
            folder=folder,
            nodes=nodes,
            cores=CORES,
            controller_port=ports,
            first_port=ports + 1,
            last_port=ports + nodes,
        )
    )
    kept = {key: value for key, value in environment.items() if not key.startswith(("SLURM", "SBATCH_", "SRUN_"))}
    made = Cluster(folder, nodes, {**kept, "PATH": _path(), "SLURM_CONF": str(configuration), OWNER: str(os.getpid())})
    with ExitStack() as stack:
        stack.enter_context(orderly_end())
        stack.callback(made.close)
        made.daemons["munged"] = _munged(folder, made.environment)
        made.wait_until((folder / "munge.socket").exists, "munged does not start")
        (folder / "state").mkdir()
        made.daemons["slurmctld"] = _start(["slurmctld", "-D", "-c"], folder, made.environment)
        for node in range(1, nodes + 1):
            (folder / f"spool-n{node}").mkdir()
            made.start_node(node)
        made.wait_until(lambda: _answers(made), "slurmctld does not answer")
        made.wait_for_nodes()
        yield made


def remove_leftovers() -> None:
    """Kill what is left of clusters whose makers were killed."""
    _kill_all(lambda: _processes(lambda words: OWNER in words and not Path(f"/proc/{words[OWNER]}").exists()))


def _kill_all(those: Callable[[], dict[int, dict[str, str]]]) -> None:
    for _ in range(20):  # who is being forked while we look is found the next time
        found = those()
        for process in found:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        if not found:
            break
        time.sleep(0.05)


def _processes(wanted: Callable[[dict[str, str]], bool]) -> dict[int, dict[str, str]]:
    """Number and environment of the processes that are wanted, without this one."""
    found = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and int(entry.name) != os.getpid():
            with suppress(OSError):
                words = (entry / "environ").read_text(errors="replace").split("\0")
                environment = dict(word.split("=", 1) for word in words if "=" in word)
                if wanted(environment):
                    found[int(entry.name)] = environment
    return found


def _munged(folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    key = folder / "munge.key"
    key.touch(0o600)
    key.write_bytes(secrets.token_bytes(128))
    files = {"key": key, "socket": folder / "munge.socket", "pid": folder / "munge.pid", "seed": folder / "munge.seed"}
    options = [f"--{name}-file={path}" for name, path in files.items() if name != "socket"]
    command = ["munged", "--foreground", "--force", f"--socket={files['socket']}", *options]
    return _start([*command, f"--log-file={folder / 'munged.log'}"], folder, environment)


def _start(command: list[str], folder: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a daemon in the foreground."""
    with (folder / "started.log").open("ab") as log:
        return subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log)


def _answers(made: Cluster) -> bool:
    with suppress(AssertionError):
        return "is UP" in made.ask("scontrol", "ping")
    return False


def _user() -> str:
    import pwd

    return pwd.getpwuid(os.geteuid()).pw_name


def _path() -> str:
    return f"{os.environ.get('PATH', os.defpath)}:{SBIN}"


def _free_ports(count: int) -> int:
    """First of so many ports in a row that nobody listens on."""
    for first in range(17_000, 20_000, count):
        with ExitStack() as stack, suppress(OSError):
            for port in range(first, first + count):
                stack.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return first
    raise RuntimeError("no free ports")


def _parent(process: int) -> int | None:
    with suppress(OSError):
        return int(Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[1])
    return None


def _name(process: int) -> str:
    with suppress(OSError):
        return Path(f"/proc/{process}/cmdline").read_text(errors="replace").replace("\0", " ").strip()
    return ""
