"""A program that kills a saver before every single thing it does to the disk, and looks what is left.

Usage: python -m tests.runtime.checkpoint.killed DIRECTORY; prints one JSON list. In the directory
lie checkpoints whose weights are all equal to a number that says which save they came from.
"""

from __future__ import annotations

import json
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import Any

import torch

from runtime.checkpoint.checkpoints import Checkpoints
from tests.runtime.checkpoint.tasks import tiny

TOUCHES = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "shutil.rmtree"}
MOST = 400


def save(root: Path, step: int, value: float) -> None:
    trainee = tiny()
    trainee.context.store.master.fill_(value)
    checkpoints = Checkpoints(root, trainee.context.mesh, keep=1)
    checkpoints.save(trainee.context, trainee.optimizer, step=step, samples=0)
    checkpoints.close()


def load(root: Path) -> tuple[int, float, list[str]]:
    trainee = tiny()
    loaded = Checkpoints(root, trainee.context.mesh).load_latest(trainee.context)
    weights = trainee.context.store.master[: trainee.context.store.used]
    assert loaded is not None, "no checkpoint is left"
    assert not loaded.rejected, loaded.rejected
    assert (weights == weights[0]).all()
    return loaded.step, float(weights[0]), sorted(p.name for p in root.iterdir())


def killed(root: Path, touch: int, step: int, value: float) -> bool:
    """Save in a child that dies before its n-th touch of the disk; False if it got through."""
    child = os.fork()
    if child:
        return os.waitpid(child, 0)[1] != 0
    seen = 0

    def count(event: str, _arguments: Any) -> None:
        nonlocal seen
        if event in TOUCHES:
            seen += 1
            if seen > touch:
                os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)
    save(root, step, value)
    os._exit(0)


def main(folder: Path) -> None:
    torch.set_num_threads(1)
    outcomes: dict[str, list[Any]] = {}
    for name, step in (("new", 2), ("again", 1)):
        outcomes[name] = []
        for touch in range(MOST):
            root = folder / f"{name}{touch}" / "run"
            save(root, 1, 1.0)
            died = killed(root, touch, step, 2.0)
            outcomes[name].append(load(root))
            shutil.rmtree(root.parent)
            if not died:
                break
    print(json.dumps(outcomes))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
