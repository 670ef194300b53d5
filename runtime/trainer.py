"""The whole of a training run on one rank: meet, build, resume, train, evaluate, save, show.

The run's directory holds `run.json` (what is trained), `metrics.jsonl`, `checkpoints/` and
`tensorboard/` if wanted. The same command again continues from the last complete checkpoint.
"""

from __future__ import annotations

import math
from functools import partial
from pathlib import Path

import torch

from runtime.checkpoint.checkpoints import Checkpoints
from runtime.console import Display, Stopwatch
from runtime.context import Context
from runtime.data.batches import Batches
from runtime.data.tokenizer import load_tokenizer
from runtime.data.tokens import DataSet
from runtime.diagnosis import NonFiniteError, find_non_finite
from runtime.environment import Process
from runtime.evaluate import generate, validation_loss
from runtime.feed import Feed
from runtime.goldfish import Goldfish
from runtime.launch import (
    DisagreementError,
    agree,
    join,
    make_deterministic,
    open_store,
    set_threads,
    told_by_another,
)
from runtime.mesh import Mesh
from runtime.metrics import is_described, peak_memory_bytes, speed
from runtime.metrics_file import MetricsFile, TensorBoard
from runtime.model import GPT
from runtime.optimizer import Optimizer
from runtime.plan import Plan, check_plan, prompt_tokens
from runtime.run_directory import CHECKPOINTS, prepare_directory
from runtime.step import StepFigures, Trainee
from runtime.tracing.tracer import Tracer
from runtime.tuning import signatures, tune, use
from twin.description.problems import DescriptionError, fail


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
    device, data = all_agree("setup", lambda: check_plan(plan, process))
    all_agree("directory", lambda: _prepare(plan, process, data))
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
    except NonFiniteError:
        run.checkpoints.close()  # every rank is here: what is being written was whole and good
        raise
    except DescriptionError as error:
        if store is not None and told_by_another(store, process, str(error)):
            raise DisagreementError([str(error)]) from None
        raise
    finally:
        run.display.close()


def _prepare(plan: Plan, process: Process, data: DataSet) -> None:
    if process.rank == 0:
        prepare_directory(plan.out, plan.identity(data), force=plan.force)


class Run:
    """The state of a run on one rank."""

    def __init__(
        self, plan: Plan, process: Process, mesh: Mesh, device: torch.device, data: DataSet
    ) -> None:
        self.plan, self.process, self.data = plan, process, data
        job, options = plan.job, plan.options
        self.first = process.rank == 0
        self.context = Context.of_job(
            job, mesh, device, compile_=options.compile or job.fused_elementwise
        )
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
        if self.plan.trace is not None and self.plan.trace.last_step < self.step:
            raise fail("--trace-steps", f"the run goes on at step {self.step}; choose later ones",
                       f"{self.plan.trace.first_step}-{self.plan.trace.last_step}")  # fmt: skip

    def open_files(self) -> None:
        """Open what is written to while training."""
        if self.first:
            self.writers.append(MetricsFile(self.plan.out, self.step, self.plan.options.steps))
            if self.plan.options.tensorboard:
                self.writers.append(TensorBoard(self.plan.out, self.step))

    def _choose_modes(self) -> None:
        """Tune the products' operand modes, or use what the run used before."""
        options, context = self.plan.options, self.context
        wanted = options.gemm_modes == "tuned" or (
            options.gemm_modes == "auto" and self.plan.job.kernel_tuning
            and context.device.type == "cuda" and not options.deterministic
        )  # fmt: skip
        if not wanted:
            return
        known = signatures(context, self.model)
        if all(str(signature) in self.modes for signature in known):  # on another grid they are not
            use(context, self.modes, known)  # type: ignore[arg-type]  # modes unknown to it are left out
            return
        choices = tune(context, self.model)
        self.modes = {str(choice.signature): choice.mode for choice in choices}
        for each in choices:
            self.display.say(
                f"product {each.signature}: {each.mode}, {each.gain:.2f} times as fast as its natural mode"
            )

    def loop(self) -> None:
        """Train until the last step."""
        options, watch, since = self.plan.options, Stopwatch(), self.step
        on_host = self.context.device.type == "cpu"
        if self.step == 0:
            with watch.paused():
                self._evaluate()  # where it starts from
        while self.step < options.steps:
            if self.tracer is not None:
                self.tracer.before(self.step)
            batch = self.feed.step(self.step)
            rate = options.schedule.at(self.step)
            figures = self.trainee.step(batch, rate)
            if self.tracer is not None:
                self.tracer.after()
            done = self.step + 1
            saving = _due(options.checkpoints.every, done) or done == options.steps
            logging = done % options.log_every == 0 or done == options.steps
            # a GPU is waited for only where its figures are wanted anyway
            if (on_host or logging or saving) and bool(self.trainee.optimizer.stopped):
                raise find_non_finite(self.trainee, batch, self.step)
            if logging:
                self._write(figures, rate, watch.lap() / (done - since))
                since = done
            self.step = done
            with watch.paused():
                if _due(options.evaluation.every, done) and done < options.steps:
                    self._evaluate()
                if saving:
                    self._save()

    def _write(self, step: StepFigures, rate: float, seconds: float) -> None:
        context, job = self.context, self.plan.job
        if not self.first:
            return
        on_gpu = context.device.type == "cuda"
        known = on_gpu and is_described(job, torch.cuda.get_device_name(context.device))
        fast = speed(job, seconds, peak_known=known)
        figures = {
            "step": self.step, "loss": float(step.loss), "gradient_norm": float(step.gradient_norm),
            "learning_rate": rate, "tokens": (self.step + 1) * job.tokens_per_step, "seconds": seconds,
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
        if not math.isfinite(loss):
            raise find_non_finite(self.trainee, self.feed.step(self.step), self.step)
        for writer in self.writers:
            writer.write({"after_steps": self.step, "validation_loss": loss})
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
        """Save, evaluate, and show what was learnt."""
        self._save()
        self.checkpoints.close()  # before anything else can go wrong
        self._evaluate()
        for writer in self.writers:
            writer.close()
        self.display.close()
        self._sample()

    def write_trace(self) -> None:
        """Write what was recorded, if anything was to be."""
        if self.tracer is not None:
            self.tracer.write(self.process)

    def _sample(self) -> None:
        wanted = self.plan.options.sample
        if not wanted.tokens:
            return
        prompt = prompt_tokens(self.plan.options, self.data)
        tokens = generate(self.context, self.model, prompt, wanted.tokens, wanted.temperature)
        self.display.say("sample:")
        self.display.say(load_tokenizer(self.data.directory).decode(tokens))


def _due(every: int, step: int) -> bool:
    return every > 0 and step % every == 0
