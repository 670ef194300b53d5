"""Problems with what the user wrote, gathered and told all at once.

A `Problem` names the key, the value and the remedy. `DescriptionError` carries all of them;
the command line prints them and exits with code 2.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError

SHOWN_LENGTH = 60
MAX_LETTERS, MAX_SHOWN = 2000, 200
"""Letters of one problem, and problems, that are printed: a hostile file can have any number of both."""


@dataclass(frozen=True)
class Problem:
    """One thing wrong: at which key, with which value, and what would be right."""

    path: str
    message: str
    value: Any = None

    def __str__(self) -> str:
        shown = "" if self.value is None else f" = {shorten(self.value)}"
        path, message = _cut(self.path, MAX_LETTERS // 10), _cut(self.message, MAX_LETTERS)
        return f"{path}{shown}: {message}" if path else message


class DescriptionError(ValueError):
    """What the user wrote cannot be used. `problems` lists every reason."""

    def __init__(self, problems: Sequence[Problem], origin: str = "") -> None:
        self.problems = tuple(problems)
        self.origin = origin
        head = f"{origin}: " if origin else ""
        many = f"{len(self.problems)} problems" if len(self.problems) > 1 else "1 problem"
        shown = [str(problem) for problem in self.problems[:MAX_SHOWN]]
        if (more := len(self.problems) - len(shown)) > 0:
            shown.append(f"and {more:,} more")
        super().__init__(head + many + "".join(f"\n  {line}" for line in shown))


def fail(path: str, message: str, value: Any = None) -> DescriptionError:
    """Make the error for a single problem."""
    return DescriptionError([Problem(path, message, value)])


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else text[: most - 1] + "…"


def shorten(value: Any) -> str:
    """Show a value in one short line."""
    text = repr(value)
    return text if len(text) <= SHOWN_LENGTH else text[: SHOWN_LENGTH - 1] + "…"


def did_you_mean(word: str, choices: Iterable[str]) -> str:
    """Suggest the nearest of the choices, or list them.

    >>> did_you_mean("frontiere", ["frontier", "alps"])
    "did you mean 'frontier'?"
    """
    names = sorted(choices)
    near = difflib.get_close_matches(str(word), names, n=1)
    return f"did you mean '{near[0]}'?" if near else f"choose from {', '.join(names)}"


def from_pydantic(error: ValidationError, model: type[BaseModel], prefix: str = "") -> list[Problem]:
    """Translate pydantic's errors into problems with dotted paths and hints."""
    problems: list[Problem] = []
    literals: dict[str, tuple[str, Any]] = {}
    for item in error.errors(include_url=False):
        loc, _ = _walked(model, item["loc"])
        if item["type"] == "extra_forbidden" and loc[-1:] != [item["loc"][-1]]:
            loc.append(item["loc"][-1])  # what the user wrote, whatever it looks like
        path = ".".join([prefix, *map(str, loc)] if prefix else map(str, loc))
        message = item["msg"].removeprefix("Value error, ")
        value = item["input"]
        if item["type"] == "extra_forbidden":
            message = f"unknown key; {did_you_mean(str(loc[-1]), _keys_at(model, loc[:-1]))}"
        elif item["type"] == "missing":
            message, value = "missing", None
        elif item["type"] == "literal_error" and len(item["loc"]) > len(loc):
            # one branch of a union such as "auto, or a grid": kept only beside the other branch
            literals[path] = item["ctx"]["expected"], value
            continue
        elif item["type"] == "model_type":
            message = f"expected a mapping with {', '.join(_keys_at(model, loc))}"
        if isinstance(value, dict | BaseModel):
            problems += _split(path, message)
        else:
            problems.append(Problem(path, message, value))
    return list(dict.fromkeys(problems_hashable(_with_literals(problems, literals))))


