"""Worker processes that stay: one gloo world for every grid of a test run.

A task is an importable function `f(worker, **arguments)`; each rank returns what it returns.
"""

from __future__ import annotations

import faulthandler
import importlib
import multiprocessing
import os
import sys
import tempfile
import traceback
from contextlib import suppress
from dataclasses import dataclass, field
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from runtime.parallel.flight_recorder import forget_collectives

FEWER, SIZE = 4, 8
"""Processes that a pool starts with, and has once a task needs more: eight at rest take half a core."""
PRELOADED = (
    "torch.distributed",
    "torch._dynamo",  # PyTorch's pipelines load it
    "runtime.train.trainer",
    "tests.runtime.parity",
    "tests.runtime.fsdp_tasks",
    "tests.runtime.megatron_tasks",
    "tests.runtime.auto.own",
)
"""What tasks import: once here, or for a second and a half in every process that is started."""
MAX_MESHES = 6
"""Made by the processes before they are replaced."""
GROUP_SECONDS = 180
"""A collective may take: a machine that others keep busy, or that stands still for a minute, fails no test."""


@dataclass
class Worker:
    """What a task sees of its process."""

    rank: int
    meshes: dict[str, Any] = field(default_factory=dict)

    def mesh(self, grid: Any) -> Any:
        """The mesh of a grid, which `Pool.run` has made."""
        return self.meshes[str(grid)]


def make_mesh(worker: Worker, grid: dict[str, int]) -> None:
    """Make a grid's mesh. Every rank makes as many groups, for torch names them by their count."""
    import torch.distributed as dist

    from runtime.parallel.mesh import Mesh
    from twin.schedule.ops import axis_of
    from twin.strategies.four_d.grid import Grid

    sizes = Grid(**grid)
    if str(sizes) in worker.meshes:
        return
    if worker.rank < sizes.ranks:
        worker.meshes[str(sizes)] = Mesh.create(sizes, timeout_seconds=GROUP_SECONDS)
        return
    worker.meshes[str(sizes)] = None
    if sizes.ranks > 1:
        groups = sum(sizes.size(axis_of(name)) > 1 for name in sizes.streams) + 1
        for _ in range(groups):
            dist.new_group([worker.rank], use_local_synchronization=True)


def serve(rank: int, size: int, store: str, said: str, pipe: Any) -> None:
    """Do tasks until told to stop; what a crash says goes into the file `said`."""
    import torch
    import torch.distributed as dist

    os.dup2(os.open(said, os.O_WRONLY | os.O_CREAT | os.O_APPEND), sys.stderr.fileno())
    faulthandler.enable()
    torch.set_num_threads(1)
    forget_collectives(os.environ)  # as ranks of a training do
    dist.init_process_group("gloo", rank=rank, world_size=size, store=dist.FileStore(store, size))
    worker = Worker(rank)
    while (task := pipe.recv()) is not None:
        name, arguments = task
        module, _, function = name.partition(":")
        try:
            pipe.send((True, getattr(importlib.import_module(module), function)(worker, **arguments)))
        except BaseException:
            pipe.send((False, traceback.format_exc()))
    pipe.close()
    os._exit(0)  # gloo's threads may abort a process that ends in the ordinary way


def preload(modules: list[str]) -> None:
    """Have children forked from a process that has imported what all of them need.

    There is one such process, and it imports nothing once it runs: a search that a test ran here on several cores has
    started it bare. It is started anew, then; its children have ended with that search.
    """
    server = forkserver._forkserver  # there is no public way to stop it
    if server._preload_modules != modules:
        server._stop()
        server.set_forkserver_preload(modules)


class Pool:
    """The processes, started anew when they have made many groups, and when a task needs more of them.

    Each gloo group has a thread that wakes a hundred times a second; with all grids of a test run these
    would keep both cores of a small machine busy.
    """

    def __init__(self, size: int = FEWER, most_seconds: float = GROUP_SECONDS + 30.0) -> None:
        self._size, self.most_seconds = size, most_seconds
        self._fork = multiprocessing.get_context("forkserver")
        preload(list(PRELOADED))
        self._start()

    def _start(self) -> None:
        self._folder = tempfile.TemporaryDirectory()
        self._meshes: set[str] = set()
        store = str(Path(self._folder.name) / "store")
        self.pipes, self.processes = [], []
        for rank in range(self._size):
            ours, theirs = self._fork.Pipe()
            arguments = (rank, self._size, store, str(self._said(rank)), theirs)
            process = self._fork.Process(target=serve, args=arguments, daemon=True)
            process.start()
            theirs.close()  # so that the end of a process is the end of its pipe
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, task: str, ranks: int, **arguments: Any) -> list[Any]:
        """Run a task on the first `ranks` processes; return what each returned.

        If it has an argument `grid`, that grid's mesh is there when it starts.
        """
        if ranks > self._size:
            self.close()
            self._size = SIZE
            self._start()
        if "grid" in arguments:
            grid = str(sorted(arguments["grid"].items()))
            if grid not in self._meshes and len(self._meshes) == MAX_MESHES:
                self.close()
                self._start()
            self._meshes.add(grid)
            self._run("tests.runtime.pool:make_mesh", len(self.pipes), grid=arguments["grid"])
        return self._run(task, ranks, **arguments)

    def _run(self, task: str, ranks: int, **arguments: Any) -> list[Any]:
        try:
            answers = self._ask(task, ranks, **arguments)
        except (EOFError, OSError) as error:  # a TimeoutError is one
            trouble = f"{task} {arguments}: {error or type(error).__name__}\n{self._ended()}"
            self._replace()
            raise RuntimeError(trouble) from None
        except BaseException:  # such as Ctrl-C
            self._replace()
            raise
        failed = [f"rank {r}:\n{text}" for r, (fine, text) in enumerate(answers) if not fine]
        assert not failed, "\n".join(failed)
        return [value for _, value in answers]

    def _replace(self) -> None:
        """Start anew: what is left would answer the next question with the answers to this one."""
        self.close(patience_seconds=0.0)
        self._start()

    def _ask(self, task: str, ranks: int, **arguments: Any) -> list[tuple[bool, Any]]:
        for pipe in self.pipes[:ranks]:
            pipe.send((task, arguments))
        answers = []
        for rank, pipe in enumerate(self.pipes[:ranks]):
            if not pipe.poll(self.most_seconds):
                raise TimeoutError(f"rank {rank} does not answer")
            answers.append(pipe.recv())
        return answers

    def _said(self, rank: int) -> Path:
        return Path(self._folder.name) / f"rank-{rank}.txt"

    def _ended(self) -> str:
        """Tell which processes have ended, how, and with which words."""
        lines = []
        for rank, process in enumerate(self.processes):
            process.join(1.0)
            if process.exitcode is not None:
                said = self._said(rank)
                words = said.read_text(errors="replace")[-4000:] if said.exists() else ""
                lines.append(f"rank {rank} ended with exit code {process.exitcode}: {words}")
        return "\n".join(lines)

    def close(self, patience_seconds: float = 10.0) -> None:
        """Stop the processes; kill the one that takes longer."""
        for pipe in self.pipes:
            with suppress(OSError):  # it has ended already
                pipe.send(None)
        for process in self.processes:
            process.join(patience_seconds)
            process.kill()
            process.join()
        self._folder.cleanup()
