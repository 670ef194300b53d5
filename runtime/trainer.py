"""The whole of a training run on one rank: meet, build, resume, train, evaluate, save, show.

The run's directory holds `run.json` (what is trained), `metrics.jsonl`, `checkpoints/` and, with
tracing, `trace/`. The same command again continues from the last complete checkpoint.
"""

from __future__ import annotations

import json
import math
import os
import shutil
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch

from runtime.checkpoint.checkpoints import Checkpoints
from runtime.console import Display, Stopwatch
from runtime.context import Context
from runtime.data.batches import Batches
from runtime.data.build import default_dataset
from runtime.data.tokenizer import load_tokenizer
from runtime.data.tokens import DataSet, open_dataset
from runtime.diagnosis import find_non_finite
from runtime.environment import Process
from runtime.evaluate import generate, validation_loss
from runtime.feed import Feed
from runtime.goldfish import Goldfish
from runtime.launch import (
    agree,
    choose_device,
    join,
    make_deterministic,
    open_store,
    set_threads,
)
from runtime.mesh import Mesh
from runtime.metrics import MetricsFile, TensorBoard, peak_memory_bytes, speed
from runtime.model import GPT
from runtime.optimizer import Optimizer
from runtime.options import STANDARD_LIBRARY, TrainOptions
from runtime.step import Trainee
from runtime.tracing.tracer import Tracer
from runtime.tracing.wanted import TraceWanted
from runtime.tuning import signatures, tune, use
from twin.description.job import Job
from twin.description.problems import fail

RUN = "run.json"
CHECKPOINTS = "checkpoints"


@dataclass(frozen=True)
class Plan:
    """What a run is asked to do."""

    job: Job
    options: TrainOptions
    out: Path
    trace: TraceWanted | None = None
    force: bool = False
    """Delete what is at `out`."""


def train(plan: Plan, process: Process) -> None:
    """Train on this rank until the last step; every rank of the job must call it.

    Raises DescriptionError for what the user can mend, CollectiveError if a peer is lost,
    NonFiniteError if the loss is no number any more.
    """
    options = plan.options
    set_threads(process, options.threads)
    if options.deterministic:
        make_deterministic()
    store = open_store(process, options.timeout_seconds) if process.ranks > 1 else None
    all_agree = partial(agree, store, process)
    device, data = all_agree("setup", lambda: _check(plan, process))
    if store is not None:
        join(process, store, device, options.timeout_seconds)
    mesh = Mesh.create(plan.job.concrete_grid, timeout_seconds=options.timeout_seconds)
    run = Run(plan, process, mesh, device, data)
    try:
        run.resume()
        all_agree("files", run.open_files)
        run.loop()
        run.finish()
        all_agree("trace", run.write_trace)
    finally:
        run.display.close()


def _check(plan: Plan, process: Process) -> tuple[torch.device, DataSet]:
    """Everything that can be wrong before processes talk to each other."""
    job = plan.job
    if process.ranks != job.ranks:
        raise fail("ranks", f"the job wants {job.ranks} ranks ({job.concrete_grid}), but {process.ranks} "
                   "were started; start as many, or --set ranks and grid", process.ranks)  # fmt: skip
    if job.precision == "fp16":
        raise fail("precision", "the runtime trains in bf16 or fp32; fp16 needs loss scaling, which "
                   "it does not have", "fp16")  # fmt: skip
    device = choose_device(plan.options.device, process)
    path = Path(plan.options.data)
    if plan.options.data == STANDARD_LIBRARY:
        path = default_dataset(cache_directory())
    data = open_dataset(path, vocabulary=job.model.vocabulary, sequence=job.model.sequence)
    if process.rank == 0:
        prepare_directory(plan, data)
    return device, data


def cache_directory() -> Path:
    """Where data sets are kept that Fourfold makes by itself."""
    base = os.environ.get("XDG_CACHE_HOME")
    return (Path(base) if base else Path.home() / ".cache") / "fourfold"


