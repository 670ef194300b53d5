"""The directory of a run in a host's memory file system: ours alone, or none.

    /dev/shm/fourfold-UID-HASH/00000120-1f3a9c04/rank-00003.safetensors
                                                 rank-00003.json

HASH is of the run's directory and the host's name. A step's directory carries the session, which is
drawn anew by each start, so that parts of different starts are never put together.
"""

from __future__ import annotations

import os
import re
import shutil
import stat
from collections.abc import Iterator
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path

from twin.description.problems import fail

_STEP = re.compile(r"(\d{8,15})-([0-9a-f]{8})\Z", re.ASCII)
_PART = re.compile(r"rank-(\d{5,9})\.json\Z", re.ASCII)
KEY = "train.checkpoints.memory_directory"


@dataclass(frozen=True)
class Place:
    """Where a host keeps its parts."""

    root: Path

    @classmethod
    def of(cls, directory: str, run: Path, host: str) -> Place:
        """Name the place of a run on a host; nothing is made."""
        text = f"{run.absolute()}\n{host}"
        return cls(Path(directory) / f"fourfold-{os.getuid()}-{sha256(text.encode()).hexdigest()[:16]}")

    def check(self) -> bool:
        """Tell whether it is there. Raises DescriptionError if what is there is not ours alone."""
        try:
            found = self.root.lstat()
        except FileNotFoundError:
            return False
        except OSError as error:
            raise fail(KEY, f"cannot be read: {error.strerror}", str(self.root)) from None
        ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
        if not ours or stat.S_IMODE(found.st_mode) & 0o077:
            raise fail(
                KEY,
                "is a link, or belongs to somebody else, or others may write there: it is not used; "
                "remove it, or choose another directory",
                str(self.root),
            )
        return True

    def make(self) -> None:
        """Make it, or make sure that it is ours. Raises DescriptionError if it cannot be."""
        if not self.root.parent.is_dir():
            raise fail(
                KEY, "there is no such directory on this host; choose one that is in memory", str(self.root.parent)
            )
        try:
            self.root.mkdir(mode=0o700, exist_ok=True)
        except FileExistsError:
            pass  # it is no directory, as the next line says
        except OSError as error:
            raise fail(KEY, f"cannot be written: {error.strerror}", str(self.root)) from None
        self.check()

    def step(self, step: int, session: str) -> Path:
        """Directory of a step of a session."""
        return self.root / f"{step:08d}-{session}"

    def parts(self) -> Iterator[tuple[Path, int]]:
        """Yield what is held: the directory of the step, and the rank whose part it is."""
        if not self.check():
            return
        for folder in sorted(self.root.iterdir()):
            if not _STEP.match(folder.name) or folder.is_symlink() or not folder.is_dir():
                continue
            for path in sorted(folder.iterdir()):
                if match := _PART.match(path.name):
                    yield folder, int(match[1])

    def keep_from(self, kept: Path) -> None:
        """Delete earlier steps than this, and those of other sessions; raises OSError.

        Later ones of its session stay: another rank of the host may have begun one already.
        """
        mine = _STEP.match(kept.name)
        assert mine is not None, kept
        for folder, step, session in self._steps():
            if session != mine[2] or step < int(mine[1]):
                shutil.rmtree(folder, ignore_errors=True)

    def empty(self) -> None:
        """Delete all steps; raises OSError. No rank of the host may be writing one."""
        for folder, _, _ in self._steps():
            shutil.rmtree(folder, ignore_errors=True)

    def _steps(self) -> list[tuple[Path, int, str]]:
        """Directories of steps, each with its step and session."""
        if not self.check():
            return []
        return [
            (folder, int(match[1]), match[2])
            for folder in self.root.iterdir()
            if (match := _STEP.match(folder.name)) and not folder.is_symlink()
        ]

    def remove(self) -> None:
        """Delete everything; a run that is over leaves nothing in memory."""
        if self.check():
            shutil.rmtree(self.root, ignore_errors=True)


def data_file(folder: Path, rank: int) -> Path:
    """Numbers of a rank's part."""
    return folder / f"rank-{rank:05d}.safetensors"


def part_file(folder: Path, rank: int) -> Path:
    """What the part says about itself; it is there once the numbers are."""
    return folder / f"rank-{rank:05d}.json"
