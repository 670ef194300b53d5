"""Processes meet: the store, torch.distributed's world, devices and threads.

The store's keys carry the attempt's number, or the round's name where torchrun keeps the store, so
that a restart does not read the addresses of dead processes. With `--ranks` the launcher opens the
port and hands the open socket to rank 0: no other process can take it in between.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from datetime import timedelta
from typing import TypeVar, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, Store, TCPStore

from runtime.launch.disagreement import DisagreementError
from runtime.launch.environment import Process
from runtime.launch.session import own_part
from runtime.parallel.collectives import CollectiveError
from runtime.parallel.flight_recorder import forget_collectives
from twin.description.problems import DescriptionError, fail

T = TypeVar("T")
PATIENCE_SECONDS = 0.5
"""Time that a failing rank waits to hear whether others fail for the same reason."""


def open_store(process: Process, timeout_seconds: float) -> Store:
    """Connect to the meeting point, or open it on rank 0."""
    wait = timedelta(seconds=timeout_seconds)
    keeps = process.rank == 0 and not process.agent_store
    try:
        store = TCPStore(
            process.address,
            process.port,
            world_size=process.ranks,
            is_master=keeps,
            timeout=wait,
            wait_for_workers=False,
            master_listen_fd=process.socket if keeps else None,
        )
        if process.agent_store:
            return own_part(store, process.rank, process.ranks, timeout_seconds)
    except (dist.DistNetworkError, dist.DistStoreError, RuntimeError) as error:
        text = str(error)
        if "EADDRINUSE" in text or "address already in use" in text.lower():
            raise fail(
                "MASTER_PORT", "is in use on this host; choose another, or stop the process that has it", process.port
            ) from None
        raise fail(
            "MASTER_ADDR",
            f"rank {process.rank} cannot reach the meeting point "
            f"{process.address}:{process.port} within {timeout_seconds:g} s ({text.splitlines()[0]})",
        ) from None
    # agents of torchrun do not agree on the attempt; the store is of this attempt alone where rank 0 keeps it
    attempt = 0 if process.launcher == "torchrun" else process.attempt
    return PrefixStore(f"attempt{attempt}", store)


def agree(store: Store | None, process: Process, what: str, check: Callable[[], T]) -> T:
    """Run a check named `what` on every rank and return its result.

    If it fails on any rank it fails on every rank, saying where. Rank 0 gathers what the ranks found and
    tells all, so that the store is asked a few times a rank. Raises DisagreementError; the rank
    itself, if it is alone or the failure is a defect, what the check raised.
    """
    if store is None:
        return check()
    problem, result, defect = "", None, None
    try:
        result = check()
    except DescriptionError as error:
        problem = str(error)
    except Exception as error:  # told to the others like any problem, so that none waits in vain
        problem, defect = f"{type(error).__name__}: {error}", error
    verdict: list[str] = []
    try:
        verdict = _verdict(store, process, what, problem)
    except RuntimeError as lost:  # of torch's store
        if defect is None:
            reason = str(lost).strip().split("\n")[0]
            raise CollectiveError(
                f"rank {process.rank}: timed out waiting for the other ranks ({what}): one has probably died, "
                f"or hangs ({reason})"
            ) from None
    if defect is not None:
        raise defect
    if verdict:
        raise DisagreementError(verdict)
    return cast("T", result)


def _verdict(store: Store, process: Process, what: str, problem: str) -> list[str]:
    """Tell rank 0 what was found, and hear what all found."""
    store.set(f"{what}/{process.rank}", problem)
    if process.rank == 0:
        found = [t.decode() for t in store.multi_get([f"{what}/{r}" for r in range(process.ranks)])]
        where: dict[str, list[int]] = {}
        for rank, text in enumerate(found):
            if text:
                where.setdefault(text, []).append(rank)
        verdict = [text if len(ranks) == process.ranks else f"{_ranks(ranks)}: {text}" for text, ranks in where.items()]
        store.set(f"{what}/verdict", json.dumps(verdict))
        # rank 0 may keep the store: it must not leave with it before all have read
        store.wait([f"{what}/read/{rank}" for rank in range(1, process.ranks)])
        return verdict
    verdict = list(json.loads(store.get(f"{what}/verdict")))
    store.set(f"{what}/read/{process.rank}", "")
    return verdict


def told_by_another(store: Store, process: Process, text: str) -> bool:
    """Tell whether a lower rank is about to tell the same problem; waits a moment for the others to fail."""
    store.set(f"failed/{process.rank}", text)
    if process.rank == 0:
        time.sleep(2 * PATIENCE_SECONDS)  # rank 0 may keep the store that the others ask
        return False
    time.sleep(PATIENCE_SECONDS)
    lower = [f"failed/{rank}" for rank in range(process.rank)]
    try:
        return any(store.check([key]) and store.get(key).decode() == text for key in lower)
    except RuntimeError:  # the store is gone, and rank 0 with it
        return False


def _ranks(ranks: list[int]) -> str:
    shown = ", ".join(map(str, ranks[:8])) + (", …" if len(ranks) > 8 else "")
    return f"rank {shown}" if len(ranks) == 1 else f"ranks {shown}"


def choose_device(wanted: str, process: Process) -> torch.device:
    """Pick this rank's device; raises DescriptionError if there is none such.

    A host that has GPUs needs one a rank, unless srun shows each task its own: on its CPUs it computes only if
    told to. Whether the other hosts have GPUs too is for `runtime.launch.devices` to find out.
    """
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    if wanted == "cpu" or (wanted == "auto" and not count):
        return torch.device("cpu")
    if not count:
        raise fail("train.device", "this PyTorch sees no CUDA or ROCm device; use auto or cpu", wanted)
    own = process.launcher == "srun" and count == 1
    if not own and count < process.local_ranks:
        raise fail(
            "train.device",
            f"this host shows {count} device{'s' if count > 1 else ''} to {process.local_ranks} ranks; start at most "
            "one rank a device, see whether one has failed, or train on CPUs (train.device: cpu)",
            wanted,
        )
    return torch.device("cuda", 0 if own else process.local_rank)


def join(process: Process, store: Store, device: torch.device, timeout_seconds: float) -> None:
    """Make torch.distributed's world: NCCL/RCCL on GPUs, gloo on CPUs."""
    if device.type == "cuda":
        torch.cuda.set_device(device)
    else:
        forget_collectives(os.environ)
    dist.init_process_group(
        "nccl" if device.type == "cuda" else "gloo",
        store=store,
        rank=process.rank,
        world_size=process.ranks,
        timeout=timedelta(seconds=timeout_seconds),
    )


def make_deterministic() -> None:
    """Let PyTorch use kernels that give the same bits every time."""
    os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")  # cuBLAS is not otherwise
    torch.use_deterministic_algorithms(True)


def set_threads(process: Process, wanted: int | None) -> None:
    """Give a rank its share of the host's cores."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    torch.set_num_threads(wanted or process.cores or max(1, cores // process.local_ranks))
