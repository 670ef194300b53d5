"""Who am I: rank, world and meeting point, from torchrun, srun, `fourfold train --ranks`, or alone."""

from __future__ import annotations

import re
import socket
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from twin.description.problems import fail

Launcher = Literal["torchrun", "srun", "fourfold", "alone"]
STORE_SOCKET = "FOURFOLD_STORE_SOCKET"
"""Environment: file descriptor of the socket that rank 0's store listens on."""
GLOO_INTERFACE = "GLOO_SOCKET_IFNAME"
"""Environment: network interfaces, separated by commas, that gloo's messages take."""
ATTEMPT = "FOURFOLD_ATTEMPT"
"""Environment: how often `fourfold train --ranks`, or the script of a SLURM job, has started the ranks before."""
MAX_PORT = 65_535
MAX_DIGITS = 18
"""Of a number in the environment."""
MAX_NUMBER = 10**MAX_DIGITS - 1
SLURM_PORTS = 20_000, 32_768
"""Ports to choose from by job number where none is given; Linux gives those above to connections."""


@dataclass(frozen=True)
class Process:
    """One process among those that train together."""

    rank: int = 0
    ranks: int = 1
    local_rank: int = 0
    local_ranks: int = 1
    """Processes on this host."""
    launcher: Launcher = "alone"
    address: str = ""
    port: int = 0
    attempt: int = 0
    agent_store: bool = False
    """The launcher keeps the store; otherwise rank 0 does."""
    socket: int | None = None
    """An open socket for the store to listen on."""
    cores: int | None = None
    """Cores that the launcher has bound this rank to; None if the host's are to be shared out."""
    launch: str = ""
    """Name of the torchrun job whose rounds these processes are one of; empty if it has none."""

    @property
    def started_again(self) -> bool:
        """True if the launcher starts the ranks anew after a failure, as all of them know.

        Agents of torchrun do not agree on the attempt: see `perhaps_again`.
        """
        return self.attempt > 0 and self.launcher != "torchrun"

    @property
    def perhaps_again(self) -> bool:
        """True if this may be a start after a failure, alike on all ranks."""
        return self.started_again or self.launcher == "torchrun"


def from_environment(environment: Mapping[str, str]) -> Process:
    """Read what the launcher left in the environment; raises DescriptionError if it is broken."""
    if "RANK" in environment and "WORLD_SIZE" in environment:
        listening = environment.get(STORE_SOCKET)
        rank, ranks = _place(environment, "RANK", "WORLD_SIZE")
        check_interface(environment)
        return Process(
            rank=rank,
            ranks=ranks,
            local_rank=_number(environment, "LOCAL_RANK", "0"),
            local_ranks=_number(environment, "LOCAL_WORLD_SIZE", "1", least=1),
            launcher="fourfold" if listening is not None or "FOURFOLD_RANKS" in environment else "torchrun",
            address=environment.get("MASTER_ADDR", "127.0.0.1"),
            port=_number(environment, "MASTER_PORT", most=MAX_PORT),
            attempt=_number(environment, ATTEMPT if ATTEMPT in environment else "TORCHELASTIC_RESTART_COUNT", "0"),
            agent_store=environment.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
            socket=None if listening is None else int(listening),
            launch=_torchrun_job(environment),
        )
    if "SLURM_STEP_ID" in environment and "SLURM_PROCID" in environment:
        # a shell that salloc or `srun --pty bash` opened is a step of one task, in which SLURM_NTASKS
        # may still be the whole job's: whoever types there is alone
        counted = "SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in environment else "SLURM_NTASKS"
        # how often the job was put back into the queue, and how often its script has started the ranks since
        attempt = _number(environment, "SLURM_RESTART_COUNT", "0") + _number(environment, ATTEMPT, "0")
        if _number(environment, counted) == 1:
            return Process(attempt=attempt)
        rank, ranks = _place(environment, "SLURM_PROCID", counted)
        check_interface(environment)
        low, high = SLURM_PORTS
        by_job = low + _number(environment, "SLURM_JOB_ID", "0") % (high - low)
        return Process(
            rank=rank,
            ranks=ranks,
            local_rank=_number(environment, "SLURM_LOCALID", "0"),
            local_ranks=_first_count(environment.get("SLURM_STEP_TASKS_PER_NODE", "1")),
            launcher="srun",
            address=environment.get("MASTER_ADDR")
            or first_host(environment.get("SLURM_STEP_NODELIST") or environment.get("SLURM_NODELIST", "")),
            port=_number(environment, "MASTER_PORT", str(by_job), most=MAX_PORT),
            attempt=attempt,
            cores=_number(environment, "SLURM_CPUS_PER_TASK", "0") or None,
        )
    return Process()


def check_interface(environment: Mapping[str, str]) -> None:
    """Refuse an interface that gloo is to use and this host has not; raises DescriptionError."""
    given, known = environment.get(GLOO_INTERFACE, ""), [name for _, name in socket.if_nameindex()]
    named = (name.partition(":")[0] for name in given.split(","))  # behind a colon stands the label of an address
    if any(name and name not in known for name in named):
        raise fail(GLOO_INTERFACE, f"is no network interface of this host; choose from {', '.join(known)}", given)


def refuse_ranks(process: Process, ranks: int | None) -> None:
    """Refuse --ranks beside a launcher, which has started them; raises DescriptionError."""
    if process.launcher != "alone" and ranks is not None:
        raise fail("--ranks", f"the ranks are started by {process.launcher} already; leave it out", ranks)


def _torchrun_job(environment: Mapping[str, str]) -> str:
    name = environment.get("TORCHELASTIC_RUN_ID", "")
    return "" if name == "none" else name  # what every job is called that was given no --rdzv-id


def _place(environment: Mapping[str, str], rank: str, ranks: str) -> tuple[int, int]:
    """Read which rank of how many; one that is none of them would wait in vain to meet the others."""
    found, count = _number(environment, rank), _number(environment, ranks, least=1)
    if found >= count:
        raise fail(rank, f"must be below {ranks}, which is {count}; start with torchrun, srun or --ranks", found)
    return found, count


def _number(
    environment: Mapping[str, str], key: str, default: str | None = None, *, least: int = 0, most: int = MAX_NUMBER
) -> int:
    text = environment.get(key, default)
    if text is None:
        raise fail(
            key,
            "is not set in the environment, but other variables of a launcher are; "
            "start with torchrun, srun or --ranks",
        )
    # the length first: Python refuses to read a number of thousands of digits
    if not text.isdecimal() or len(text) > MAX_DIGITS or not least <= int(text) <= most:
        between = f" from {least} to {most:,}" if most < MAX_NUMBER else f" of at least {least}" if least else ""
        raise fail(key, f"expected a whole number{between} in the environment", text)
    return int(text)


def _first_count(tasks_per_node: str) -> int:
    """Tasks on the first host, of SLURM's list such as `8(x4),2`."""
    match = re.match(r"\d+", tasks_per_node)
    return int(match[0]) if match else 1


def first_host(nodes: str) -> str:
    """First host of a SLURM node list.

    >>> first_host("frontier[00012-00015,00020]"), first_host("nid001,nid002")
    ('frontier00012', 'nid001')
    >>> first_host("rack[3-4]node[07,09]-ib,login1")
    'rack3node07-ib'
    """
    match = re.match(r"(?:\[[^\]]*\]|[^\[,])+", nodes)
    if not match:
        raise fail("SLURM_STEP_NODELIST", "names no host; set MASTER_ADDR", nodes or None)
    return re.sub(r"\[(\d+)[^\]]*\]", r"\1", match[0])
