"""What the runtime's tests share: worker processes, and runs that nothing happens to."""

from collections.abc import Iterator
from functools import cache

import pytest

from tests.runtime import runs
from tests.runtime.pool import Pool
from tests.tiers import makes


@pytest.fixture(scope="session")
@makes("process")
def pool() -> Iterator[Pool]:
    """Ranks on gloo, started once: four, or eight from the first task on that needs them."""
    workers = Pool()
    yield workers
    workers.close()


@pytest.fixture(scope="session")
@makes("process")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> runs.Undisturbed:
    """Train the small job for so many steps on two ranks; every number of steps once in a test run.

    Checkpoints, time limits and restarts change no loss, so jobs that differ in these alone may compare with it.
    """

    @cache
    def train(steps: int) -> runs.Trained:
        folder = tmp_path_factory.mktemp("undisturbed")
        job = runs.write_job(folder, train={"steps": steps})
        done = runs.train(job, "--ranks", "2", "--out", str(folder / "run"))
        assert done.returncode == 0, done.stderr
        losses = runs.losses(folder / "run")
        assert list(losses) == list(range(steps))
        return runs.Trained(job, folder / "run", losses, done)

    return train
