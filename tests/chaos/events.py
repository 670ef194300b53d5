"""What happens to a run: drawn by a seed, done one after the other."""

from __future__ import annotations

import os
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Literal

from tests.chaos.cluster import HOSTS, Cluster

Kind = Literal["rank", "host", "stop", "link", "disk", "damage", "two ranks"]
COUNTS: dict[Kind, int] = {"rank": 6, "two ranks": 2, "host": 5, "stop": 2, "link": 3, "disk": 3, "damage": 4}


@dataclass(frozen=True)
class Chaos:
    """How often each thing happens, in which order."""

    kinds: tuple[Kind, ...]
    seed: int

    @classmethod
    def drawn(cls, seed: int, share: float = 1.0) -> Chaos:
        """Draw an order; `share` of the usual number of each, at least one."""
        kinds = [kind for kind, count in COUNTS.items() for _ in range(max(1, round(share * count)))]
        Random(f"order {seed}").shuffle(kinds)
        return cls(tuple(kinds), seed)


@dataclass(frozen=True)
class Places:
    """Where the run keeps things."""

    disk: Path
    memory: Path
    checkpoints: Path


def happen(kind: Kind, random: Random, cluster: Cluster, places: Places) -> str:
    """Do it, and mend what does not mend itself; return what was done."""
    host = random.randrange(HOSTS)
    if kind in {"rank", "two ranks"}:
        chosen = random.sample(cluster.ranks(), 2 if kind == "two ranks" else 1)
        for process in chosen:
            with suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return f"killed {len(chosen)}"
    if kind == "host":
        away = random.uniform(1.0, 25.0)
        cluster.lose(host, places.memory)
        time.sleep(away)
        cluster.start(host)
        return f"lost host {host} for {away:.0f} s"
    if kind == "stop":
        with suppress(ProcessLookupError):
            os.kill(random.choice(cluster.ranks()), signal.SIGSTOP)
        return "stopped a rank"
    if kind == "link":
        away = random.uniform(1.0, 20.0)
        cluster.link(host, "down")
        time.sleep(away)
        cluster.link(host, "up")
        return f"cut the link of host {host} for {away:.0f} s"
    if kind == "disk":
        return _fill(places.disk, random.uniform(3.0, 12.0))
    return _damage(random, cluster, places)


def _fill(disk: Path, seconds: float) -> str:
    """Leave no byte free for a while."""
    filler = disk / "filler"
    with suppress(OSError), filler.open("wb", buffering=0) as file:
        for size in (1 << 20, 1 << 12):
            with suppress(OSError):
                while True:
                    file.write(bytes(size))
    time.sleep(seconds)
    filler.unlink(missing_ok=True)
    return f"filled the disk for {seconds:.0f} s"


def _damage(random: Random, cluster: Cluster, places: Places) -> str:
    """Damage the newest checkpoint, empty all memories, and kill a rank so that it would be needed."""
    complete = sorted(places.checkpoints.glob("step-*"))
    what = "nothing to damage"
    if complete:
        files = sorted(path for path in complete[-1].iterdir() if path.is_file())
        path = random.choice(files)
        raw = bytearray(path.read_bytes())
        if random.random() < 0.5:
            raw[random.randrange(len(raw))] ^= 1 << random.randrange(8)
            what = f"flipped a bit of {path.name}"
        else:
            raw = raw[: random.randrange(len(raw))]
            what = f"cut {path.name} short"
        path.write_bytes(raw)
    for process in cluster.ranks():  # all at once: else a copy in memory is made meanwhile
        with suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    for host in range(HOSTS):
        cluster.forget(host, places.memory)
    return f"{what}, emptied all memories, killed all ranks"
