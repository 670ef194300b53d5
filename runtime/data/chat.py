"""Conversations to text whose answers count: four usual layouts of JSON lines, and the template that writes them out.

* `{"messages": [{"role": "user", "content": "…"}, …]}`, `{"prompt": "…", "completion": "…"}`, Alpaca's `{"instruction":
  "…", "input": "…", "output": "…"}`, ShareGPT's `{"conversations": [{"from": "human", "value": "…"}, …]}`.
* What the assistant says counts as a target, with what ends its turn; all else is only read.
* A template of one's own is Jinja text, as tokenizers carry it (`chat_template`); a stranger's is code, so it runs in
  Jinja's sandbox, and what it writes has a limit. The tokens that it names are those of the tokenizer beside it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from runtime.data.documents import any_json_lines
from runtime.data.tokenizer import Piece
from twin.description.problems import fail

ASSISTANT = "assistant"
ROLES = {"human": "user", "gpt": ASSISTANT, "user": "user", "system": "system", ASSISTANT: ASSISTANT, "tool": "tool"}
MAX_TEMPLATE_BYTES, MAX_CONFIG_BYTES, MAX_WRITTEN = 1 << 18, 1 << 24, 1 << 22
OF_TOKENS = ("tokenizer_config.json", "special_tokens_map.json")
"""Files of a tokenizer that say what its tokens at the begin and at the end are."""
OF_TEMPLATES = (ArithmeticError, TypeError, AttributeError, LookupError, RecursionError, MemoryError)
"""Errors that a template may end with when it runs, besides Jinja's own."""
UNWRITTEN = ("tools", "functions", "tool_calls", "function_call", "reasoning_content")
"""Keys of conversations, and of turns, that the templates here have no place for."""
NOTHING: tuple[Any, ...] = (None, False, "", [], {}, "[]", "{}", "null")
"""What stands there where there are none, also where all of it was written as text."""
TOKENS = ("bos_token", "eos_token")
"""Names that templates write the tokens at the begin and at the end by."""
LAYOUTS = "messages, prompt and completion, instruction and output, or conversations"


@dataclass(frozen=True)
class Message:
    """What one side says in its turn."""

    role: str
    content: str
    counts: bool = True
    """Whether an answer is learnt, and not only read."""


@dataclass(frozen=True)
class Marked:
    """A text in pieces, some of which count as targets."""

    pieces: tuple[Piece, ...]

    @property
    def text(self) -> str:
        """All of it."""
        return "".join(piece.text for piece in self.pieces)


Template = Callable[[list[Message]], Marked]
"""Writes a conversation out; raises ValueError where it cannot."""


def conversations(paths: Iterable[Path], template: Template) -> Iterator[Marked]:
    """Yield the conversation of each line of files of JSON lines, or of the `.jsonl` files in directories."""
    for where, value in any_json_lines(paths):
        messages = messages_of(value, where)
        try:
            written = template(messages)
        except ValueError as error:
            raise fail(where, str(error)) from None
        if not any(message.role == ASSISTANT and message.counts and message.content for message in messages):
            raise fail(where, "has no answer of the assistant to learn; leave it out")
        yield written


def messages_of(value: dict[str, Any], where: str) -> list[Message]:
    """Read one conversation in any of the layouts; raises DescriptionError."""
    _refuse_unwritten(value, where)
    begin = [_said("system", value, "system", where)] if value.get("system") else []
    if (turns := value.get("messages", value.get("conversations"))) and begin and _is_system(turns):
        raise fail(f"{where}: system", "is said by the first turn too; leave one of them out")
    if "messages" in value:
        return [*begin, *_turns(value["messages"], "role", "content", f"{where}: messages")]
    if "conversations" in value:
        return [*begin, *_turns(value["conversations"], "from", "value", f"{where}: conversations")]
    if "prompt" in value and "completion" in value:
        asked, answered = _said("user", value, "prompt", where), _said(ASSISTANT, value, "completion", where)
        return [*begin, *_history(value.get("history"), where), asked, answered]
    if "instruction" in value and "output" in value:
        wanted = _said("user", value, "instruction", where).content
        more = _said("user", value, "input", where).content if value.get("input") else ""
        turn = Message("user", f"{wanted}\n\n{more}" if more else wanted)
        return [*begin, *_history(value.get("history"), where), turn, _said(ASSISTANT, value, "output", where)]
    raise fail(where, f"is no conversation: it has {', '.join(value) or 'no keys'}; expected {LAYOUTS}")


