"""Training from Python: `from runtime import train, record`."""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from twin.description.job import Job
from twin.description.problems import DescriptionError, Problem
from twin.strategies import AUTO, load_job

if TYPE_CHECKING:
    from twin.schedule.recording import Recording

JobLike = Job | str | Path | Mapping[str, Any]
BAD_INPUT = 2
"""The command's exit code for a job or an option that cannot be."""


@dataclass(frozen=True)
class Training:
    """A run that has ended."""

    directory: Path
    """Where it left its checkpoints and metrics."""
    steps: tuple[Mapping[str, Any], ...]
    """Of every step: `step`, `loss`, `gradient_norm`, `learning_rate`, `tokens_per_second`, …"""
    evaluations: tuple[Mapping[str, Any], ...]
    """Of every look at held-out text: `after_steps`, `validation_loss`, …"""
    output: str
    """What the run said."""

    @property
    def losses(self) -> list[float]:
        """Loss of every step, in nats per token."""
        return [step["loss"] for step in self.steps]


def train(
    job: JobLike,
    *,
    ranks: int | None = None,
    out: str | Path | None = None,
    overrides: Sequence[str] = (),
    trace: str | Path | None = None,
    trace_steps: str = "",
    restarts: int = 0,
    force: bool = False,
    show: bool = True,
) -> Training:
    """Train a job's model on ranks of this host, as `fourfold train` does in processes of its own; wait for the end.

    Args:
        job: the path of a job file, or the job; paths below its `train` are relative to the file, or to the
            present directory.
        ranks: ranks to start here; the job's if None.
        out: the run's directory; a run that is there is continued. `runs/NAME` if None.
        overrides: keys of the job to change, such as `train.steps=20`.
        trace: directory for a trace.
        trace_steps: its steps, such as `3-5`.
        restarts: how often all ranks are started again after a failure.
        force: replace what `out` and `trace` hold.
        show: print what the run says as it says it.

    Raises DescriptionError for bad input, RuntimeError if the run fails; both say what the command said.
    """
    from runtime.records.metrics_file import METRICS  # noqa: PLC0415

    described = job if isinstance(job, Job) else load_job(job, overrides)
    directory = Path("runs") / described.name if out is None else Path(out)
    options = ["--out", str(directory.absolute()), "--ranks", str(ranks or described.ranks)]
    options += [part for change in overrides for part in ("--set", change)]
    options += ["--trace", str(Path(trace).absolute()), "--trace-steps", trace_steps] if trace is not None else []
    options += ["--restarts", str(restarts)] if restarts else []
    options += ["--force"] if force else []
    if isinstance(job, str | Path):
        output = _command(["train", str(job), *options], show=show)
    else:
        with tempfile.NamedTemporaryFile("w", suffix=".yaml", dir=".", encoding="utf-8") as file:
            unset = described.strategy == AUTO  # strategies have defaults of their own
            raw = described.model_dump(mode="json", by_alias=True, exclude_unset=unset)
            yaml.safe_dump(raw, file, sort_keys=False, allow_unicode=True)
            file.flush()
            output = _command(["train", file.name, *options], show=show)
    lines = [json.loads(line) for line in (directory / METRICS).read_text(encoding="utf-8").splitlines()]
    steps, evaluations = (tuple(line for line in lines if key in line) for key in ("step", "after_steps"))
    return Training(directory, steps, evaluations, output)


def _command(arguments: Sequence[str], *, show: bool) -> str:
    """Run a command of `fourfold`; return what it says."""
    said = []
    command = [sys.executable, "-m", "twin", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        assert process.stdout is not None
        for line in process.stdout:
            said.append(line)
            if show:
                sys.stdout.write(line)
    output = "".join(said)
    if process.returncode == BAD_INPUT:
        raise DescriptionError([Problem("train", output.strip())])
    if process.returncode:
        raise RuntimeError(f"the run failed with exit code {process.returncode}:\n{output}")
    return output


def record(job: JobLike, rank: int = 0) -> Recording:
    """Run the runtime's own training step on one rank of a job's world, on one CPU, and write down what it does.

    There are no peers, no data and no numbers. Grid and micro-batch must be concrete. `Recording.schedule` can be held
    against what the twin generates (`twin.strategies.generated`); a test does so. Raises DescriptionError for what the
    runtime cannot train.
    """
    from runtime.recorder.gpt import record as record_step  # noqa: PLC0415  loads torch

    return record_step(job if isinstance(job, Job) else load_job(job), rank)
