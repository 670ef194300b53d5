"""What a model is asked to go on with: one prompt, or a file of them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from runtime.data.documents import json_lines
from runtime.data.tokenizer import Tokenizer, begun
from twin.description.model import Model
from twin.description.problems import DescriptionError, Problem, fail

PROMPT, ID = "prompt", "id"
"""Keys of a line."""


@dataclass(frozen=True)
class Prompt:
    """One text to continue."""

    text: str
    tokens: tuple[int, ...]
    """With the one that begins a text, if there is such a one."""
    id: str | int | None = None
    """As given, for whoever matches answers to prompts."""


def one_prompt(text: str, tokenizer: Tokenizer, model: Model, origin: str) -> Prompt:
    """Check a prompt; raises DescriptionError."""
    prompt = _prompt(text, tokenizer)
    if problem := _problem(prompt, model, origin):
        raise DescriptionError([problem])
    return prompt


def read_prompts(path: Path, tokenizer: Tokenizer, model: Model) -> list[Prompt]:
    """Read prompts from JSON lines; raises DescriptionError with every prompt that cannot be continued."""
    if not path.is_file():
        raise fail(str(path), "no such file (--prompts)")
    found, problems = list(_lines(path, tokenizer)), []
    for where, prompt in found:
        problem = _problem(prompt, model, where)
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
        yield f"{where}: {PROMPT}", _prompt(text, tokenizer, name)


def _prompt(text: str, tokenizer: Tokenizer, name: str | int | None = None) -> Prompt:
    tokens = tokenizer.encode(text)
    return Prompt(text, tuple(int(token) for token in (begun(tokenizer, tokens) if len(tokens) else tokens)), name)


def _problem(prompt: Prompt, model: Model, origin: str) -> Problem | None:
    text, tokens = prompt.text, prompt.tokens
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
