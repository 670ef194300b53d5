"""One directory per run: `manifest.json` and `events.parquet`.

Written whole or not at all: everything goes to a temporary directory beside the target, which
is then renamed. Read strictly: what does not fit the schema is refused with the reason.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from twin.description.problems import fail
from twin.trace.directory import written_whole
from twin.trace.table import check_table

SCHEMA_VERSION = 1
MANIFEST = "manifest.json"
EVENTS = "events.parquet"
CLASSES = "classes.parquet"
MOST_MANIFEST_BYTES = 16 << 20


@dataclass(frozen=True)
class Trace:
    """A run read back."""

    manifest: dict[str, Any]
    events: pa.Table


def write_trace(directory: Path, manifest: Mapping[str, Any], events: pa.Table,
                rank_class: pa.Table | None = None, texts: Mapping[str, str] | None = None, *,
                overwrite: bool = False) -> None:  # fmt: skip
    """Write a run.

    `rank_class`, for folded runs, says which simulated rank stands for each rank; `texts` are
    further files by name (the resolved job, a timeline page). An existing
    directory is replaced only if it is a run itself and `overwrite` is set.
    """
    with written_whole(directory, MANIFEST, "run of Fourfold", overwrite=overwrite) as temporary:
        pq.write_table(events, temporary / EVENTS, compression="zstd")
        if rank_class is not None:
            pq.write_table(rank_class, temporary / CLASSES, compression="zstd")
        for name, content in (texts or {}).items():
            (temporary / name).write_text(content, encoding="utf-8")
        text = json.dumps({"schema_version": SCHEMA_VERSION, **manifest}, indent=1, allow_nan=False)
        (temporary / MANIFEST).write_text(text + "\n", encoding="utf-8")


def read_trace(directory: Path) -> Trace:
    """Read and check a run."""
    manifest = read_manifest(directory)
    try:
        events = pq.read_table(directory / EVENTS)
    except FileNotFoundError:
        raise fail(str(directory / EVENTS), "no such file") from None
    except (OSError, pa.ArrowException) as error:
        raise fail(
            str(directory / EVENTS), f"not a Parquet file: {str(error).splitlines()[0]}"
        ) from None
    if problems := check_table(events):
        raise fail(str(directory / EVENTS), "; ".join(problems))
    return Trace(manifest, events)


def read_manifest(directory: Path) -> dict[str, Any]:
    """Read a run's manifest."""
    path = directory / MANIFEST
    if not path.is_file():
        raise fail(str(directory), f"is not a run of Fourfold: {MANIFEST} is missing")
    try:
        if path.stat().st_size > MOST_MANIFEST_BYTES:
            raise fail(str(path), "too large for a manifest")
        manifest = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise fail(str(path), f"cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("schema_version") != SCHEMA_VERSION:
        version = manifest.get("schema_version") if isinstance(manifest, dict) else None
        raise fail(str(path), f"schema_version is {version!r}; this version reads {SCHEMA_VERSION}")
    return manifest
