"""Content that is made while the browser still reads the scripts that will ask for it.

A browser asks for a page's frame, reads some megabytes of scripts, and then asks for the content. At the first of these
the server knows what the last will be.
"""

from __future__ import annotations

import time
from collections import OrderedDict
from collections.abc import Callable, Hashable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Lock
from typing import Generic, TypeVar

KEEP_SECONDS = 20.0
"""What was begun longer ago is made anew: its files may have changed since."""
MAX_BEGUN = 4
"""Frames whose content nobody asks for, as a plain client's, leave no more than this behind."""
Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class Ahead(Generic[Key, Value]):
    """Values by their keys: each is begun early, and taken once."""

    def __init__(self, make: Callable[[Key], Value], clock: Callable[[], float] = time.monotonic) -> None:
        self._make, self._clock = make, clock
        self._worker = ThreadPoolExecutor(max_workers=1, thread_name_prefix="ahead")
        self._begun: OrderedDict[Key, tuple[float, Future[Value]]] = OrderedDict()
        self._lock = Lock()

    def begin(self, key: Key) -> None:
        """Begin to make a value; what was begun of this key before is forgotten."""
        with self._lock:
            if key in self._begun:
                self._begun.pop(key)[1].cancel()
            self._begun[key] = (self._clock(), self._worker.submit(self._make, key))
            while len(self._begun) > MAX_BEGUN:
                self._begun.popitem(last=False)[1][1].cancel()

    def take(self, key: Key) -> Value:
        """Return what was begun, when it is ready, or make it now. Raises what making it raises."""
        with self._lock:
            when, begun = self._begun.pop(key, (0.0, None))
        # cancelled, where it is still in line behind others
        if begun is None or self._clock() - when > KEEP_SECONDS or begun.cancel():
            return self._make(key)
        return begun.result()
