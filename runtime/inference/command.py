"""`fourfold sample` and `fourfold eval`: ask a run, on whatever ranks are there."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from runtime.checkpoint.loading import Loaded
    from runtime.inference.loss import Score
    from runtime.inference.prompts import Prompt
    from runtime.inference.texts import Scored
    from runtime.inference.trained import TrainedRun
    from runtime.launch.environment import Process
    from twin.description.job import Job

# Commands import what they need when they run, so that --help is instant.
# ruff: noqa: PLC0415

Resolve = Callable[["Job"], "Job"]
MAX_TEMPERATURE = 1_000_000
"""As `train.sample.temperature` has it."""
RunDirectory = Annotated[Path, typer.Argument(metavar="RUN", help="Directory of a run, or one of its checkpoints.")]
Ranks = Annotated[
    int | None,
    typer.Option(
        "--ranks", min=1, help="Start so many ranks here, 1 if absent; they need not be as many as trained the run."
    ),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="KEY=VALUE",
        help="Override a key of the run's job, such as grid='{z: 2}', precision=fp32 or train.device=cpu. May be "
        "repeated.",
    ),
]
Step = Annotated[
    int | None,
    typer.Option(metavar="N", min=0, help="The checkpoint after so many steps; the newest that is whole if absent."),
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def sample(resolve: Resolve) -> Callable[..., None]:
    """Make the command; `resolve` settles what a job leaves to Fourfold."""

    def sample(
        context: typer.Context,
        run: RunDirectory,
        prompt: Annotated[
            str | None, typer.Option(metavar="TEXT", help="Text to go on from; train.sample.prompt if absent.")
        ] = None,
        prompts: Annotated[
            Path | None,
            typer.Option(
                metavar="FILE.jsonl",
                help='Prompts, a line each: {"prompt": "...", "id": ...}; answers are JSON lines too.',
            ),
        ] = None,
        tokens: Annotated[
            int | None, typer.Option(metavar="N", min=1, help="Tokens to generate; train.sample.tokens if absent.")
        ] = None,
        temperature: Annotated[
            float | None,
            typer.Option(
                metavar="T",
                help="0: always the likeliest token; at most 1,000,000; train.sample.temperature if absent.",
            ),
        ] = None,
        top_k: Annotated[
            int | None, typer.Option(metavar="K", min=1, help="Choose among the K likeliest tokens only.")
        ] = None,
        seed: Annotated[
            int | None, typer.Option(metavar="S", min=0, help="Of what is chosen by chance; the run's if absent.")
        ] = None,
        ranks: Ranks = None,
        overrides: Overrides = None,
        step: Step = None,
        as_json: Json = False,
    ) -> None:
        """Generate text from a checkpoint of a run, the same on every grid."""
        _check_temperature(temperature)
        process, trained = _opened(run, overrides, ranks, step, resolve)
        asked = _prompts(trained, prompt, prompts)
        _start_ranks(context, "sample", trained, process)
        from runtime.inference.generate import Choice
        from runtime.inference.ranks import continue_prompts
        from runtime.launch.rank import run_as_rank

        wanted, tokenizer = trained.job.train.sample, trained.tokenizer()
        heat = wanted.temperature if temperature is None else temperature
        choice = Choice(heat, trained.job.seed if seed is None else seed, top_k)
        count = tokens or wanted.tokens or type(wanted)().tokens

        def tell(_loaded: Loaded, asked: Prompt, made: list[int]) -> None:
            given = asked.tokens if tokenizer.begin is None else asked.tokens[1:]
            text = tokenizer.decode([*given, *made])
            if not (as_json or prompts):
                typer.echo(text)
                return
            name = {} if asked.id is None else {"id": asked.id}
            line = {**name, "prompt": asked.text, "completion": tokenizer.decode(made), "tokens": made}
            typer.echo(json.dumps(line, ensure_ascii=False))

        run_as_rank(process, lambda: continue_prompts(trained, process, asked, count, choice, tell))

    return sample


def evaluate(resolve: Resolve) -> Callable[..., None]:
    """Make the command; `resolve` settles what a job leaves to Fourfold."""

    def evaluate(
        context: typer.Context,
        run: RunDirectory,
        data: Annotated[
            Path | None,
            typer.Option(
                metavar="PATH",
                help="Data set, whose held-out part is scored, or a file of text or of JSON lines (.jsonl), whose "
                "documents are scored one by one, or one of train.evaluation.sets; if absent the run's own data set.",
            ),
        ] = None,
        key: Annotated[str, typer.Option(help="Key of the text in JSON lines.")] = "text",
        sequences: Annotated[
            int | None,
            typer.Option(
                metavar="N",
                min=1,
                help="Score the first N sequences; of a data set train.evaluation.sequences if absent, of a file all.",
            ),
        ] = None,
        ranks: Ranks = None,
        overrides: Overrides = None,
        step: Step = None,
        as_json: Json = False,
    ) -> None:
        """Measure the loss of a checkpoint of a run on text, the same on every grid."""
        process, trained = _opened(run, overrides, ranks, step, resolve)
        _start_ranks(context, "eval", trained, process)
        from runtime.inference.ranks import score_text
        from runtime.launch.rank import run_as_rank

        def tell(loaded: Loaded, scored: Scored, score: Score) -> None:
            said = json.dumps(_figures(loaded, scored, score)) if as_json else _told(trained, loaded, scored, score)
            typer.echo(said)

        run_as_rank(process, lambda: score_text(trained, process, data, sequences, key, tell))

    return evaluate


def _check_temperature(temperature: float | None) -> None:
    """Refuse what is no temperature: not-a-number is neither above a limit nor below one."""
    from twin.description.problems import fail

    if temperature is not None and not 0.0 <= temperature <= MAX_TEMPERATURE:
        raise fail("--temperature", f"expected a number from 0 to {MAX_TEMPERATURE:,}", temperature)


def _opened(
    run: Path, overrides: list[str] | None, ranks: int | None, step: int | None, resolve: Resolve
) -> tuple[Process, TrainedRun]:
    """Say who this process is, and open the run for the ranks that are, or will be, there."""
    from runtime.inference.trained import open_run
    from runtime.launch.environment import Process, from_environment, refuse_ranks

    process = from_environment(os.environ)
    refuse_ranks(process, ranks)
    if process.launcher == "alone":
        process = Process(ranks=ranks or 1, local_ranks=ranks or 1)
    trained = open_run(run, overrides or [], process.ranks, step)
    return process, _settled(trained, resolve)


def _settled(trained: TrainedRun, resolve: Resolve) -> TrainedRun:
    """Put the run on a grid, if it needs one; without keys of its own grid, and a word, where none can have them."""
    from twin.description.problems import DescriptionError
    from twin.strategies import loosened, said_of

    problems: list[DescriptionError] = []
    for job, left_out in loosened(trained.job):
        try:
            found = replace(trained, job=resolve(job), left_out=tuple(left_out))
        except DescriptionError as error:
            problems.append(error)
            continue
        if left_out:
            typer.echo(f"asked on {found.job.concrete_grid} {said_of(left_out)}", err=True)
        return found
    raise problems[0]


def _prompts(trained: TrainedRun, prompt: str | None, prompts: Path | None) -> list[Prompt]:
    from runtime.inference.prompts import one_prompt, read_prompts
    from twin.description.problems import fail

    if prompt is not None and prompts is not None:
        raise fail("--prompts", "there is a --prompt already; give one of them", str(prompts))
    tokenizer, model = trained.tokenizer(), trained.job.model
    if prompts is not None:
        return read_prompts(prompts, tokenizer, model)
    if prompt is None:
        return [one_prompt(trained.job.train.sample.prompt, tokenizer, model, "train.sample.prompt")]
    return [one_prompt(prompt, tokenizer, model, "--prompt")]


def _start_ranks(context: typer.Context, command: str, trained: TrainedRun, process: Process) -> None:
    """Start ranks that do what this process was told to, wait for them and end, unless it is all that is needed."""
    from runtime.launch.need import need_torch

    need_torch(command)
    if process.launcher != "alone" or process.ranks == 1:
        return
    from runtime.launch.local import run_ranks
    from runtime.plan.options import settled

    raise typer.Exit(run_ranks([command, *_given(context, settled(trained.job, trained.left_out))], process.ranks))


def _given(context: typer.Context, chosen: Sequence[str]) -> list[str]:
    """Write down the options that were given and what was chosen, but not how many ranks to start."""
    options, about = [], list[str]()
    for parameter in context.command.params:
        value = context.params.get(parameter.name or "")
        if parameter.name == "ranks" or value is None or value is False:
            continue
        if parameter.param_type_name == "argument":
            about.append(str(value))
        elif value is True:
            options.append(parameter.opts[0])
        else:
            options += [
                f"{parameter.opts[0]}={each}" for each in (value if isinstance(value, list | tuple) else [value])
            ]
    return [*options, *(f"--set={change}" for change in chosen), "--", *about]


def _figures(loaded: Loaded, scored: Scored, score: Score) -> dict[str, Any]:
    return {
        "checkpoint": str(loaded.path),
        "step": loaded.step,
        "text": scored.name,
        "loss": score.loss,
        "perplexity": score.perplexity if math.isfinite(score.perplexity) else None,
        "tokens": score.tokens,
        "sequences": scored.count,
        "documents": scored.documents,
        "padded_sequences": scored.padded,
    }


def _told(trained: TrainedRun, loaded: Loaded, scored: Scored, score: Score) -> str:
    documents = ""
    if scored.documents is not None:
        documents = (
            f"{_many(scored.documents, 'document')} in {_many(scored.count, 'sequence')}, "
            f"{scored.padded:,} of them padded; "
        )
    return (
        f"{trained.job.name} after step {loaded.step}, on {scored.name}: {documents}{_many(score.tokens, 'token')}\n"
        f"loss {score.loss:.4f} nats per token, perplexity {score.perplexity:.4g}"
    )


def _many(count: int, what: str) -> str:
    return f"{count:,} {what}{'' if count == 1 else 's'}"