def prepare_directory(plan: Plan, data: DataSet) -> None:
    """Make the run's directory, or check that what is there may be continued.

    A run is continued if its model, data and order are the same; with `plan.force` it is deleted
    and begun anew. Raises DescriptionError otherwise.
    """
    out, wanted = plan.out, _identity(plan, data)
    try:
        if plan.force and (out / RUN).is_file():
            shutil.rmtree(out)
        out.mkdir(parents=True, exist_ok=True)
        if not (out / RUN).exists():
            if any(out.iterdir()):
                raise fail(str(out), "is not empty and not a run of Fourfold; choose another --out")
            temporary = out / (RUN + ".tmp")
            temporary.write_text(json.dumps(wanted, indent=1) + "\n", encoding="utf-8")
            temporary.replace(out / RUN)
            return
        text = (out / RUN).read_text(encoding="utf-8")
        probe = out / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise fail(str(out), f"cannot be written: {error.strerror}; choose another --out") from None
    try:
        found = json.loads(text)
    except ValueError:
        raise fail(
            str(out / RUN), "is damaged; choose another --out, or --force to begin anew"
        ) from None
    different = [
        key for key in wanted if not isinstance(found, dict) or found.get(key) != wanted[key]
    ]
    if different:
        raise fail(str(out), f"holds a run with another {', '.join(different)}; choose another --out, "
                   "or --force to delete it and begin anew")  # fmt: skip


def _identity(plan: Plan, data: DataSet) -> dict[str, Any]:
    """What must stay the same when a run is continued; grid, steps and overlap may change."""
    job = plan.job
    return {
        "name": job.name, "model": job.model.model_dump(mode="json", by_alias=True, exclude={"name"}),
        "precision": job.precision, "dropout": job.dropout, "seed": job.seed,
        "sequences": job.batch.sequences, "data": data.manifest.model_dump(mode="json"),
        "goldfish": plan.options.goldfish and plan.options.goldfish.model_dump(mode="json"),
    }  # fmt: skip


