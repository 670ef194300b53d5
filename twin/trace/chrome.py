"""Export to the Chrome trace format, which Perfetto opens.

A process is a rank, named with its coordinates; a thread is a stream. Times are microseconds
with nanosecond digits. Waits are left out: they are the gaps of the compute stream.
"""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pyarrow as pa


def chrome_events(events: pa.Table, rank_names: Mapping[int, str]) -> Iterator[dict[str, Any]]:
    """Yield the trace's events as Chrome's dictionaries."""
    threads: dict[tuple[int, str], int] = {}
    named = set()
    for row in events.select(
        ["rank", "stream", "op", "kind", "name", "phase", "axis", "bytes", "flops", "start_ns", "end_ns", "arrival_ns"]
    ).to_pylist():
        if row["kind"] == "wait":
            continue
        rank, stream = row["rank"], row["stream"]
        if rank not in named:
            named.add(rank)
            yield {
                "ph": "M",
                "name": "process_name",
                "pid": rank,
                "args": {"name": rank_names.get(rank, f"rank {rank}")},
            }
        key = (rank, stream)
        if key not in threads:
            threads[key] = len([k for k in threads if k[0] == rank])
            yield {"ph": "M", "name": "thread_name", "pid": rank, "tid": threads[key], "args": {"name": stream}}
        arguments = {"op": row["op"], "phase": row["phase"], "bytes": row["bytes"]}
        if row["kind"] == "collective":
            arguments |= {"axis": row["axis"], "arrival_us": row["arrival_ns"] / 1e3}
        else:
            arguments["flops"] = row["flops"]
        yield {
            "ph": "X",
            "name": row["name"],
            "cat": row["kind"],
            "pid": rank,
            "tid": threads[key],
            "ts": row["start_ns"] / 1e3,
            "dur": (row["end_ns"] - row["start_ns"]) / 1e3,
            "args": arguments,
        }


HEAD = '{"displayTimeUnit": "ms", "traceEvents": [\n'


def is_chrome_trace(path: Path) -> bool:
    """Tell whether a file begins as the ones that `write_chrome` makes."""
    opener = gzip.open if path.suffix == ".gz" else open
    try:
        with opener(path, "rt", encoding="utf-8") as file:
            return file.read(len(HEAD)) == HEAD
    except (OSError, UnicodeDecodeError, EOFError):
        return False


def chrome_text(events: pa.Table, rank_names: Mapping[int, str]) -> str:
    """Return the text that `write_chrome` writes."""
    return HEAD + ",\n".join(json.dumps(event) for event in chrome_events(events, rank_names)) + "\n]}\n"


def write_chrome(path: Path, events: pa.Table, rank_names: Mapping[int, str]) -> None:
    """Write `{"traceEvents": […]}`, compressed if the name ends in .gz."""
    opener = gzip.open if path.suffix == ".gz" else open
    with opener(path, "wt", encoding="utf-8") as file:
        file.write(HEAD)
        for number, event in enumerate(chrome_events(events, rank_names)):
            file.write((",\n" if number else "") + json.dumps(event))
        file.write("\n]}\n")