def _split(path: str, message: str) -> list[Problem]:
    """Take apart what a rule over a whole mapping says: `key.key: what is wrong; key: …`."""
    found: list[Problem] = []
    for part in message.split("; "):
        match = re.match(r"([a-z_][a-z_0-9.]*): (.+)", part, re.DOTALL)
        if match is None and found:  # a remedy after a semicolon belongs to what is before it
            last = found.pop()
            found.append(Problem(last.path, f"{last.message}; {part}"))
        elif match is None:
            found.append(Problem(path, part))
        else:
            found.append(Problem(".".join(filter(None, (path, match[1]))), match[2]))
    return found


def _with_literals(problems: list[Problem], literals: dict[str, tuple[str, Any]]) -> list[Problem]:
    """Add "or 'auto'" to the problem of the other branch, or report the word alone."""
    merged = []
    for problem in problems:
        if problem.path in literals:
            expected, _ = literals.pop(problem.path)
            merged.append(Problem(problem.path, f"{problem.message}, or {expected}", problem.value))
        else:
            merged.append(problem)
    for path, (expected, value) in literals.items():
        if not any(p.path.startswith(path + ".") for p in problems):
            merged.append(Problem(path, f"expected {expected}", value))
    return merged


def problems_hashable(problems: Iterable[Problem]) -> Iterable[Problem]:
    """Freeze values so that equal problems can be told apart from different ones."""
    return (Problem(p.path, p.message, p.value if p.value is None else _Shown(p.value)) for p in problems)


class _Shown:
    """A value reduced to how it is shown; equal when it reads the same."""

    def __init__(self, value: Any) -> None:
        self.text = shorten(value)

    def __repr__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, _Shown) and self.text == other.text

    def __hash__(self) -> int:
        return hash(self.text)


def _is_union_tag(part: int | str) -> bool:
    # pydantic names the branch of a union in the path ("literal['auto']", "constrained-int", "Grid")
    return isinstance(part, str) and ("[" in part or "-" in part or part[:1].isupper() or part in {"int", "float"})


def _keys_at(model: type[BaseModel], loc: Sequence[int | str]) -> list[str]:
    """List the keys that there are at a path."""
    _, found = _walked(model, loc)
    at = _first_model(found)
    if at is None:
        return ["(none known)"]
    return [field.alias or name for name, field in at.model_fields.items()]


def _walked(model: type[BaseModel], loc: Sequence[int | str]) -> tuple[list[int | str], Any]:
    """Return pydantic's path as the user wrote it, without the branches of unions, and the type that stands there.

    What stands where a mapping has its keys is a key, whatever it looks like.
    """
    said: list[int | str] = []
    found: Any = model
    for part in loc:
        values = _values_of_mapping(found)
        if isinstance(part, int):
            found = next(iter(get_args(found)), None) if get_origin(found) in {list, tuple, Sequence} else found
        elif values is not None:
            found = values
        elif part in (fields := _fields(found)):
            found = fields[part]
        elif _is_union_tag(part):
            continue
        else:
            found = None
        said.append(part)
    return said, found


def _fields(annotation: Any) -> dict[str, Any]:
    """Return the types of a model's fields, by their names and aliases; none where there is no model."""
    model = _first_model(annotation)
    if model is None:
        return {}
    named = {name: field.annotation for name, field in model.model_fields.items()}
    return named | {field.alias: field.annotation for field in model.model_fields.values() if field.alias}


def _values_of_mapping(annotation: Any) -> Any:
    """Return the type of a mapping's values, be it optional; None where something else may stand there."""
    kind, parts = get_origin(annotation), get_args(annotation)
    if kind in {dict, Mapping}:
        return parts[1]
    if kind is Annotated:
        return _values_of_mapping(parts[0])
    alternatives = [part for part in parts if part is not type(None)] if kind in {Union, UnionType} else []
    return _values_of_mapping(alternatives[0]) if len(alternatives) == 1 else None


def _first_model(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    for part in get_args(annotation):
        found = _first_model(part)
        if found is not None:
            return found
    return None
