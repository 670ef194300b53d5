"""Checkpoints of a tiny model on one rank, for tests that need no second one."""

from collections.abc import Callable
from pathlib import Path

import pytest

from runtime.checkpoint.checkpoints import Checkpoints
from runtime.checkpoint.loading import Loaded
from tests.runtime.checkpoint.tasks import tiny


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A directory with checkpoints of steps 1, 2 and 3, whose weights are all 1, 2 and 3."""
    trainee = tiny()
    checkpoints = Checkpoints(tmp_path / "run", trainee.context.mesh)
    for step in (1, 2, 3):
        trainee.context.store.master.fill_(step)
        checkpoints.save(trainee.context, trainee.optimizer, step=step, samples=step)
    checkpoints.close()
    return tmp_path / "run"


@pytest.fixture
def load() -> Callable[[Path], tuple[Loaded | None, float]]:
    """Load the latest into a fresh model; return what was loaded, and the value of its weights."""

    def load_latest(root: Path) -> tuple[Loaded | None, float]:
        trainee = tiny()
        store = trainee.context.store
        store.master.fill_(-1)
        try:
            loaded = Checkpoints(root, trainee.context.mesh).load_latest(trainee.context, trainee.optimizer)
        finally:
            used = store.master[: store.used]
            assert (used == used[0]).all(), "weights of different checkpoints are mixed"
        return loaded, float(used[0])

    return load_latest
