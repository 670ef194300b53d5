"""Keys that follow from others at each point: `batch.sequences: grid.data * batch.micro_sequences * accumulation`.

A space is often written in other factors than a job's keys: nodes, gradient accumulation, replicas that take what
tensor and pipeline ranks leave. Arithmetic on numbers, nothing else: names are varied keys, earlier formulas, and keys
of the base job.

* `/` is exact: where it leaves a remainder there is no such job, and the point says so.
* A varied name that is no job's key and that a formula names is a factor of the study alone.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from twin.description.problems import did_you_mean
from twin.strategies import named
from twin.strategies import names as strategies

MAX_LENGTH = 200
"""Characters of a formula."""
Number = int | float


@dataclass(frozen=True)
class Formula:
    """An expression in names of keys, read but not worked out."""

    text: str
    tree: ast.expr

    @property
    def names(self) -> tuple[str, ...]:
        """Keys that it names, in the order of the text."""
        return tuple(dict.fromkeys(_names(self.tree)))

    def value(self, known: Callable[[str], Any]) -> Number:
        """Work it out; raises ValueError where a name is no number or a division leaves a remainder.

        >>> read_formula("ranks / (grid.pipeline * 2)").value({"ranks": 96, "grid.pipeline": 8}.__getitem__)
        6
        """
        return _value(self.tree, known)


def read_formula(text: str) -> Formula:
    """Read a formula; raises ValueError for what is none.

    >>> read_formula("nodes * 8").names
    ('nodes',)
    """
    remedy = "expected numbers and names of keys with + - * / ( ), such as grid.data * 4"
    if len(text) > MAX_LENGTH:
        raise ValueError(f"is longer than {MAX_LENGTH} characters; {remedy}")
    try:
        tree = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        raise ValueError(f"cannot be read; {remedy}") from None
    if not _is_formula(tree):
        raise ValueError(f"cannot be read; {remedy}")
    return Formula(text, tree)


def own_factors(varied: tuple[str, ...], formulas: Mapping[str, str]) -> frozenset[str]:
    """Return the varied names that are factors of the study alone: formulas name them, and no job has them."""
    used = {name for text in formulas.values() for name in read_formula(text).names}
    return frozenset(key for key in varied if key in used and key.partition(".")[0] not in _job_keys())


def problems_of(varied: tuple[str, ...], formulas: Mapping[str, str]) -> list[str]:
    """Return what is wrong with the formulas of a study, as `key: reason`."""
    found = []
    ready: list[str] = []
    for key, text in formulas.items():
        if key in varied:
            found.append(f"formulas.{key}: is varied too; keep one")
        try:
            used = read_formula(text).names
        except ValueError as error:
            found.append(f"formulas.{key}: {error}")
            continue
        known = (*varied, *ready)
        found += [
            f"formulas.{key}: {name!r} neither varies nor is a job's key; {did_you_mean(name, known)}"
            for name in used
            if name not in known and name.partition(".")[0] not in _job_keys()
        ]
        later = [name for name in used if name in formulas and name not in ready]
        found += [f"formulas.{key}: {name} is worked out later; put it before" for name in later]
        ready.append(key)
    return found


def worked_out(
    formulas: Mapping[str, str], values: Mapping[str, Any], base: Mapping[str, Any]
) -> tuple[dict[str, Number], str]:
    """Return the values of the formulas at a point; and why one has none, empty if all have."""
    found: dict[str, Number] = {}

    def known(name: str) -> Any:
        if name in found:
            return found[name]
        return values[name] if name in values else _below(base, name)

    for key, text in formulas.items():
        try:
            found[key] = read_formula(text).value(known)
        except ValueError as error:
            return found, f"{key} = {text}: {error}"
    return found, ""


def _job_keys() -> frozenset[str]:
    """Return the keys of every strategy's jobs."""
    return frozenset(key for name in strategies() for key in named(name).options.model_fields)


def _below(raw: Any, name: str) -> Any:
    for part in name.split("."):
        raw = raw.get(part) if isinstance(raw, Mapping) else None
    return raw


def _is_formula(tree: ast.expr) -> bool:
    if isinstance(tree, ast.BinOp):
        return isinstance(tree.op, ast.Div | ast.Mult | ast.Add | ast.Sub) and all(
            _is_formula(side) for side in (tree.left, tree.right)
        )
    if isinstance(tree, ast.Constant):
        return type(tree.value) in {int, float}
    while isinstance(tree, ast.Attribute):
        tree = tree.value
    return isinstance(tree, ast.Name)


def _names(tree: ast.expr) -> list[str]:
    if isinstance(tree, ast.BinOp):
        return [*_names(tree.left), *_names(tree.right)]
    return [] if isinstance(tree, ast.Constant) else [ast.unparse(tree)]


def _value(tree: ast.expr, known: Callable[[str], Any]) -> Number:
    if isinstance(tree, ast.Constant):
        assert isinstance(tree.value, int | float)
        return tree.value
    if not isinstance(tree, ast.BinOp):
        name = ast.unparse(tree)
        found = known(name)
        if type(found) not in {int, float}:  # true is no number here
            raise ValueError(f"{name} is {'not given' if found is None else found!r}, and must be a number")
        number: Number = found
        return number
    left, right = _value(tree.left, known), _value(tree.right, known)
    if isinstance(tree.op, ast.Div):
        return _quotient(left, right)
    apply = {ast.Mult: operator.mul, ast.Add: operator.add, ast.Sub: operator.sub}[type(tree.op)]
    found = apply(left, right)
    assert isinstance(found, int | float)
    return found


def _quotient(left: Number, right: Number) -> Number:
    if right == 0:
        raise ValueError(f"{left} / {right} has no value")
    if isinstance(left, int) and isinstance(right, int):
        if left % right:
            raise ValueError(f"{right:,} does not divide {left:,}")
        return left // right
    return left / right
