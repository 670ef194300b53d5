"""Small pieces of Markdown."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterable, Sequence


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Write a table; cells may be of several lines."""
    lines = [head, ["---"] * len(head), *rows]
    return "\n".join(f"| {' | '.join(cell(text) for text in line)} |" for line in lines) + "\n"


def cell(text: str) -> str:
    """Write text that may stand in a table."""
    return re.sub(r"\s+", " ", text).replace("|", "\\|").strip()


def code(text: str) -> str:
    """Write code inside a line."""
    return f"`{text}`"


def prose(docstring: str | None) -> str:
    """Turn a docstring into Markdown: indented blocks into code, `Args:` into a list."""
    text = inspect.cleandoc(docstring or "")
    body, _, rest = text.partition("\nArgs:\n")
    if not rest:
        return body
    listed, after = [], []
    for line in rest.splitlines():
        if found := re.match(r"    (\w+): (.*)", line):
            listed.append(f"- `{found[1]}`: {found[2]}")
        elif line.startswith("     ") and not after:
            listed[-1] += " " + line.strip()
        else:
            after.append(line)
    return "\n".join([body, "", *listed, *after])


def first_paragraph(docstring: str | None) -> str:
    """Return what a docstring says first."""
    return inspect.cleandoc(docstring or "").split("\n\n")[0]
