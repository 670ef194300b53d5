"""What ranks train on, read from its files before it is wanted: in a thread, while the step before computes.

Files may lie on a slow disk, whose pages come when they are touched. On a GPU what was read lies in pinned memory, from
which copies run beside compute.
"""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor, wait
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from runtime.data.batches import Samples


class Part(NamedTuple):
    """Samples first … first+count-1, in the host's memory; see `Samples`."""

    first: int
    window: torch.Tensor
    targets: torch.Tensor | None
    documents: torch.Tensor | None


class Ahead:
    """Reads samples of one step ahead."""

    def __init__(self, samples: Samples, device: torch.device, *, documents: bool) -> None:
        self.samples, self.documents, self.device = samples, documents, device
        self._reader: ThreadPoolExecutor | None = None
        self._begun: tuple[tuple[tuple[int, int], ...], Future[list[Part]]] | None = None

    def begin(self, wanted: Sequence[tuple[int, int]]) -> None:
        """Begin to read parts (first, count): they are asked for next, as far as anybody knows."""
        self._reader = self._reader or ThreadPoolExecutor(1, "samples", self._settle)
        self._begun = (tuple(wanted), self._reader.submit(self._read, tuple(wanted)))

    def _settle(self) -> None:
        """Let the thread that reads pin memory for its rank's device: else it makes a context on the first one."""
        if self.device.type == "cuda":
            torch.cuda.set_device(self.device)

    def take(self, wanted: Sequence[tuple[int, int]]) -> list[Part]:
        """Return these parts; what was read ahead and is not wanted, as behind a step back, is let go.

        Raises what reading raised.
        """
        begun, self._begun = self._begun, None
        if begun is not None and begun[0] == tuple(wanted):
            return begun[1].result()
        if begun is not None:
            wait([begun[1]])  # files are read by one thread at a time
        return self._read(wanted)

    def _read(self, wanted: Sequence[tuple[int, int]]) -> list[Part]:
        found = []
        for first, count in wanted:
            documents = self.samples.documents(first, count) if self.documents else None
            window, targets = self.samples.sequences(first, count), self.samples.targets(first, count)
            laid = self._laid_down(window)
            others = (None if each is None else self._laid_down(each) for each in (targets, documents))
            found.append(Part(first, laid, *others))
        return found

    def _laid_down(self, array: NDArray[np.int64] | NDArray[np.bool_]) -> torch.Tensor:
        found = torch.from_numpy(array)
        return found.pin_memory() if self.device.type == "cuda" else found
