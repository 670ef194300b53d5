"""Python's collector of garbage, held off while many small objects are made."""

from __future__ import annotations

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def uncollected() -> Iterator[None]:
    """Hold the collector off: a schedule is many small objects and no cycles.

    It would look through all of them again and again, for up to 40 % of the time.
    """
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()
