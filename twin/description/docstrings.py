"""What the docstrings below the fields of a class say: the texts of published schemas and of the reference.

Pydantic can read them itself, but does so whenever a class is made: 60 ms of every command.
"""

from __future__ import annotations

import ast
import inspect
from functools import cache
from textwrap import dedent


@cache
def field_texts(model: type) -> dict[str, str]:
    """Return the text below each field of a class, by the field's name; inherited where the field is not made anew."""
    texts: dict[str, str] = {}
    for part in reversed(model.__mro__):
        if part.__module__.partition(".")[0] not in ("builtins", "pydantic"):
            anew = inspect.get_annotations(part)
            texts = {name: text for name, text in texts.items() if name not in anew} | _own_texts(part)
    return texts


def _own_texts(model: type) -> dict[str, str]:
    try:
        source = inspect.getsource(model)
    except (OSError, TypeError):  # of a class that no file holds
        return {}
    body = ast.parse(dedent(source)).body[0]
    assert isinstance(body, ast.ClassDef)
    return {
        field.target.id: inspect.cleandoc(text.value.value)
        for field, text in zip(body.body, body.body[1:], strict=False)
        if isinstance(field, ast.AnnAssign)
        and isinstance(field.target, ast.Name)
        and isinstance(text, ast.Expr)
        and isinstance(text.value, ast.Constant)
        and isinstance(text.value.value, str)
    }
