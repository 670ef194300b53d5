"""The worker processes that the runtime's tests share."""

from collections.abc import Iterator

import pytest

from tests.runtime.pool import Pool


@pytest.fixture(scope="session")
def pool() -> Iterator[Pool]:
    """Eight ranks on gloo, started once."""
    workers = Pool()
    yield workers
    workers.close()
