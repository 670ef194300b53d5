"""A run on one rank, from its last checkpoint to its last step.

* `state`: where it stands; `saving`: what it keeps; `judging`: which steps count; `showing`: what it says.
* What keeps it alive is in `runtime.survive`.
"""

from __future__ import annotations

import math
from dataclasses import asdict
from typing import TYPE_CHECKING

import torch

from runtime.launch.board import Board
from runtime.launch.environment import Process
from runtime.model.attention_backend import settled_backend
from runtime.parallel.mesh import Mesh
from runtime.plan import continued
from runtime.plan.optimizer_settings import Schedule
from runtime.plan.plan import Plan
from runtime.plan.sources import Sources
from runtime.records.console import Display, Stopwatch
from runtime.records.ownership import Ownership
from runtime.records.records import Records, due
from runtime.records.run_directory import ENERGY, note_start, write_energy
from runtime.step.context import PRECISIONS
from runtime.step.feed import Feed, goldfish_of
from runtime.step.trainee import MicroBatch, StepFigures
from runtime.strategies import trains
from runtime.survive.history import KEY, History, longer
from runtime.survive.stop import Stop
from runtime.tracing.energy import Meter, Reading, together
from runtime.train import showing
from runtime.train.diagnosis import find_non_finite
from runtime.train.evaluation import LOSS, Evaluation, told
from runtime.train.judging import Judge
from runtime.train.saving import Saving
from runtime.train.state import State
from runtime.watch.lookout import Lookout

if TYPE_CHECKING:
    from runtime.tracing.tracer import Tracer

OWNER_SECONDS = 5.0
"""How often rank 0 looks whether another start has taken over, besides before every checkpoint."""