class Run:
    """The state of a run on one rank."""

    def __init__(
        self, plan: Plan, process: Process, mesh: Mesh, device: torch.device, data: DataSet
    ) -> None:
        self.plan, self.process, self.data = plan, process, data
        job, options = plan.job, plan.options
        self.first = process.rank == 0
        self.context = Context.of_job(job, mesh, device, compile_=options.compile)
        self.model = GPT(self.context)
        self.trainee = Trainee(self.context, self.model, Optimizer(self.context, options.adam))
        vocabulary = job.model.vocabulary
        goldfish = (
            None if options.goldfish is None else Goldfish(options.goldfish.k, options.goldfish.h)
        )
        self.feed = Feed(
            self.context, Batches(data.train, job.model.sequence, job.seed, vocabulary), goldfish
        )
        self.held_out = Batches(
            data.validation, job.model.sequence, job.seed, vocabulary, shuffle=False
        )
        self.checkpoints = Checkpoints(plan.out / CHECKPOINTS, mesh, keep=options.checkpoints.keep)
        self.step = 0
        self.saved_at = -1
        self.modes: dict[str, str] = {}
        self.display = Display(shown=False, steps=options.steps, start=0)
        self.writers: list[MetricsFile | TensorBoard] = []
        self.tracer = Tracer(plan.trace, self.context) if plan.trace else None

    def resume(self) -> None:
        """Continue from the last complete checkpoint, if there is one."""
        options, job = self.plan.options, self.plan.job
        loaded = self.checkpoints.load_latest(self.context, self.trainee.optimizer)
        if loaded is not None:
            self.step = self.saved_at = self.context.step = loaded.step
            self.modes = dict(loaded.extra.get("gemm_modes", {}))
        elif options.initial_weights is not None:
            from runtime.checkpoint.full_model import import_model  # noqa: PLC0415  rarely needed

            import_model(Path(options.initial_weights), self.context)
        self.display = Display(shown=self.first, steps=options.steps, start=self.step)
        parameters = f"{job.model.parameters / 1e6:,.1f} M parameters"
        if self.step == 0:
            self.display.say(f"training {job.name}: {parameters} on {job.concrete_grid}, {job.precision}, "
                             f"{self.data.manifest.train.tokens:,} tokens")  # fmt: skip
        if loaded is not None:
            for text in loaded.rejected:
                self.display.warn(text)
            self.display.say(f"continuing {job.name} after step {self.step} from {loaded.path}")
        self._choose_modes()

    def open_files(self) -> None:
        """Open what is written to while training."""
        if self.first:
            self.writers.append(MetricsFile(self.plan.out, self.step))
            if self.plan.options.tensorboard:
                self.writers.append(TensorBoard(self.plan.out))

    def _choose_modes(self) -> None:
        """Tune the products' operand modes, or use what the run used before."""
        choice, context = self.plan.options.gemm_modes, self.context
        wanted = choice == "tuned" or (
            choice == "auto" and self.plan.job.kernel_tuning and context.device.type == "cuda"
        )
        if not wanted:
            return
        if self.modes:
            use(context, self.modes, signatures(context, self.model))  # type: ignore[arg-type]  # checked there
            return
        choices = tune(context, self.model)
        self.modes = {str(choice.signature): choice.mode for choice in choices}
        for each in choices:
            self.display.say(
                f"product {each.signature}: {each.mode}, {each.gain:.2f} times as fast as its natural mode"
            )

    def loop(self) -> None:
        """Train until the last step."""
        options = self.plan.options
        if self.step == 0:
            self._evaluate()  # where it starts from
        watch, since = Stopwatch(), self.step
        while self.step < options.steps:
            batch = self.feed.step(self.step)
            rate = options.schedule.at(self.step)
            if self.tracer is not None:
                self.tracer.before(self.step)
            figures = self.trainee.step(batch, rate)
            if self.tracer is not None:
                self.tracer.after()
            if (self.step + 1) % options.log_every == 0 or self.step + 1 == options.steps:
                loss = float(figures.loss)
                norm = None if figures.gradient_norm is None else float(figures.gradient_norm)
                if not math.isfinite(loss) or (norm is not None and not math.isfinite(norm)):
                    raise find_non_finite(self.trainee, batch, self.step)
                seconds = watch.lap() / (self.step + 1 - since)
                since = self.step + 1
                self._write(loss, norm, rate, seconds)
            self.step += 1
            if self._due(options.evaluation.every) and self.step < options.steps:
                self._evaluate()
                watch.lap()
            if self._due(options.checkpoints.every):
                self._save()
                watch.lap()

    def _due(self, every: int) -> bool:
        return every > 0 and self.step % every == 0

    def _write(self, loss: float, norm: float | None, rate: float, seconds: float) -> None:
        context, job = self.context, self.plan.job
        if not self.first:
            return
        fast = speed(
            job,
            seconds,
            peak_known=job.machine.device.type == "gpu" and context.device.type == "cuda",
        )
        figures = {
            "step": self.step, "loss": loss, "gradient_norm": norm, "learning_rate": rate,
            "tokens": (self.step + 1) * job.tokens_per_step, "seconds": seconds,
            "tokens_per_second": fast.tokens_per_second,
            "model_flops_per_second": fast.model_flops_per_second,
            "model_flops_utilisation": fast.utilisation,
            "memory_bytes": peak_memory_bytes(context.device),
        }  # fmt: skip
        for writer in self.writers:
            writer.write(figures)
        self.display.step(figures)

    def _evaluate(self) -> None:
        sequences = self.plan.options.evaluation.sequences
        if not sequences:
            return
        loss = validation_loss(self.context, self.model, self.held_out, sequences)
        for writer in self.writers:
            writer.write({"step": self.step - 1, "validation_loss": loss})
        self.display.say(f"step {self.step}: validation loss {loss:.4f} nats per token")

    def _save(self) -> None:
        if self.saved_at == self.step:
            return
        self.checkpoints.save(
            self.context, self.trainee.optimizer, step=self.step,
            samples=self.step * self.plan.job.batch.sequences, extra={"gemm_modes": self.modes},
        )  # fmt: skip
        self.saved_at = self.step

    def finish(self) -> None:
        """Evaluate, save, and show what was learnt."""
        self._save()
        self._evaluate()
        self.display.close()
        self._sample()
        self.checkpoints.close()
        for writer in self.writers:
            writer.close()

    def write_trace(self) -> None:
        """Write what was recorded, if anything was to be."""
        if self.tracer is not None:
            self.tracer.write(self.process)

    def _sample(self) -> None:
        wanted = self.plan.options.sample
        if not wanted.tokens:
            return
        tokenizer = load_tokenizer(self.data.directory)
        prompt = [int(token) for token in tokenizer.encode(wanted.prompt)] or [0]
        tokens = generate(self.context, self.model, prompt, wanted.tokens, wanted.temperature)
        self.display.say("sample:")
        self.display.say(tokenizer.decode(tokens))
