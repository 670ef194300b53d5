"""NumPy is loaded without threads of its own, and nobody else is told."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from twin.engine.threads import BLAS_THREADS, load_numpy_alone

LOADS = "import os; from twin.engine.threads import load_numpy_alone; load_numpy_alone(); print(len(os.listdir({!r})))"
TASKS = Path("/proc/self/task")


def test_the_environment_is_as_before(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(BLAS_THREADS, raising=False)
    load_numpy_alone()
    assert BLAS_THREADS not in os.environ
    monkeypatch.setenv(BLAS_THREADS, "3")
    load_numpy_alone()
    assert os.environ[BLAS_THREADS] == "3"


@pytest.mark.process
@pytest.mark.quick
@pytest.mark.skipif(not TASKS.exists(), reason="counts the threads that Linux lists")
def test_a_process_has_one_thread_then() -> None:
    alone = {name: value for name, value in os.environ.items() if not name.endswith("_NUM_THREADS")}
    ran = subprocess.run(
        [sys.executable, "-c", LOADS.format(str(TASKS))], env=alone, capture_output=True, text=True, check=True
    )
    assert ran.stdout.strip() == "1"
