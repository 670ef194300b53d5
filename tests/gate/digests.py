"""Digests of event tables and of what commands print."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from tests.gate.jobs import ROOT, Case
from twin.description.job import Job
from twin.engine.events import event_table
from twin.engine.every_rank import simulate_every_rank
from twin.engine.simulate import simulate
from twin.search.choose import choose

MAX_RANKS = 4
COMMANDS: dict[str, tuple[str, ...]] = {
    "validate": ("validate",),
    "search gpt-5b": ("search", "examples/gpt-5b-auto.yaml", "--grid", "y=1", "--grid", "x=1"),
    "search gpt-5b, all": ("search", "examples/gpt-5b-auto.yaml"),
    "study nic-sweep": ("study", "examples/studies/nic-sweep.yaml"),
    "study sensitivity": ("study", "examples/studies/sensitivity.yaml"),
    "study what-if": ("study", "examples/studies/what-if.yaml"),
    "study target": ("study", "examples/studies/target.yaml"),
    "simulate gpt-320b, interval": ("simulate", "examples/gpt-320b-frontier-32768.yaml", "--interval"),
}
NOT_PREDICTED = ("wall_seconds", "simulated_seconds", "directory", "out", "path", "code", "version", "seconds_taken")
"""Keys of what commands print that are no predictions: how long they took, and where they wrote."""


def event_digest(case: Case) -> str:
    """Digest the events of some ranks of a case."""
    job = case.describe()
    if not job.is_concrete:
        job = choose(job).best.job
    return table_digest(_events(case, job))


def _events(case: Case, job: Job) -> pa.Table:
    if case.engine == "ranks":
        ranks = _some(list(range(job.ranks)))
        with_seed = job.model_copy(update={"seed": case.seed})
        every = simulate_every_rank(with_seed, seeds=1, ranks=ranks, workers=1).simulation
        return event_table(every.of_recorded(), ranks)
    simulation = simulate(job, engine=case.engine)
    return event_table(simulation, _some(sorted(set(simulation.partition.representatives.tolist()))))


def _some(ranks: list[int]) -> list[int]:
    """The first ones and the last one: what differs tends to be there."""
    return ranks if len(ranks) <= MAX_RANKS else [*ranks[: MAX_RANKS - 1], ranks[-1]]


def table_digest(table: pa.Table) -> str:
    """Digest a table's names and values; how Arrow lays them out does not matter."""
    digest = hashlib.sha256()
    for name in table.column_names:
        column = table.column(name).combine_chunks()
        if pa.types.is_dictionary(column.type):
            column = column.cast(column.type.value_type)
        digest.update(name.encode())
        digest.update(np.packbits(column.is_null().to_numpy(zero_copy_only=False)).tobytes())
        if pa.types.is_string(column.type):
            digest.update("\n".join("" if v is None else v for v in column.to_pylist()).encode())
        else:
            digest.update(column.fill_null(0).to_numpy(zero_copy_only=False).tobytes())
    return digest.hexdigest()[:32]


def command_digests() -> dict[str, str]:
    """Digest what every command of `COMMANDS` prints."""
    return {name: command_digest(name) for name in COMMANDS}


def command_digest(name: str) -> str:
    """Digest what one command of `COMMANDS` prints."""
    return json_digest(printed(COMMANDS[name]))


def printed(arguments: tuple[str, ...]) -> Any:
    """Run a command in an empty place and read what it prints."""
    program = str(Path(sys.executable).with_name("fourfold"))
    absolute = [str(ROOT / a) if a.startswith("examples/") else a for a in arguments]
    with tempfile.TemporaryDirectory() as empty:
        done = subprocess.run([program, *absolute, "--json"], cwd=empty, capture_output=True, text=True, check=True)
    return json.loads(done.stdout)


def json_digest(value: Any) -> str:
    """Digest an object; numbers to twelve digits, for processors differ in the last bits of powers and logarithms."""
    return hashlib.sha256(json.dumps(_predicted(value), sort_keys=True).encode()).hexdigest()[:32]


def _predicted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _predicted(v) for key, v in value.items() if key not in NOT_PREDICTED}
    if isinstance(value, float):
        return float(f"{value:.12g}")
    return [_predicted(v) for v in value] if isinstance(value, list) else value
