"""At the start: a checkpoint put together from what the hosts that are left hold in memory.

One rank of each host says what is there. Rank 0 looks for the newest step all of whose parts are somewhere;
whoever holds a part verifies it and copies it into the run's `checkpoints/`. That is done also where the newest
checkpoint on the disk is newer, but none before it is: that one may turn out to be unreadable when it is
loaded. All goes over the store, so that hosts without a place in the grid take part too.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import prod
from pathlib import Path
from typing import Any

from runtime.checkpoint import directory
from runtime.checkpoint.manifest import MANIFEST, to_text
from runtime.checkpoint.tensor_file import UnusableFileError
from runtime.launch.board import Board
from runtime.launch.disagreement import DisagreementError
from runtime.parallel.host import host_name
from runtime.plan.plan import Plan
from runtime.records.run_directory import CHECKPOINTS, ID
from runtime.survive.history import KEY, History
from runtime.survive.memory.copies import Session
from runtime.survive.memory.part import Part, manifest_of, parse_part, read_part, verify
from runtime.survive.memory.place import Place, data_file, part_file
from twin.description.problems import DescriptionError

Held = tuple[int, str, int, int]
"""Step, session, the rank whose part it is, and of how many."""


def recover(plan: Plan, board: Board, described: Mapping[str, Any], history: History) -> tuple[Session | None, str]:
    """Return what copies in memory need, None if none are wanted, and a line that says what was found.

    A checkpoint that could be put together lies in the run's `checkpoints/` then. `described` is the
    run's `run.json`. Every rank that was started must call it. Raises DescriptionError on every rank if
    a host has no place for copies.
    """
    wanted = plan.options.checkpoints
    if not wanted.memory_every:
        return None, ""
    host, run = host_name(), str(described.get(ID, ""))
    place = Place.of(wanted.memory_directory, plan.out, host)
    problem, held = "", list[Held]()
    if board.process.local_rank == 0:
        try:
            place.make()
            held = holdings(place, run, history)
        except DescriptionError as error:
            problem = f"host {host}: {error}"
    told = board.gather([problem, held])
    problems = board.tell(lambda: sorted({text for text, _ in told if text}))
    if problems:
        raise DisagreementError(problems)
    root = plan.out / CHECKPOINTS
    assembly = Assembly(root, [[map_held(each) for each in found] for _, found in told])
    while (order := board.tell(assembly.order)) is not None:
        reports = board.gather(carry_out(order, board.process.rank, place, root))
        if board.first:
            assembly.take(reports)
    news, failed, name = board.tell(lambda: [assembly.news, assembly.failed, secrets.token_hex(4)])
    empty = board.process.local_rank == 0 and not failed  # what was worth it is on the disk
    return Session(run, str(name), place, host, wanted.timeout_seconds, empty), str(news)


def map_held(raw: Any) -> Held:
    """Read what came over the store."""
    step, session, rank, ranks = raw
    return int(step), str(session), int(rank), int(ranks)


def holdings(place: Place, run: str, history: History) -> list[Held]:
    """Parts of this run that a host holds, and that know what the run knows of going back."""
    found = []
    for folder, rank in place.parts():
        try:
            part, _ = read_part(part_file(folder, rank))
        except (UnusableFileError, OSError):
            continue
        named = folder == place.step(part.step, part.session) and part.rank == rank
        if named and part.run == run and part.extra.get(KEY) == history.as_json():
            found.append((part.step, part.session, part.rank, prod(part.grid.values())))
    return found


def carry_out(order: Mapping[str, Any], me: int, place: Place, root: Path) -> dict[str, list[str]]:
    """Verify and copy the parts that rank 0 asks this rank for; say of each how it went.

    `copied`, `failed` if the part is bad, `disk` if there is no bringing it to the run's directory.
    """
    folder, target = place.step(order["step"], order["session"]), root / order["into"]
    done = {}
    for rank in order["who"].get(str(me), []):
        try:
            part, text = read_part(part_file(folder, rank))
            verify(folder, part)
        except (UnusableFileError, OSError) as error:
            done[str(rank)] = ["failed", str(error)]
            continue
        try:
            if part.tensors:
                _copy(data_file(folder, rank), data_file(target, rank))
            done[str(rank)] = ["copied", text.decode()]
        except OSError as error:  # it could be read a moment ago: the reason is the disk
            done[str(rank)] = ["disk", error.strerror or str(error)]
    return done


def _copy(source: Path, target: Path) -> None:
    with source.open("rb") as read, target.open("wb") as written:
        shutil.copyfileobj(read, written, 1 << 24)
        written.flush()
        os.fsync(written.fileno())


@dataclass
class Assembly:
    """What rank 0 knows of the copies, and the checkpoint that it puts together."""

    root: Path
    """The run's checkpoints."""
    held: list[list[Held]]
    """By the rank that holds it."""
    news: str = ""
    failed: bool = False
    """True if there was something that could not be brought to the disk: it stays in memory."""
    _left: list[tuple[int, str, int]] | None = None
    """Step, session and ranks of what could be put together, the newest last."""
    _holders: dict[int, list[int]] = field(default_factory=dict)
    _parts: dict[int, Part] = field(default_factory=dict)
    _into: Path | None = None
    _on_disk: list[int] = field(default_factory=list)
    """Steps of the checkpoints that were there before, the newest first."""

    def candidates(self) -> list[tuple[int, str, int]]:
        """Steps all of whose parts are somewhere, newer than all checkpoints but the newest; the newest last."""
        self._on_disk = [directory.step_of(path) for path in directory.newest_first(self.root)]
        second = self._on_disk[1] if len(self._on_disk) > 1 else -1
        ranks: dict[tuple[int, str, int], set[int]] = {}
        for of_rank in self.held:
            for step, session, rank, count in of_rank:
                ranks.setdefault((step, session, count), set()).add(rank)
        return sorted(key for key, there in ranks.items() if key[0] > second and there == set(range(key[2])))

    def order(self) -> dict[str, Any] | None:
        """Say who copies which parts next; None if it is over."""
        try:
            return self._order()
        except OSError as error:
            self._disk_failed(error.strerror or str(error))
            return None

    def _order(self) -> dict[str, Any] | None:
        if self.failed:
            return None
        if self._left is None:
            self._left = self.candidates()
            self._begin()
        while self._left:
            step, session, ranks = self._left[-1]
            missing = [rank for rank in range(ranks) if rank not in self._parts]
            if not missing:
                if self._finish(step):
                    return None
            elif all(self._holders[rank] for rank in missing):
                who: dict[str, list[int]] = {}
                for rank in missing:
                    who.setdefault(str(self._holders[rank][0]), []).append(rank)
                assert self._into is not None
                return {"step": step, "session": session, "into": self._into.name, "who": who}
            self._give_up(self.news)
            self._left.pop()
            self._begin()
        return None

    def _begin(self) -> None:
        if not self._left:
            return
        step, session, ranks = self._left[-1]
        self.root.mkdir(parents=True, exist_ok=True)
        self._into, self._parts = directory.begin(self.root, step), {}
        self._holders = {
            rank: [h for h, of_rank in enumerate(self.held) if (step, session, rank, ranks) in of_rank]
            for rank in range(ranks)
        }

    def take(self, reports: list[dict[str, list[str]]]) -> None:
        """Hear how the copying went."""
        for holder, report in enumerate(reports):
            for rank, (how, text) in report.items():
                self._holders[int(rank)] = [h for h in self._holders[int(rank)] if h != holder]
                if how == "copied":
                    self._parts[int(rank)] = parse_part(text.encode(), f"part of rank {rank}")
                elif how == "disk":
                    self._disk_failed(f"part of rank {rank}: {text}")
                elif not self.failed:
                    self.news = f"a copy in memory is not used: {text}"

    def _finish(self, step: int) -> bool:
        assert self._into is not None
        try:
            manifest = manifest_of([self._parts[rank] for rank in sorted(self._parts)])
        except UnusableFileError as error:
            self.news = f"a copy in memory is not used: {error}"
            return False
        with (self._into / MANIFEST).open("xb") as file:
            file.write(to_text(manifest))
            file.flush()
            os.fsync(file.fileno())
        directory.commit(self._into)
        self._into = None
        self.news = f"the copy of step {step} in the memory of the hosts is put together"
        if self._on_disk and self._on_disk[0] >= step:
            self.news += f", for the checkpoint of step {self._on_disk[0]} may be unreadable"
        return True

    def _disk_failed(self, reason: str) -> None:
        """Leave the copy where it is: it is all there is of these steps."""
        self._give_up(
            f"a copy in memory cannot be brought to {self.root}: {reason}; it stays there until the next one is whole"
        )
        self.failed = True

    def _give_up(self, news: str) -> None:
        self.news = news
        if self._into is not None:
            shutil.rmtree(self._into, ignore_errors=True)
            self._into = None
