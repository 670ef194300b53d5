"""The directory of a run: what makes it one, whether it may be continued, beginning anew.

`run.json` says what must stay the same, and what happened that a resumed run must know. Only what a run
itself wrote is ever deleted.
"""

from __future__ import annotations

import json
import secrets
import shutil
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from runtime.records.metrics_file import METRICS, NO_SPACE, TENSORBOARD
from runtime.records.ownership import OWNER
from twin.description.problems import DescriptionError, Problem, fail

RUN = "run.json"
TEMPORARY = "run.json.tmp"
CHECKPOINTS = "checkpoints"
STOPPED = "stopped.json"
"""There if the run was ended by a signal before its last step: which, and after how many steps."""
JOB = "job"
"""Key of `run.json`: the whole job of the latest start, for whoever asks the run later."""
CHOICE = "choice"
"""Key of `run.json`: what `strategy: auto` chose when the run began, which it goes on with."""
ID = "id"
"""Key of `run.json`: tells this run from one that had the directory before."""
CHOSEN = "chosen.yaml"
"""Of `strategy: auto`: the job as it was chosen and trained, concrete and by itself, for `simulate` and `train`."""
ALERTS, LATEST_LOOK = "alerts.jsonl", "watch.json"
"""Of `--watch`: every alert, and what the latest look found, which is true only while the run goes on."""
STARTS, MAX_STARTS = "starts", 1000
"""Key of `run.json`: after how many steps the run was started or went on, when, and on how many ranks; the latest."""
IMPORTED = "job.yaml"
"""Of what `fourfold import` writes: the job that starts from its weights."""
COMPANIONS = "huggingface"
"""Of a run that started from a Hugging Face directory: its `config.json` and its tokenizer."""
ENERGY = "energy.json"
"""What the latest start took by the counters that could be read, and why others could not."""
OWN = (RUN, TEMPORARY, METRICS, CHECKPOINTS, TENSORBOARD, STOPPED, ALERTS, LATEST_LOOK, COMPANIONS, CHOSEN, ENERGY)
"""What a run writes, besides who owns it."""


def check_directory(out: Path, identity: Mapping[str, Any], *, force: bool) -> None:
    """See whether a run can begin or go on here, without changing anything.

    Raises DescriptionError if not: no directory, not writable, foreign files, another run.
    """
    try:
        if out.exists() and not out.is_dir():
            raise fail(str(out), "is not a directory; choose another --out")
        found = {path.name for path in out.iterdir()} if out.exists() else set()
        if not found - {TEMPORARY, OWNER} or (force and RUN in found):
            return
        if RUN not in found:
            raise fail(str(out), "is not empty and not a run of Fourfold's training; choose another --out")
    except OSError as error:
        raise fail(str(out), f"cannot be read: {error.strerror}; choose another --out") from None
    described = examine_run(out, "choose another --out, or --force to begin anew")
    different = [key for key, value in identity.items() if described.get(key) != value]
    if different:
        named = ", ".join(_told(key, described, identity) for key in different)
        remedy = "choose another --out, or --force to delete it and begin anew"
        raise fail(str(out), f"holds a run with another {named}; {remedy}")


def _told(key: str, there: Mapping[str, Any], wanted: Mapping[str, Any]) -> str:
    """Name what differs, with both values where each is a word or a number."""
    values, name = (there.get(key), wanted.get(key)), "batch.sequences" if key == "sequences" else key
    plain = all(isinstance(value, (str, int, float)) for value in values)
    return f"{name} ({values[0]} there, {values[1]} wanted)" if plain else name


def examine_run(out: Path, remedy: str) -> dict[str, Any]:
    """Read `run.json` of a directory that anybody may have made; raises DescriptionError, with the remedy."""
    try:
        described = json.loads((out / RUN).read_text(encoding="utf-8"))
    except OSError as error:
        raise fail(str(out / RUN), f"cannot be read: {error.strerror}; {remedy}") from None
    except (ValueError, RecursionError):
        described = None
    if not isinstance(described, dict):
        raise fail(str(out / RUN), f"is damaged; {remedy}")
    return described


def prepare_directory(
    out: Path, identity: Mapping[str, Any], facts: Mapping[str, Any] | None = None, *, force: bool
) -> None:
    """Make the directory of a run, or make sure that it can be written to.

    `facts` are written down anew at every start. With `force` what a run wrote there before is deleted, and nothing
    else.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if force and (out / RUN).exists():
            for name in OWN:
                _delete(out / name)
        for name in (STOPPED, LATEST_LOOK):
            (out / name).unlink(missing_ok=True)
        if (out / RUN).exists():
            _write(out, {**read_run(out), **(facts or {})})
            return
        _write(out, {**identity, **(facts or {}), ID: secrets.token_hex(8)})
    except OSError as error:
        raise fail(str(out), f"cannot be written: {error.strerror}; choose another --out") from None


def write_chosen(out: Path, job: Mapping[str, Any]) -> None:
    """Write the job of a run with `strategy: auto` as a file of its own; what was chosen comes first in it."""
    first = ("name", "strategy", "ranks", "grid", "batch")
    ordered = {key: job[key] for key in first} | {key: value for key, value in job.items() if key != "machine"}
    body = yaml.safe_dump(ordered | {"machine": job["machine"]}, sort_keys=False, allow_unicode=True)
    try:
        _replace(out / CHOSEN, f"# What `strategy: auto` chose, as it is trained here.\n{body}")
    except OSError as error:
        raise fail(str(out / CHOSEN), f"cannot be written: {error.strerror}; choose another --out") from None


def read_run(out: Path) -> dict[str, Any]:
    """Read `run.json` of a directory that is prepared."""
    described: dict[str, Any] = json.loads((out / RUN).read_text(encoding="utf-8"))
    return described


class NoRoomError(DescriptionError):
    """What a resumed run must know found no space on the disk; what was known before is still there."""


def add_to_run(out: Path, facts: Mapping[str, Any]) -> None:
    """Write down what a resumed run must know.

    Raises DescriptionError if it cannot be written, NoRoomError for want of space.
    """
    try:
        _write(out, {**read_run(out), **facts})
    except OSError as error:
        remedy = (
            f"cannot be written: {error.strerror}; make room, and run the same "
            "command again to go on from the last checkpoint"
        )
        kind = NoRoomError if error.errno in NO_SPACE else DescriptionError
        raise kind([Problem(str(out / RUN), remedy)]) from None


def note_start(out: Path, after_steps: int, ranks: int) -> None:
    """Write down that the run begins, or goes on after so many steps; raises DescriptionError if it cannot."""
    known = read_run(out).get(STARTS)
    start = {"after_steps": after_steps, "time": time.strftime("%Y-%m-%dT%H:%M:%S%z"), "ranks": ranks}
    add_to_run(out, {STARTS: [*(known if isinstance(known, list) else []), start][-MAX_STARTS:]})


def mark_stopped(out: Path, signal: str, step: int) -> None:
    """Leave word that a signal ended the run after so many steps."""
    text = json.dumps({"signal": signal, "after_steps": step})
    (out / STOPPED).write_text(text + "\n", encoding="utf-8")


def _write(out: Path, described: Mapping[str, Any]) -> None:
    _replace(out / RUN, json.dumps(described, indent=1) + "\n")


def write_energy(out: Path, used: Mapping[str, Any]) -> None:
    """Write what a start of the run took, in place of what was written of the one before."""
    _replace(out / ENERGY, json.dumps(used, indent=1) + "\n")


def _replace(file: Path, text: str) -> None:
    """Write a file of a run whole or not at all."""
    temporary = file.with_name(TEMPORARY)
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(file)


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
