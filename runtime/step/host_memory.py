"""What the host's memory has left for new data: the machine's, and the group's whose limit a job or a container has.

SLURM (`--mem`) and containers limit processes by control groups, of which the kernel ends one that takes more; the
machine's own figure knows nothing of it. Files: the kernel's documents `cgroup-v2` and `cgroup-v1/memory`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

MEMORY_INFO = Path("/proc/meminfo")
OWN_GROUPS = Path("/proc/self/cgroup")
GROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class _Names:
    """Files of a group in one of the kernel's two hierarchies."""

    limit: str
    usage: str
    reclaimable: tuple[str, str]
    """Lines of `memory.stat`: pages of files, which the kernel takes back before it ends a process."""


UNIFIED = _Names("memory.max", "memory.current", ("inactive_file", "active_file"))
SEPARATE = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_inactive_file", "total_active_file"))


def available_bytes(info: Path = MEMORY_INFO, own: Path = OWN_GROUPS, groups: Path = GROUPS) -> int | None:
    """Return what is left for new data; None where it is not told."""
    machine = _number_after("MemAvailable:", info)
    found = [] if machine is None else [machine * 1024]
    return min([*found, *_left_in_groups(own, groups)], default=None)


def _left_in_groups(own: Path, groups: Path) -> Iterator[int]:
    """Yield what is left below the limit of each group that this process is in, the outer ones too."""
    for line in _lines(own):
        _, _, rest = line.partition(":")
        controllers, _, path = rest.partition(":")
        if controllers and "memory" not in controllers.split(","):
            continue
        names, root = (SEPARATE, groups / "memory") if controllers else (UNIFIED, groups)
        inside = [part for part in path.split("/") if part]
        # a container may see itself at the root, or be told of a path that it does not see
        for depth in range(len(inside) + 1 if ".." not in inside else 1):
            left = _left(root.joinpath(*inside[:depth]), names)
            if left is not None:
                yield left


def _left(group: Path, names: _Names) -> int | None:
    limit, usage = (_number(group / name) for name in (names.limit, names.usage))
    if limit is None or usage is None:
        return None
    files = sum(_number_after(name, group / "memory.stat") or 0 for name in names.reclaimable)
    return max(0, limit - usage + files)


def _lines(path: Path) -> list[str]:
    try:
        return path.read_text(encoding="utf-8").splitlines()
    except (OSError, UnicodeDecodeError):
        return []


def _number(path: Path) -> int | None:
    """Return the number that a file has; None of one that is not there, and of `max`."""
    first = next(iter(_lines(path)), "").strip()
    return int(first) if first.isdigit() else None


def _number_after(name: str, path: Path) -> int | None:
    """Return the number in the line of a file that begins with this word."""
    for line in _lines(path):
        words = line.split()
        if len(words) > 1 and words[0] == name and words[1].isdigit():
            return int(words[1])
    return None
