"""The public functions of `twin` and `runtime`, and what they return."""

from __future__ import annotations

import ast
import dataclasses
import inspect
import textwrap
from collections.abc import Iterator
from typing import Any

from tools.reference.markdown import code, prose, table

SECTIONS = {
    "twin": ("twin.api", ["load_job", "simulate", "settle", "search", "validate", "compare"]),
    "runtime": ("runtime.api", ["train", "record"]),
}
RESULTS = {
    "twin": [
        "twin.api.Prediction",
        "twin.engine.report.Report",
        "twin.cost.memory.MemoryUse",
        "twin.engine.interval.Interval",
        "twin.search.search.Search",
        "twin.search.search.RankedCandidate",
        "twin.search.search.Figures",
        "twin.validate.validate.PublishedValidation",
        "twin.validate.published.Comparison",
        "twin.validate.groups.Validation",
        "twin.validate.groups.Group",
        "twin.validate.groups.IterationGroup",
        "twin.compare.compare.Comparison",
        "twin.compare.compare.Term",
        "twin.description.problems.DescriptionError",
    ],
    "runtime": ["runtime.api.Training", "twin.schedule.recording.Recording"],
}
EXTENDING = [
    "twin.strategies.register",
    "twin.strategies.registered",
    "twin.strategies.Strategy",
    "twin.cost.algorithms.register",
    "twin.cost.algorithms.unregister",
    "twin.cost.collective_options.Option",
    "twin.schedule.emit.Emitter",
    "twin.schedule.communicator.Communicator",
    "twin.schedule.communicator.Role",
]


def api() -> str:
    """Write functions, results, and what one adds to Fourfold with."""
    parts = []
    for package, (module, functions) in SECTIONS.items():
        parts.append(f"## {package}\n")
        parts += [entry(f"{module}.{name}", shown=name) for name in functions]
        parts.append(f"## What {package} returns\n")
        parts += [entry(name) for name in RESULTS[package]]
    return "\n".join([*parts, "## To add to Fourfold\n", *(entry(name) for name in EXTENDING)])


def found(name: str) -> Any:
    """Import what a dotted name says."""
    module, _, attribute = name.rpartition(".")
    return getattr(__import__(module, fromlist=[attribute]), attribute)


def entry(name: str, shown: str = "") -> str:
    """Write one function or class."""
    of = found(name)
    if not inspect.isclass(of):
        return "\n".join(
            [f"### {shown or name}\n", f"```python\n{signature(of, of.__name__)}\n```\n", prose(of.__doc__), ""]
        )
    rows = [[code(field), kind, text] for field, kind, text in attributes(of)]
    parts = [f"### {of.__name__}\n", f"`{name}`\n", prose(of.__doc__) if of.__doc__ else "", ""]
    parts += [table(["attribute", "type", "meaning"], rows)] if rows else []
    for method, function in methods(of):
        parts += [f"```python\n{signature(function, method)}\n```\n", prose(function.__doc__), ""]
    return "\n".join(parts)


def signature(function: Any, name: str) -> str:
    """Write a signature; on several lines where it is long."""
    described = inspect.signature(function)
    found = [str(p).replace("<function _silent>", "...") for p in described.parameters.values()]
    for number, parameter in enumerate(described.parameters.values()):
        if parameter.kind is parameter.KEYWORD_ONLY:
            found.insert(number, "*")
            break
    arguments = [clean(part) for part in found]
    returns = (
        f" -> {clean(str(described.return_annotation))}" if described.return_annotation is not described.empty else ""
    )
    line = f"{name}({', '.join(arguments)}){returns}"
    if len(line) <= 80:
        return line
    return f"{name}(\n" + "".join(f"    {part},\n" for part in arguments) + f"){returns}"


def clean(text: str) -> str:
    """Take the quotes of postponed annotations away, and addresses in memory."""
    head, sign, default = text.partition(" = ")
    if default.startswith("<"):
        default = "..."
    return head.replace("'", "") + sign + default


def attributes(of: type) -> Iterator[tuple[str, str, str]]:
    """Yield the fields and properties of a class: name, type, meaning."""
    notes = docstrings(of)
    if dataclasses.is_dataclass(of):
        for field in dataclasses.fields(of):
            yield field.name, code(str(field.type)), notes.get(field.name, "")
    for name, member in vars(of).items():
        function = getattr(member, "fget", None) or getattr(member, "func", None)
        if function is not None and not name.startswith("_"):
            returned = str(inspect.signature(function).return_annotation).strip("'")
            yield name, code(returned), prose(function.__doc__)


def methods(of: type) -> Iterator[tuple[str, Any]]:
    """Yield the public methods that a class defines itself."""
    for name, member in vars(of).items():
        function = getattr(member, "__func__", member)
        if inspect.isfunction(function) and not name.startswith("_"):
            yield name, function


def docstrings(of: type) -> dict[str, str]:
    """Read the texts that stand below a class's fields."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(of))).body
    assert isinstance(tree, ast.ClassDef)
    found = {}
    for before, after in zip(tree.body, tree.body[1:], strict=False):
        text = after.value.value if isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant) else None
        if isinstance(before, ast.AnnAssign) and isinstance(before.target, ast.Name) and isinstance(text, str):
            found[before.target.id] = text
    return found
