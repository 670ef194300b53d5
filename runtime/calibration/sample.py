"""The time that a piece of device work takes: repeated, in chunks long enough for the clock."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

import torch

CHUNK_SECONDS = {"cpu": 5e-4, "cuda": 1e-3}
"""Least time between two looks at the clock."""
MAX_IN_CHUNK = {"cpu": 10_000, "cuda": 256}
"""On a GPU as many as the host issues while the plug runs."""
PLUG_SIZE = 4096
"""Side of the square product that keeps a GPU busy while the host issues work."""
CACHE_BYTES = {"cpu": 32 << 20, "cuda": 256 << 20}
"""More than a device's last cache holds."""
MAX_COPIES = 32


Clock = Callable[[], float]


@dataclass(frozen=True)
class Sample:
    """What repeated timing found."""

    seconds: float
    """Of one repetition: the median of chunks."""
    mean_seconds: float
    """Total time over repetitions: what counts where a core is shared and work is interrupted."""
    spread: float
    """Median absolute deviation of chunks, relative to their median."""
    repeats: int


def spread(values: Sequence[float]) -> float:
    """Median absolute deviation relative to the median; 0 if that is 0.

    >>> spread([1.0, 2.0, 3.0])
    0.5
    """
    middle = median(values)
    return median(abs(value - middle) for value in values) / middle if middle else 0.0


def synchronize(device: torch.device) -> None:
    """Wait until a device has done all it was given; a CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def chunk_of(run: Callable[[], object], device: torch.device) -> int:
    """Warm up, and find how many repetitions fill a chunk."""
    chunk, least, most = 1, CHUNK_SECONDS[device.type], MAX_IN_CHUNK[device.type]
    for _ in range(2):
        run()
    while chunk < most:
        elapsed = _timed(run, chunk, device)
        if elapsed >= 0.5 * least:
            break
        chunk = min(most, max(2 * chunk, round(chunk * least / max(elapsed, 1e-7))))
    return chunk


def repeat(
    run: Callable[[], object], chunk: int, seconds: float, device: torch.device, clock: Clock = time.perf_counter
) -> Sample:
    """Repeat for so many seconds, at least three chunks on a GPU and one on a CPU.

    On a CPU `clock` tells the time: with `time.thread_time` it is that of the core itself, without the
    turns that other ranks take on it.
    """
    least = 3 if device.type == "cuda" else 1
    begin, chunks = time.perf_counter(), list[float]()
    while len(chunks) < least or time.perf_counter() - begin < seconds:
        chunks.append(_timed(run, chunk, device, clock) / chunk)
    return Sample(median(chunks), sum(chunks) / len(chunks), spread(chunks), chunk * len(chunks))


def _timed(run: Callable[[], object], count: int, device: torch.device, clock: Clock = time.perf_counter) -> float:
    """Seconds of so many repetitions on the device."""
    if device.type == "cpu":
        begin = clock()
        for _ in range(count):
            run()
        return clock() - begin
    plug(device)
    begin_event, end_event = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    begin_event.record()
    for _ in range(count):
        run()
    end_event.record()
    torch.cuda.synchronize(device)
    milliseconds: float = begin_event.elapsed_time(end_event)
    return milliseconds / 1e3


def plug(device: torch.device, products: int = 1) -> None:
    """Give a GPU something to do first, so that what follows runs back to back; nothing on a CPU.

    Without it small kernels would be timed at the pace at which the host issues them.
    """
    if device.type != "cuda":
        return
    block = torch.zeros(PLUG_SIZE, PLUG_SIZE, device=device)
    for _ in range(products):
        torch.mm(block, block)


def copies_beyond_cache(bytes_: float, device: torch.device) -> int:
    """Return how many sets of operands to take turns with, so that none is in the cache when it comes."""
    return int(min(MAX_COPIES, max(2, -(-CACHE_BYTES[device.type] // max(1, int(bytes_))))))


def in_turn(runs: Sequence[Callable[[], object]]) -> Callable[[], object]:
    """Do the next of several each time."""
    state = [0]

    def run() -> object:
        index = state[0]
        state[0] = (index + 1) % len(runs)
        return runs[index]()

    return run
