"""Every command of `fourfold`, as its own help says it."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Any

import typer

from tools.reference.markdown import code, prose, table
from twin.cli import application

COMMON = {"--help", "-h"}


def commands() -> str:
    """Write a section for each command."""
    root = typer.main.get_command(application())
    found: dict[str, Any] = root.commands  # type: ignore[attr-defined]
    return "\n".join(part for name in sorted(found) for part in command(name, found[name]))


def command(name: str, of: Any) -> list[str]:
    """Write what a command takes and does."""
    arguments = [p for p in of.params if p.param_type_name == "argument"]
    options = [p for p in of.params if p.param_type_name == "option" and not COMMON & set(p.opts)]
    usage = " ".join(["fourfold", name, *(argument_word(p) for p in arguments), *(["[OPTIONS]"] if options else [])])
    rows = [[code(argument_word(p)), p.help or "", ""] for p in arguments]
    rows += [[code(option_words(p)), p.help or "", shown_default(p)] for p in options]
    head = [f"## {name}\n", prose(of.help), "", f"```text\n{usage}\n```\n"]
    return [*head, table(["argument or option", "meaning", "default"], rows)] if rows else head


def argument_word(parameter: Any) -> str:
    """Write an argument as a usage line does."""
    word = (parameter.metavar or parameter.name).upper()
    return word if parameter.required else f"[{word}]"


def option_words(parameter: Any) -> str:
    """Write an option with what it takes."""
    names = " / ".join([*parameter.opts, *parameter.secondary_opts])
    if parameter.is_flag:
        return names
    taken = parameter.metavar or taken_by(parameter.type_descriptor.annotation)
    return f"{names} {taken}"


def taken_by(annotation: Any) -> str:
    """Say what an option's type takes."""
    if isinstance(annotation, type) and issubclass(annotation, Enum):
        return "|".join(str(choice.value) for choice in annotation)
    return {int: "INTEGER", float: "NUMBER", Path: "PATH"}.get(annotation, "TEXT")


def shown_default(parameter: Any) -> str:
    """Write an option's default, if it says anything."""
    value = getattr(parameter.default, "value", parameter.default)
    if parameter.required:
        return "required"
    return (
        ""
        if value in (None, "", False) or callable(value)
        else code(str(value).lower() if value is True else str(value))
    )