def _is_system(turns: Any) -> bool:
    first = turns[0] if isinstance(turns, list) else None
    return isinstance(first, dict) and "system" in (first.get("role"), first.get("from"))


def _refuse_unwritten(value: dict[str, Any], where: str) -> None:
    """Refuse what would be left out of the text, and change what the rest means."""
    for key in UNWRITTEN:
        if value.get(key) not in NOTHING:
            raise fail(f"{where}: {key}", "is not written out by Fourfold's templates; take it out, or into the text")


def _history(turns: Any, where: str) -> list[Message]:
    """Read the turns before an instruction: pairs of what was asked and answered, which are learnt too."""
    found = []
    if turns is not None and not isinstance(turns, list):
        raise fail(f"{where}: history", "expected a list of pairs of texts", turns)
    for number, pair in enumerate(turns or []):
        place = f"{where}: history.{number}"
        if not isinstance(pair, list) or len(pair) != 2 or not all(isinstance(each, str) for each in pair):
            raise fail(place, "expected a pair of texts, asked and answered", pair)
        found += [Message("user", pair[0]), Message(ASSISTANT, pair[1])]
    return found


def _turns(turns: Any, role: str, content: str, where: str) -> list[Message]:
    if not isinstance(turns, list) or not turns:
        raise fail(where, "expected a list of turns", turns)
    found = []
    for number, turn in enumerate(turns):
        place = f"{where}.{number}"
        said_by = turn.get(role) if isinstance(turn, dict) else None
        if not isinstance(said_by, str) or said_by not in ROLES:
            raise fail(place, f"expected {role}: {', '.join(ROLES)}, and {content}", turn)
        _refuse_unwritten(turn, place)
        said = _said(ROLES[said_by], turn, content, place)
        weight = turn.get("weight")
        if weight is not None and weight not in (0, 1):
            raise fail(f"{place}: weight", "expected 0, for an answer that is only read, or 1", weight)
        found.append(said if weight is None else replace(said, counts=bool(weight)))
    return found


def _said(role: str, value: dict[str, Any], key: str, where: str) -> Message:
    if not isinstance(value.get(key), str):
        raise fail(f"{where}: {key}", "expected text", value.get(key))
    return Message(role, value[key])


def chatml(messages: list[Message]) -> Marked:
    r"""Write a conversation out as ChatML, which many models are trained with.

    >>> chatml([Message("user", "Hi"), Message("assistant", "Ho")]).text
    '<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\nHo<|im_end|>\n'
    """
    pieces = []
    for message in messages:
        said = message.role == ASSISTANT and message.counts
        pieces += [
            Piece(f"<|im_start|>{message.role}\n", counts=False),
            Piece(message.content, counts=said, special=False),  # a turn that quotes `<|im_end|>` does not end there
            Piece("<|im_end|>", counts=said),
            Piece("\n", counts=False),
        ]
    return Marked(tuple(pieces))


