"""Worker processes that stay: one gloo world for every grid of a test run.

A task is an importable function `f(worker, **arguments)`; each rank returns what it returns.
"""

from __future__ import annotations

import importlib
import multiprocessing
import os
import tempfile
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

SIZE = 8


@dataclass
class Worker:
    """What a task sees of its process."""

    rank: int
    meshes: dict[str, Any] = field(default_factory=dict)

    def mesh(self, grid: Any) -> Any:
        """The mesh of a grid; groups are made once. None for ranks outside it."""
        from runtime.mesh import Mesh

        if self.rank >= grid.ranks:
            return None
        if str(grid) not in self.meshes:
            self.meshes[str(grid)] = Mesh.create(grid, timeout_seconds=120)
        return self.meshes[str(grid)]


def serve(rank: int, size: int, store: str, pipe: Any) -> None:
    """Do tasks until told to stop."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", rank=rank, world_size=size, store=dist.FileStore(store, size)
    )
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


class Pool:
    """The processes."""

    def __init__(self, size: int = SIZE) -> None:
        spawn = multiprocessing.get_context("spawn")
        self._folder = tempfile.TemporaryDirectory()
        store = str(Path(self._folder.name) / "store")
        self.pipes, self.processes = [], []
        for rank in range(size):
            ours, theirs = spawn.Pipe()
            process = spawn.Process(target=serve, args=(rank, size, store, theirs), daemon=True)
            process.start()
            self.pipes.append(ours)
            self.processes.append(process)

    def run(self, task: str, ranks: int, **arguments: Any) -> list[Any]:
        """Run a task on the first `ranks` processes; return what each returned."""
        for pipe in self.pipes[:ranks]:
            pipe.send((task, arguments))
        answers = []
        for rank, pipe in enumerate(self.pipes[:ranks]):
            if not pipe.poll(180):
                raise TimeoutError(f"rank {rank} does not answer: {task} {arguments}")
            answers.append(pipe.recv())
        failed = [f"rank {r}:\n{text}" for r, (fine, text) in enumerate(answers) if not fine]
        assert not failed, "\n".join(failed)
        return [value for _, value in answers]

    def close(self) -> None:
        """Stop the processes."""
        for pipe in self.pipes:
            pipe.send(None)
        for process in self.processes:
            process.join(10)
            process.kill()
        self._folder.cleanup()