class Run:
    """What a run on one rank consists of, and the order in which it happens."""

    def __init__(
        self,
        plan: Plan,
        process: Process,
        mesh: Mesh,
        device: torch.device,
        sources: Sources,
        stop: Stop,
        history: History,
        owned: Ownership | None,
    ) -> None:
        self.plan, self.process, self.sources = plan, process, sources
        self.stop, self.owned = stop, owned
        job, options = plan.job, plan.options
        self.first = process.rank == 0
        self.state = State(history)
        compile_ = options.compile or job.fused_elementwise
        self.attention = settled_backend(job, device, PRECISIONS[job.precision])
        self.trainee = trains(job)(job, mesh, device, options.optimizer, compile_=compile_)
        self.context = self.trainee.context
        goldfish = goldfish_of(options, job.seed, sources.parts[0].manifest.separator)
        self.feed = Feed(self.context, sources.samples(job), goldfish)
        self.evaluation = Evaluation(self.trainee, sources, options.evaluation.sequences)
        self.saving = Saving(plan, self.trainee, mesh, self.state, owned)
        self.judge = Judge(plan, self.trainee, self.state, self.saving)
        self.display = Display(shown=False, steps=options.steps, start=0)
        self.records: Records | None = None
        self.meter = Meter.of(device, process.local_rank)
        self.energy: Reading | None = None
        """What the run took since this start, once it is over."""
        traced = Meter.of(device, process.local_rank)
        self.tracer: Tracer | None = None
        if plan.trace:
            from runtime.tracing.tracer import Tracer  # noqa: PLC0415  loads pyarrow

            self.tracer = Tracer(plan.trace, self.context, traced)
        self.lookout: Lookout | None = None

    def resume(self, *news: str) -> None:
        """Continue from the last complete checkpoint, if there is one; say so, after other news."""
        options, state = self.plan.options, self.state
        loaded = self.saving.load()
        changed: list[continued.Change] = []
        if loaded is not None:
            state.step = state.began = state.saved_at = self.context.step = loaded.step
            state.modes = dict(loaded.extra.get("gemm_modes", {}))
            state.history = longer(state.history, History.read(loaded.extra.get(KEY), str(loaded.path)))
            if options.checkpoints.best:
                self.saving.best_again(loaded.extra)
            changed = continued.check_changes(
                loaded.extra, self.saving.options, loaded.step, loaded.path, accepted=self.plan.accept_changes
            )
        if loaded is None or self.plan.job.lora is not None:  # a checkpoint of adapters has nothing else
            from runtime.huggingface.weights import begin_with  # noqa: PLC0415  rarely needed

            if (told := begin_with(options, self.context, adapters=loaded is None)) is not None:
                news = (*news, f"{options.initial_weights}: {told}")
        if loaded is None and options.initial_weights is not None and self.first:
            from runtime.huggingface.companions import keep_companions  # noqa: PLC0415  rarely needed

            own = not options.other_tokenizer
            if (problem := keep_companions(options.initial_weights, self.plan.out, tokenizer=own)) is not None:
                news = (*news, problem)
        self.display = Display(shown=self.first, steps=options.steps, start=state.step)
        for text in filter(None, news):
            self.display.say(text)
        showing.say_start(
            self.display, self.plan.job, self.sources, self.process, self.context.device, state, loaded, changed
        )
        if self.context.device.type != "cpu":
            self.display.say(f"attention: {self.attention}")
        if options.gemm_library == "onednn" and not self.context.products.onednn:
            self.display.say("train.gemm_library: onednn is of CPUs and a PyTorch that has it; PyTorch chooses")
        state.modes = self.trainee.settle(
            options.gemm_modes, state.modes, deterministic=options.deterministic, say=self.display.say
        )
        if not showing.trace_is_ahead(self.plan, self.process, state.step, self.display):
            self.tracer = None

    def open_files(self) -> None:
        """Open what is written to while training, and see what losses were before."""
        options = self.plan.options
        self.records = Records(
            self.plan.out, self.state.step, options.steps, kept=self.first, tensorboard=options.tensorboard
        )
        if self.first and self.state.step < options.steps:
            note_start(self.plan.out, self.state.step, self.process.ranks)
        self.judge.begin(self.stop, self.records)

    def loop(self) -> None:
        """Train until the last step, or until a signal ends the run."""
        options, state, watch, since = self.plan.options, self.state, Stopwatch(), self.state.step
        schedule = Schedule.of(options)
        if self.plan.watch is not None:
            self.lookout = Lookout(self.context, self.process, self.plan.out, self.plan.watch, self.display)
        listeners = [each for each in (self.tracer, self.lookout) if each is not None]
        self.meter.start()
        if state.step == 0:
            with watch.paused():
                self._evaluate()  # where it starts from
                if self.judge.guard is not None:
                    self.saving.save(self.display)  # to go back to
        while state.step < options.steps and not state.ended:
            next_look = self._next_look(state.step)
            self.stop.announce(next_look)
            rate = schedule.at(state.step)
            figures = self._step(rate, listeners)
            done = state.step + 1
            if done == next_look:
                state.ended = done < options.steps and self.stop.due(done)
                if self.judge.went_back(self._batch, done, self.display):
                    since = state.step
                    watch.lap()
                    continue
            if due(options.log_every, done) or done == options.steps:
                self._write(figures, rate, watch.lap() / (done - since))
                since = done
            state.step = done
            with watch.paused():
                self._between_steps(done)
        self.energy = self.meter.stop()

    def write_energy(self, board: Board) -> None:
        """Write on rank 0 what all ranks' counters say of this start; what no counter says is unknown, with its reason.

        Every rank that trains must call it, with a board of those alone.
        """
        if self.energy is None:
            return
        told = board.gather(asdict(self.energy))
        if not self.first:
            return
        steps = self.state.step - self.state.began
        used = together([Reading(**each) for each in told], steps, steps * self.plan.job.tokens_per_step)
        try:
            write_energy(self.plan.out, used)
        except OSError as error:  # the run is whole without it
            self.display.warn(f"{self.plan.out / ENERGY}: cannot be written: {error.strerror}")

    def _between_steps(self, done: int) -> None:
        options = self.plan.options
        if due(options.evaluation.every, done) and done < options.steps:
            self._evaluate()
        last = done == options.steps
        if due(options.checkpoints.every, done) or last:
            if last and options.checkpoints.best:
                self._evaluate()  # what is saved says whether it is the best
            self.saving.save(self.display)
        if due(options.checkpoints.memory_every, done):
            self.saving.copy(self.display)

    def _batch(self, step: int) -> list[MicroBatch]:
        """Return what a step trains on."""
        return self.feed.step(self.state.history.batch(step))

    def _step(self, rate: float, listeners: list[Tracer | Lookout]) -> StepFigures:
        step = self.state.step
        for each in listeners:
            each.before(step)
        batch = self._batch(step)
        if step + 1 < self.plan.options.steps:
            self.feed.prepare(self.state.history.batch(step + 1))
        for each in listeners:
            each.loaded(step)
        figures = self.trainee.step(batch, rate)
        for each in listeners:
            each.after(step)
        return figures

    def _next_look(self, done: int) -> int:
        """After how many steps hosts wait for a step's figures next: a GPU only where they are wanted."""
        options = self.plan.options
        if self.context.device.type == "cpu":
            return done + 1
        kept = options.checkpoints  # what is kept must be known to be good
        judged = options.evaluation.every if kept.best and options.evaluation.sequences else 0
        every = [n for n in (options.log_every, kept.every, kept.memory_every, judged) if n]
        return min(options.steps, *(done - done % n + n for n in every))

    def _write(self, step: StepFigures, rate: float, seconds: float) -> None:
        if self.records is None or not self.first:
            return
        if self.owned is not None:
            self.owned.check(at_most_every_seconds=OWNER_SECONDS)
        number = self.state.step
        loss = showing.write_step(self.records, self.display, self.context, number, step, rate, seconds)
        last = number + 1 == self.plan.options.steps
        self.judge.saw(number, loss, None if last else self._next_look(number + 1))

    def _evaluate(self) -> None:
        step = self.state.step
        if not self.plan.options.evaluation.sequences:
            return
        found = self.evaluation.look()
        if not all(math.isfinite(loss) for loss in found.values()):
            raise find_non_finite(self.trainee, self._batch(step), step)
        if self.records is not None:
            self.records.write({"after_steps": step, **found})
        self.display.say(f"step {step}: {told(found)}")
        if self.plan.options.checkpoints.best and step:
            self.saving.judge(step, found[LOSS], self.display)

    def finish(self) -> None:
        """Save, evaluate, and show what was learnt; after a signal, save and say so."""
        self.saving.save(self.display)
        self.saving.close()
        if self.lookout is not None:
            self.lookout.close()
        if self.state.ended:
            showing.say_stopped(self.display, self.plan, self.stop.signal or "", self.state, first=self.first)
        elif not self.plan.options.checkpoints.best or self.state.step == self.state.began:
            self._evaluate()
        if self.records is not None:
            self.records.close()
        self.display.close()
        if not self.state.ended:
            showing.say_sample(self.display, self.plan, self.trainee, self.sources)

    def write_trace(self) -> None:
        """Write what was recorded, if anything was to be."""
        if self.tracer is None:
            return
        if self.state.step <= self.tracer.wanted.last_step:
            self.display.warn("stopped before the steps to trace were over: no trace is written")
            return
        self.tracer.write(self.process)