def template_of(path: Path) -> Template:
    """Read a template: Jinja text, or the `chat_template` of a `tokenizer_config.json`; raises DescriptionError."""
    from jinja2 import TemplateError, meta  # noqa: PLC0415  nothing else of data needs it
    from jinja2.sandbox import ImmutableSandboxedEnvironment  # noqa: PLC0415

    text, known = _template_text(path)
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.globals["raise_exception"] = _refuse
    environment.filters["tojson"] = json.dumps
    try:
        compiled = environment.from_string(text)
        named = meta.find_undeclared_variables(environment.parse(text))
    except (TemplateError, SyntaxError, RecursionError, MemoryError) as error:  # Python compiles what Jinja made of it
        raise fail(str(path), f"is not a template of Jinja: {error}") from None

    if missing := sorted(named.intersection(TOKENS).difference(known)):
        raise fail(
            str(path),
            f"names {missing[0]}, which neither {OF_TOKENS[0]} nor {OF_TOKENS[1]} beside it says; put the tokenizer's "
            "there",
        )
    given = {"tools": None, "documents": None, **known}

    def written(messages: list[Message], *, prompt: bool = False) -> str:
        turns = [{"role": m.role, "content": m.content} for m in messages]
        found, length = [], 0
        try:
            for piece in compiled.generate(messages=turns, add_generation_prompt=prompt, **given):
                found.append(piece)
                length += len(piece)
                if length > MAX_WRITTEN:
                    raise ValueError(f"the template writes more than {MAX_WRITTEN:,} characters for it")
        except (*OF_TEMPLATES, TemplateError) as error:
            raise ValueError(f"the template fails on it: {type(error).__name__}: {error}") from None
        return "".join(found)

    return lambda messages: _marked(messages, written)


def _marked(messages: list[Message], written: Callable[..., str]) -> Marked:
    """Take what the template writes for each answer apart from what leads to it."""
    whole = written(messages)
    pieces: list[Piece] = []
    done = 0
    for number, message in enumerate(messages):
        if message.role != ASSISTANT:
            continue
        begin, end = written(messages[:number], prompt=True), written(messages[: number + 1])
        if not (whole.startswith(end) and end.startswith(begin) and len(begin) >= done):
            raise ValueError(
                f"the template does not write turn {number} as a continuation of the turns before; "
                "its answers cannot be told from the rest"
            )
        answer = Piece(whole[len(begin) : len(end)], counts=message.counts)
        pieces += [Piece(whole[done : len(begin)], counts=False), answer]
        done = len(end)
    return Marked((*pieces, Piece(whole[done:], counts=False)))


def _refuse(message: str) -> None:
    raise ValueError(f"the template refuses it: {message}")


def _template_text(path: Path) -> tuple[str, dict[str, str]]:
    """Read a template, and the tokens that files of its tokenizer tell of, itself among them; "" is none."""
    told: list[Any] = []
    if path.suffix == ".json":
        config = _config(path)
        if not isinstance(config, dict) or not isinstance(config.get("chat_template"), str):
            raise fail(str(path), "has no text under chat_template; give a file of Jinja text")
        text = config["chat_template"]
        if len(text.encode()) > MAX_TEMPLATE_BYTES:
            raise fail(str(path), f"too large for a template; at most {MAX_TEMPLATE_BYTES >> 10} KiB are read")
        told.append(config)
    else:
        text = _text(path, MAX_TEMPLATE_BYTES)
    told += [_config(path.parent / name) for name in OF_TOKENS if (path.parent / name).is_file()]
    known: dict[str, str] = {}
    for each in told:
        for name in TOKENS:
            if isinstance(each, dict) and name in each:
                known.setdefault(name, _token(each[name]))
    return text, known


def _text(path: Path, most: int) -> str:
    try:
        if path.stat().st_size > most:
            raise fail(str(path), f"too large for a template; at most {most >> 10} KiB are read")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise fail(str(path), f"cannot be read: {error}") from None


def _config(path: Path) -> Any:
    try:
        return json.loads(_text(path, MAX_CONFIG_BYTES))
    except (ValueError, RecursionError) as error:
        raise fail(str(path), f"is not JSON: {error}") from None


def _token(value: Any) -> str:
    found = value.get("content") if isinstance(value, dict) else value
    return found if isinstance(found, str) else ""
