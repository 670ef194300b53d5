"""A run on one rank, from its last checkpoint to its last step: train, evaluate, save, show.

What keeps it alive is in `runtime.survive`.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from runtime.checkpoint.checkpoints import Checkpoints, NoSpaceError
from runtime.data.batches import Batches
from runtime.data.goldfish import Goldfish
from runtime.data.tokenizer import load_tokenizer
from runtime.data.tokens import DataSet
from runtime.launch.devices import place_name
from runtime.launch.environment import Process
from runtime.parallel.failures import DivergedError, NonFiniteError
from runtime.parallel.mesh import Mesh
from runtime.plan import continued
from runtime.plan.optimizer_settings import Schedule
from runtime.plan.plan import Plan, prompt_tokens
from runtime.records.console import Display, Stopwatch
from runtime.records.metrics import step_line
from runtime.records.ownership import Ownership
from runtime.records.records import Records, due
from runtime.records.run_directory import CHECKPOINTS, mark_stopped
from runtime.step.feed import Feed
from runtime.step.trainee import MicroBatch, StepFigures
from runtime.strategies import trains
from runtime.survive.history import KEY, History, longer
from runtime.survive.memory.copies import MemoryCopies
from runtime.survive.rollback import Culprit, Guard, go_back
from runtime.survive.spikes import Spikes
from runtime.survive.stop import Stop
from runtime.tracing.tracer import Tracer
from runtime.train.diagnosis import find_non_finite
from runtime.train.evaluate import generate, validation_loss
from runtime.watch.lookout import Lookout
from twin.description.problems import fail

OWNER_SECONDS = 5.0
"""How often rank 0 looks whether another start has taken over, besides before every checkpoint."""


class Run:
    """The state of a run on one rank."""

    def __init__(
        self,
        plan: Plan,
        process: Process,
        mesh: Mesh,
        device: torch.device,
        data: DataSet,
        stop: Stop,
        history: History,
        owned: Ownership | None,
    ) -> None:
        self.plan, self.process, self.data = plan, process, data
        self.stop, self.history, self.owned = stop, history, owned
        job, options = plan.job, plan.options
        self.first = process.rank == 0
        compile_ = options.compile or job.fused_elementwise
        self.trainee = trains(job)(job, mesh, device, options.optimizer, compile_=compile_)
        self.context = self.trainee.context
        vocabulary = job.model.vocabulary
        goldfish = None if options.goldfish is None else Goldfish(options.goldfish.k, options.goldfish.h)
        self.feed = Feed(self.context, Batches(data.train, job.model.sequence, job.seed, vocabulary), goldfish)
        self.held_out = Batches(data.validation, job.model.sequence, job.seed, vocabulary, shuffle=False)
        self.checkpoints = Checkpoints(
            plan.out / CHECKPOINTS,
            mesh,
            keep=options.checkpoints.keep,
            timeout_seconds=options.checkpoints.timeout_seconds,
        )
        self.options = continued.options_of(job, options)
        self.copies: MemoryCopies | None = None
        self.step = self.began = 0
        self.ended = False
        """Whether a signal ends the run before its last step."""
        self.saved_at = -1
        self.modes: dict[str, str] = {}
        self.display = Display(shown=False, steps=options.steps, start=0)
        self.records: Records | None = None
        self.guard: Guard | None = None
        self.tracer = Tracer(plan.trace, self.context) if plan.trace else None
        self.lookout: Lookout | None = None

    def resume(self, *news: str) -> None:
        """Continue from the last complete checkpoint, if there is one; say so, after other news."""
        options, job = self.plan.options, self.plan.job
        loaded = self.checkpoints.load_latest(self.context, self.trainee.optimizer)
        changed: list[continued.Change] = []
        if loaded is not None:
            self.step = self.began = self.saved_at = self.context.step = loaded.step
            self.modes = dict(loaded.extra.get("gemm_modes", {}))
            self.history = longer(self.history, History.read(loaded.extra.get(KEY), str(loaded.path)))
            changed = continued.check_changes(
                loaded.extra, self.options, loaded.step, loaded.path, accepted=self.plan.accept_changes
            )
        elif options.initial_weights is not None:
            from runtime.checkpoint.full_model import import_model  # noqa: PLC0415  rarely needed

            import_model(Path(options.initial_weights), self.context)
        self.display = Display(shown=self.first, steps=options.steps, start=self.step)
        for text in filter(None, news):
            self.display.say(text)
        where = place_name(self.context.device, self.process.ranks)
        parameters = f"{job.model.parameters / 1e6:,.1f} M parameters"
        if self.step == 0:
            self.display.say(
                f"training {job.name}: {parameters} on {job.concrete_grid}, {job.precision}, "
                f"{self.data.manifest.train.tokens:,} tokens, {where}"
            )
        if loaded is not None:
            for text in (*loaded.rejected, *map(str, changed)):
                self.display.warn(text)
            self.display.say(f"continuing {job.name} after step {self.step} from {loaded.path}, {where}")
        self.modes = self.trainee.settle(
            options.gemm_modes, self.modes, deterministic=options.deterministic, say=self.display.say
        )
        self._check_trace()

    def _check_trace(self) -> None:
        """Refuse a trace of steps that are over; after a failure that is nobody's fault, and none is made."""
        wanted = self.plan.trace
        if wanted is None or wanted.last_step >= self.step:
            return
        text = f"the run goes on at step {self.step}"
        steps = f"{wanted.first_step}-{wanted.last_step}"
        if not self.process.perhaps_again:
            raise fail("--trace-steps", f"{text}; choose later ones", steps)
        self.display.warn(f"{text}: no trace of steps {steps} is written")
        self.tracer = None

    def open_files(self) -> None:
        """Open what is written to while training, and see what losses were before."""
        options, wanted = self.plan.options, self.plan.options.rollback
        self.records = Records(
            self.plan.out, self.step, options.steps, kept=self.first, tensorboard=options.tensorboard
        )
        if wanted is not None:
            losses = self.records.losses(wanted.window)
            self.guard = Guard(self.stop.board, Spikes(wanted.spike, wanted.window, losses))

    def loop(self) -> None:
        """Train until the last step, or until a signal ends the run."""
        options, watch, since = self.plan.options, Stopwatch(), self.step
        schedule = Schedule.of(options)
        if self.plan.watch is not None:
            self.lookout = Lookout(self.context, self.process, self.plan.out, self.plan.watch, self.display)
        listeners = [each for each in (self.tracer, self.lookout) if each is not None]
        if self.step == 0:
            with watch.paused():
                self._evaluate()  # where it starts from
                if self.guard is not None:
                    self._save()  # to go back to
        while self.step < options.steps and not self.ended:
            next_look = self._next_look(self.step)
            self.stop.announce(next_look)
            rate = schedule.at(self.step)
            batch, figures = self._step(rate, listeners)
            done = self.step + 1
            if done == next_look:
                self.ended = done < options.steps and self.stop.due(done)
                if self._went_back(batch, done):
                    since = self.step
                    watch.lap()
                    continue
            if due(options.log_every, done) or done == options.steps:
                self._write(figures, rate, watch.lap() / (done - since))
                since = done
            self.step = done
            with watch.paused():
                if due(options.evaluation.every, done) and done < options.steps:
                    self._evaluate()
                if due(options.checkpoints.every, done) or done == options.steps:
                    self._save()
                if self.copies is not None and due(options.checkpoints.memory_every, done):
                    self._copy(self.copies)

    def _step(self, rate: float, listeners: list[Tracer | Lookout]) -> tuple[list[MicroBatch], StepFigures]:
        for each in listeners:
            each.before(self.step)
        batch = self.feed.step(self.history.batch(self.step))
        for each in listeners:
            each.loaded(self.step)
        figures = self.trainee.step(batch, rate)
        for each in listeners:
            each.after(self.step)
        return batch, figures

    def _next_look(self, done: int) -> int:
        """After how many steps hosts wait for a step's figures next: a GPU only where they are wanted."""
        options = self.plan.options
        if self.context.device.type == "cpu":
            return done + 1
        kept = options.checkpoints  # what is kept must be known to be good
        every = [n for n in (options.log_every, kept.every, kept.memory_every) if n]
        return min(options.steps, *(done - done % n + n for n in every))

    def _went_back(self, batch: list[MicroBatch], done: int) -> bool:
        """Go back to a checkpoint if a number is none, or the loss has leapt; whether it was so."""
        stopped = bool(self.trainee.optimizer.stopped)
        if self.guard is None:
            if stopped:
                raise find_non_finite(self.trainee, batch, done - 1)
            return False
        culprit = self.guard.culprit(done, stopped=stopped)
        if culprit is None:
            return False
        rollback = self.plan.options.rollback
        assert rollback is not None
        self._settle_checkpoint()
        gone = go_back(
            culprit, self.history, self.checkpoints, self.context, self.trainee.optimizer, self.plan.out, rollback.most
        )
        if gone is None:
            raise self._diverged(culprit, batch)
        self.history, entry = gone
        self.step = self.saved_at = entry.to_step
        self.guard.went_back(self.step)
        if self.copies is not None:
            self.copies.forget()
        if self.records is not None:
            self.records.go_back(self.step, entry.model_dump(mode="json"))
        self.display.warn(
            f"step {culprit.step}: {culprit.why}; going back to step {entry.to_step} and on "
            f"without batches {', '.join(map(str, entry.left_out))}"
        )
        return True

    def _diverged(self, culprit: Culprit, batch: list[MicroBatch]) -> NonFiniteError:
        if not culprit.finite:
            return find_non_finite(self.trainee, batch, culprit.step)
        return DivergedError(
            f"step {culprit.step}: {culprit.why}, and the run has gone back often enough "
            "(train.rollback.most); try a lower learning rate"
        )

    def _write(self, step: StepFigures, rate: float, seconds: float) -> None:
        if self.records is None or not self.first:
            return
        if self.owned is not None:
            self.owned.check(at_most_every_seconds=OWNER_SECONDS)
        figures = step_line(self.context, self.step, step, rate, seconds)
        self.records.write(figures)
        self.display.step(figures)
        if self.guard is not None:
            last = self.step + 1 == self.plan.options.steps
            self.guard.see(self.step, figures["loss"], None if last else self._next_look(self.step + 1))

    def _evaluate(self) -> None:
        sequences = self.plan.options.evaluation.sequences
        if not sequences:
            return
        loss = validation_loss(self.trainee, self.held_out, sequences)
        if not math.isfinite(loss):
            raise find_non_finite(self.trainee, self.feed.step(self.history.batch(self.step)), self.step)
        if self.records is not None:
            self.records.write({"after_steps": self.step, "validation_loss": loss})
        self.display.say(f"step {self.step}: validation loss {loss:.4f} nats per token")

    def _extra(self) -> dict[str, Any]:
        return {"gemm_modes": self.modes, KEY: self.history.as_json(), continued.KEY: self.options}

    def _save(self) -> None:
        if self.saved_at == self.step:
            return
        if self.owned is not None:
            self.owned.check()
        self._settle_checkpoint()
        self.checkpoints.save(
            self.context,
            self.trainee.optimizer,
            step=self.step,
            samples=self.step * self.plan.job.batch.sequences,
            extra=self._extra(),
        )
        self.saved_at = self.step

    def _settle_checkpoint(self) -> None:
        """Wait for the checkpoint being written; one that finds no space is tried again at the next."""
        try:
            self.checkpoints.wait()
        except NoSpaceError as error:
            self.display.warn(f"{error.problems[0]}; training goes on, the next one is tried in its turn")

    def _copy(self, copies: MemoryCopies) -> None:
        samples = self.step * self.plan.job.batch.sequences
        if (problem := copies.save(self.step, samples, self._extra())) is not None:
            self.display.warn(problem)

    def finish(self) -> None:
        """Save, evaluate, and show what was learnt; after a signal, save and say so."""
        self._save()
        self.checkpoints.close()  # before anything else can go wrong
        if self.copies is not None:
            self.copies.close()
        if self.lookout is not None:
            self.lookout.close()
        if self.ended:
            self._say_stopped()
        else:
            self._evaluate()
        if self.records is not None:
            self.records.close()
        self.display.close()
        if not self.ended:
            self._sample()

    def _say_stopped(self) -> None:
        name, steps = self.stop.signal or "", self.plan.options.steps
        self.display.say(
            f"{name}: stopped after step {self.step} of {steps}, saved; the same command continues from there"
        )
        if self.first and self.step > self.began:  # a start that gets nowhere is not to be repeated
            with suppress(OSError):
                mark_stopped(self.plan.out, name, self.step)

    def write_trace(self) -> None:
        """Write what was recorded, if anything was to be."""
        if self.tracer is None:
            return
        if self.step <= self.tracer.wanted.last_step:
            self.display.warn("stopped before the steps to trace were over: no trace is written")
            return
        self.tracer.write(self.process)

    def _sample(self) -> None:
        wanted = self.plan.options.sample
        if not wanted.tokens:
            return
        prompt = prompt_tokens(self.plan.options, self.data)
        tokens = generate(self.trainee, prompt, wanted.tokens, wanted.temperature)
        self.display.say("sample:")
        self.display.say(load_tokenizer(self.data.directory).decode(tokens))
