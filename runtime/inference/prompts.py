"""What a model is asked to go on with: one prompt, or a file of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.data.documents import json_lines
from runtime.data.tokenizer import Tokenizer
from twin.description.model import Model
from twin.description.problems import DescriptionError, Problem, fail

PROMPT, ID = "prompt", "id"
"""Keys of a line."""


@dataclass(frozen=True)
class Prompt:
    """One text to continue."""

    text: str
    tokens: tuple[int, ...]
    id: str | int | None = None
    """As given, for whoever matches answers to prompts."""


def one_prompt(text: str, tokenizer: Tokenizer, model: Model, origin: str) -> Prompt:
    """Check a prompt; raises DescriptionError."""
    tokens = tuple(int(token) for token in tokenizer.encode(text))
    if problem := _problem(text, tokens, model, origin):
        raise DescriptionError([problem])
    return Prompt(text, tokens)


def read_prompts(path: Path, tokenizer: Tokenizer, model: Model) -> list[Prompt]:
    """Read prompts from JSON lines; raises DescriptionError with every prompt that cannot be continued."""
    if not path.is_file():
        raise fail(str(path), "no such file (--prompts)")
    found, problems = list(_lines(path, tokenizer)), []
    for where, prompt in found:
        problem = _problem(prompt.text, prompt.tokens, model, where)
        problems += [problem] if problem else []
    if problems:
        raise DescriptionError(problems)
    if not found:
        raise fail(str(path), f'holds no prompt; write lines such as {{"{PROMPT}": "def "}}')
    return [prompt for _, prompt in found]


def _lines(path: Path, tokenizer: Tokenizer) -> Iterator[tuple[str, Prompt]]:
    for where, line in json_lines(path, PROMPT):
        text, name = line[PROMPT], line.get(ID)
        if name is not None and (isinstance(name, bool) or not isinstance(name, str | int)):
            raise fail(f"{where}: {ID}", "expected text or a whole number", name)
        yield f"{where}: {PROMPT}", Prompt(text, tuple(int(token) for token in tokenizer.encode(text)), name)


def _problem(text: str, tokens: tuple[int, ...], model: Model, origin: str) -> Problem | None:
    if not tokens:
        return Problem(origin, "is empty; give some text to go on from", text)
    if len(tokens) > model.sequence:
        most = f"the model sees {model.sequence:,} (model.sequence); shorten it"
        return Problem(origin, f"has {len(tokens):,} tokens, but {most}", text)
    if (largest := max(tokens)) >= model.vocabulary:
        return Problem(
            origin, f"has token {largest}, beyond the model's vocabulary of {model.vocabulary}; leave it out", text
        )
    return None
