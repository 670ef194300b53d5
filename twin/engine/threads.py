"""NumPy without threads of its own: the twin multiplies no large matrices, and they take longer to start than NumPy."""

from __future__ import annotations

import os

BLAS_THREADS = "OPENBLAS_NUM_THREADS"


def load_numpy_alone() -> None:
    """Load NumPy without a thread for each core, unless the environment says how many there shall be.

    They spin as they start, 0.1 s of processor time on two cores, and login nodes limit how many one may have. What
    this process starts later decides for itself: the environment is as before.
    """
    if BLAS_THREADS in os.environ:
        return
    os.environ[BLAS_THREADS] = "1"
    try:
        import numpy  # noqa: F401, PLC0415
    finally:
        del os.environ[BLAS_THREADS]
