"""The directory of a run: what makes it one, whether it may be continued, beginning anew.

`run.json` says what must stay the same. Only what a run itself wrote is ever deleted.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime.metrics_file import METRICS, TENSORBOARD
from twin.description.problems import fail

RUN = "run.json"
TEMPORARY = "run.json.tmp"
CHECKPOINTS = "checkpoints"
OWN = (RUN, TEMPORARY, METRICS, CHECKPOINTS, TENSORBOARD)
"""What a run writes."""


def check_directory(out: Path, identity: Mapping[str, Any], *, force: bool) -> None:
    """See whether a run can begin or go on here, without changing anything.

    Raises DescriptionError if not: no directory, not writable, foreign files, another run.
    """
    try:
        if out.exists() and not out.is_dir():
            raise fail(str(out), "is not a directory; choose another --out")
        found = {path.name for path in out.iterdir()} if out.exists() else set()
        if not found - {TEMPORARY} or (force and RUN in found):
            return
        if RUN not in found:
            raise fail(str(out), "is not empty and not a run of Fourfold; choose another --out")
        text = (out / RUN).read_text(encoding="utf-8")
    except OSError as error:
        raise fail(str(out), f"cannot be read: {error.strerror}; choose another --out") from None
    try:
        described = json.loads(text)
    except (ValueError, RecursionError):
        described = None
    if not isinstance(described, dict):
        raise fail(str(out / RUN), "is damaged; choose another --out, or --force to begin anew")
    different = [key for key, value in identity.items() if described.get(key) != value]
    if different:
        raise fail(str(out), f"holds a run with another {', '.join(different)}; choose another --out, "
                   "or --force to delete it and begin anew")  # fmt: skip


def prepare_directory(out: Path, identity: Mapping[str, Any], *, force: bool) -> None:
    """Make the directory of a run, or make sure that it can be written to.

    With `force` what a run wrote there before is deleted, and nothing else.
    """
    try:
        out.mkdir(parents=True, exist_ok=True)
        if force and (out / RUN).exists():
            for name in OWN:
                _delete(out / name)
        if (out / RUN).exists():
            (out / TEMPORARY).touch()
            (out / TEMPORARY).unlink()
            return
        (out / TEMPORARY).write_text(json.dumps(identity, indent=1) + "\n", encoding="utf-8")
        (out / TEMPORARY).replace(out / RUN)
    except OSError as error:
        raise fail(str(out), f"cannot be written: {error.strerror}; choose another --out") from None


def _delete(path: Path) -> None:
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)
