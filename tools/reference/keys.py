"""Every key of job and machine files, with type, meaning and default."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any, Literal, Union, get_args, get_origin

import annotated_types
from pydantic.fields import FieldInfo

from tools.reference.markdown import code, first_paragraph, table
from twin.description.docstrings import field_texts
from twin.description.grid import GridSpec
from twin.description.job import DEFAULT_STRATEGY, Job
from twin.description.machine import Machine
from twin.description.spec import Spec
from twin.description.units import split_name
from twin.strategies import named, names

BOUNDS = {annotated_types.Gt: ("gt", "above"), annotated_types.Ge: ("ge", "at least")}
LIMITS = {annotated_types.Lt: ("lt", "below"), annotated_types.Le: ("le", "at most")}
PLAIN = {
    "str": "text",
    "bool": "true or false",
    "int": "integer",
    "float": "number",
    "Any": "anything",
    "NoneType": "none",
}
LARGE = 10_000_000
"""A limit that nobody meets is not shown."""


def job() -> str:
    """Write the keys of all jobs, then each strategy's own."""
    seen: set[type[Spec]] = {Machine}
    parts = ["## Every job\n", section(Job), *below(Job, seen, "###")]
    for name in sorted(names(), key=lambda name: (name != DEFAULT_STRATEGY, name)):
        options = named(name).options
        own = [key for key in options.model_fields if changed(key, options, Job)]
        parts += [f"## `strategy: {name}`\n", first_paragraph(options.__doc__), "", section(options, own)]
        parts += below(options, seen, "###", own)
    return "\n".join(parts)


def machine() -> str:
    """Write the keys of machine files, of devices and of libraries."""
    seen: set[type[Spec]] = set()
    return "\n".join(["## The machine\n", section(Machine), *below(Machine, seen, "###")])


def changed(key: str, options: type[Spec], base: type[Spec]) -> bool:
    """Say if a strategy has a key that other jobs have not, or has it otherwise."""
    ours, theirs = options.model_fields[key], base.model_fields.get(key)
    return theirs is None or ours.annotation != theirs.annotation or ours.default != theirs.default


def below(model: type[Spec], seen: set[type[Spec]], heading: str, only: list[str] | None = None) -> list[str]:
    """Write a section for everything that is nested in a model, once."""
    found = []
    for name, field in model.model_fields.items():
        for part in parts_of(field.annotation) if only is None or name in only else ():
            if part in seen or part is GridSpec:
                continue
            seen.add(part)
            found += [f"{heading} {part.__name__}\n", first_paragraph(part.__doc__), "", section(part)]
            found += below(part, seen, heading)
    return found


def parts_of(annotation: Any) -> Iterator[type[Spec]]:
    """Yield the models that an annotation names."""
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        yield annotation
    for part in get_args(annotation):
        yield from parts_of(part)


def section(model: type[Spec], only: list[str] | None = None) -> str:
    """Write the keys of one model as a table."""
    fields = {name: field for name, field in model.model_fields.items() if only is None or name in only}
    if not fields:
        return "No keys of its own.\n"
    rows = [
        [code(key(name, field)), kind(name, field), meaning(model, name, field), default(name, field)]
        for name, field in fields.items()
    ]
    return table(["key", "type", "meaning", "default"], rows)


def key(name: str, field: FieldInfo) -> str:
    """Return a field's key in a file."""
    return field.alias or split_name(name)[0]


def meaning(model: type[Spec], name: str, field: FieldInfo) -> str:
    """Say what a key is: its own docstring, or that of what it holds."""
    text = field_texts(model).get(name)
    if text:
        return text
    return " ".join(first_paragraph(part.__doc__) for part in list(parts_of(field.annotation))[:1])


def default(name: str, field: FieldInfo) -> str:
    """Say what holds where a key is absent."""
    if field.is_required():
        return "required"
    value = field.get_default(call_default_factory=True)
    if value is None or value in ((), ""):
        return "none"
    if isinstance(value, Spec):
        return "its own"
    if isinstance(value, bool):
        return code(str(value).lower())
    unit = split_name(name)[1]
    number = f"{value:g}" if isinstance(value, float) else str(value)
    return code(f"{number} {unit.si}" if unit and isinstance(value, float | int) else number)


def kind(name: str, field: FieldInfo) -> str:
    """Say what values a key takes."""
    unit = split_name(name)[1]
    limits = " and ".join(dict.fromkeys([*bounds(field.metadata), *bounds_in(field.annotation)]))
    return words(field.annotation) + (f" in {unit.si}" if unit else "") + (f", {limits}" if limits else "")


def bounds(metadata: list[Any]) -> Iterator[str]:
    """Say between which values a number lies."""
    for one in metadata:
        if isinstance(one, FieldInfo):
            yield from bounds(one.metadata)
        for of, (attribute, word) in (BOUNDS | LIMITS).items():
            if isinstance(one, of) and abs(getattr(one, attribute)) < LARGE:
                yield f"{word} {getattr(one, attribute):g}"


def bounds_in(annotation: Any) -> Iterator[str]:
    """Say so of the first number inside an annotation."""
    yield from bounds(list(getattr(annotation, "__metadata__", ())))
    if get_origin(annotation) in {Union, types.UnionType}:
        for part in get_args(annotation):
            yield from bounds(list(getattr(part, "__metadata__", ())))


def words(annotation: Any) -> str:
    """Say a type in words."""
    origin, parts = get_origin(annotation), get_args(annotation)
    if hasattr(annotation, "__metadata__"):
        return words(annotation.__origin__)
    if origin is Literal:
        return ", ".join(code(str(value).lower() if isinstance(value, bool) else str(value)) for value in parts)
    if parts:
        return of_parts(origin, parts)
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return "Grid of the strategy" if annotation is GridSpec else annotation.__name__
    name = getattr(annotation, "__name__", str(annotation))
    return PLAIN.get(name, name)


def of_parts(origin: Any, parts: tuple[Any, ...]) -> str:
    """Say a type that is made of others."""
    if origin is tuple:
        several = f"list of {words(parts[0])}"
        return several if Ellipsis in parts else f"{len(parts)} × {words(parts[0])}"
    if origin is dict:
        return f"{words(parts[1])} by name"
    return " or ".join(dict.fromkeys(words(part) for part in parts))
