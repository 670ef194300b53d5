"""What a run says: where it starts, each step, why it stopped, and what it has learnt."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress

import torch

from runtime.checkpoint.loading import Loaded
from runtime.data.mixture import Mixture
from runtime.data.tokenizer import load_tokenizer
from runtime.inference.generate import Choice, generate
from runtime.launch.devices import place_name
from runtime.launch.environment import Process
from runtime.plan.continued import Change
from runtime.plan.plan import Plan, prompt_tokens
from runtime.plan.sources import Sources
from runtime.records.console import Display
from runtime.records.metrics import step_line
from runtime.records.records import Records
from runtime.records.run_directory import mark_stopped
from runtime.step.context import Context
from runtime.step.trainee import StepFigures, Trainee
from runtime.train.state import State
from twin.description.job import Job
from twin.description.problems import fail

MILLION = 10**6


def say_start(
    display: Display,
    job: Job,
    sources: Sources,
    process: Process,
    device: torch.device,
    state: State,
    loaded: Loaded | None,
    changed: Sequence[Change],
) -> None:
    """Say what is trained, on what, and from where it goes on."""
    where = place_name(device, process.ranks)
    if state.step == 0:
        count = job.model.parameters
        size = f"{count / 1e6:,.1f} M parameters" if count >= MILLION else f"{count:,} parameters"
        if job.lora is not None:
            size = f"{job.lora.parameters(job.model):,} parameters of adapters beside {size}"
        display.say(
            f"training {job.name}: {size} on {job.concrete_grid}, {job.precision}, {sources.tokens:,} tokens, {where}"
        )
    for line in said_of_data(sources, job):
        display.say(line)
    if loaded is not None:
        for text in (*loaded.rejected, *map(str, changed)):
            display.warn(text)
        display.say(f"continuing {job.name} after step {state.step} from {loaded.path}, {where}")


def said_of_data(sources: Sources, job: Job) -> list[str]:
    """Say how what is read is mixed: the share of the samples that each data set gets, and what shares a sequence."""
    samples = sources.samples(job)
    lines = []
    if not job.document_mask and any(part.train.documents is not None for part in sources.parts):
        lines = ["conversations that share a sequence see those before them there: document_mask is false"]
    if not isinstance(samples, Mixture):
        return lines
    steps, total = job.train.steps, sum(sources.weights)
    counts = samples.counts(steps * job.batch.sequences)
    return lines + [
        f"{weight / total:.1%} of the samples ({weight} of {total}) from {data.directory}: {part.windows:,} sequences, "
        f"{count / part.windows:.2f} epochs in {steps:,} steps"
        for weight, data, part, count in zip(sources.weights, sources.parts, samples.parts, counts, strict=True)
    ]


def trace_is_ahead(plan: Plan, process: Process, step: int, display: Display) -> bool:
    """Refuse a trace of steps that are over; after a failure that is nobody's fault, make none."""
    wanted = plan.trace
    if wanted is None or wanted.last_step >= step:
        return True
    text = f"the run goes on at step {step}"
    steps = f"{wanted.first_step}-{wanted.last_step}"
    if not process.perhaps_again:
        raise fail("--trace-steps", f"{text}; choose later ones", steps)
    display.warn(f"{text}: no trace of steps {steps} is written")
    return False


def write_step(
    records: Records, display: Display, context: Context, number: int, step: StepFigures, rate: float, seconds: float
) -> float:
    """Write a step's line of metrics, and show it; return its loss."""
    figures = step_line(context, number, step, rate, seconds)
    records.write(figures)
    display.step(figures)
    return float(figures["loss"])


def say_stopped(display: Display, plan: Plan, signal: str, state: State, *, first: bool) -> None:
    """Say that a signal has ended the run, and leave a mark for whoever starts it again."""
    steps = plan.options.steps
    display.say(f"{signal}: stopped after step {state.step} of {steps}, saved; the same command continues from there")
    if first and state.step > state.began:  # a start that gets nowhere is not to be repeated
        with suppress(OSError):
            mark_stopped(plan.out, signal, state.step)


def say_sample(display: Display, plan: Plan, trainee: Trainee, sources: Sources) -> None:
    """Show text from the model, where that is wanted."""
    wanted = plan.options.sample
    if not wanted.tokens:
        return
    choice = Choice(wanted.temperature, plan.job.seed)
    tokens = generate(trainee, prompt_tokens(plan.options, sources), wanted.tokens, choice)
    tokenizer = load_tokenizer(sources.directory)
    display.say("sample:")
    display.say(tokenizer.decode(tokens if tokenizer.begin is None else tokens[1:]))
