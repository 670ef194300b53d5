"""Rules of the house that no linter checks: direction of imports, size of modules, docstrings."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

import twin

ROOT = Path(twin.__file__).parents[1]
PACKAGES = ["twin", "topologies", "runtime", "dashboards"]
MAX_LINES = 400

# Who may import whom inside the twin, as the design draws it. `show` is how the command line
# looks; the version number at the top of the package is everybody's.
BELOW = {"description", "schedule", "strategies", "cost", "engine", "trace"}
LAYERS = {
    "rooms": set(),
    "description": set(),
    "schedule": {"description"},
    "trace": {"description"},
    "strategies": {"description", "schedule"},
    "cost": {"description", "schedule", "strategies"},
    "engine": BELOW,
    "search": BELOW,
    "validate": {*BELOW, "search", "calibrate"},
    "calibrate": BELOW,
    "compare": BELOW,
    "goodput": BELOW,
    "diagnose": {*BELOW, "compare"},
    "studies": {*BELOW, "search", "validate"},
}
LAYERS["api"] = {*BELOW, "search", "validate", "compare"}
LAYERS["show"] = LAYERS["commands"] = {*LAYERS, "show"}
LAYERS["cli"] = {*LAYERS}
LAYERS["__main__"] = {"cli"}
LAYERS["__init__"] = {"api", "rooms"}


def sources(*packages: str) -> list[Path]:
    return sorted(p for package in packages for p in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def imported(path: Path) -> Iterator[str]:
    """Every module named in an import statement, wherever it stands."""
    package = path.relative_to(ROOT).with_suffix("").parts
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level]) + "." if node.level else ""
            base = (above + (node.module or "")).rstrip(".")
            yield from (f"{base}.{alias.name}" for alias in node.names)


def layer(path: Path) -> str:
    return path.relative_to(ROOT / "twin").with_suffix("").parts[0]


def unit(module: str) -> str | None:
    """The layer of the twin that an imported name belongs to."""
    parts = module.split(".")
    if parts[0] != "twin" or len(parts) < 2:
        return None
    there = ROOT / "twin" / parts[1]
    return parts[1] if there.is_dir() or there.with_suffix(".py").is_file() else None


def test_every_part_of_the_twin_has_its_place():
    assert {layer(p) for p in sources("twin")} <= set(LAYERS)


@pytest.mark.parametrize("part", sorted(LAYERS))
def test_dependencies_point_one_way(part):
    bad = [
        f"{name_of(path)} imports {module}"
        for path in sources("twin")
        if layer(path) == part
        for module in imported(path)
        if unit(module) not in {None, part, *LAYERS[part]}
    ]
    assert not bad, bad


def test_twin_imports_neither_runtime_nor_dashboards():
    bad = [
        f"{name_of(path)} imports {module}"
        for path in sources("twin", "topologies")
        for module in imported(path)
        if module.split(".")[0] in {"runtime", "dashboards", "torch", "dash", "pandas"}
    ]
    assert not bad, bad


def test_only_one_module_of_the_runtime_talks_to_other_ranks_about_tensors():
    """What is reduced, gathered or scattered over the grid goes through named, tagged verbs.

    Measurements of ranks and links are no part of a step.
    """
    measuring = {"runtime/tracing/probe.py", "runtime/watch/window.py"}
    verbs = ("all_reduce", "all_gather_single", "all_gather_into_tensor", "reduce_scatter", "all_to_all")
    bad = [
        name_of(path)
        for path in sources("runtime")
        if name_of(path) not in {"runtime/parallel/collectives.py", *measuring}
        and any(f"dist.{verb}" in path.read_text(encoding="utf-8") for verb in verbs)
    ]
    assert not bad, bad


@pytest.mark.parametrize(
    ("package", "shared"),
    [
        ("runtime", {"description", "trace", "schedule", "strategies", "rooms"}),
        ("dashboards", set(LAYERS) - {"cli", "commands", "show"}),
    ],
)
def test_runtime_and_dashboards_use_only_what_they_share_with_the_twin(package, shared):
    """The runtime: the job, the event table, the language in which it says what it does.

    Dashboards stand beside the command line: they ask all of the twin, but nothing of the terminal.
    """
    bad = [
        f"{name_of(path)} imports {module}"
        for path in sources(package)
        for module in imported(path)
        if unit(module) not in {None, *shared}
    ]
    assert not bad, bad


@pytest.mark.parametrize("package", PACKAGES)
def test_no_module_is_too_long(package):
    lengths = {name_of(p): len(p.read_text(encoding="utf-8").splitlines()) for p in sources(package)}
    assert {n: c for n, c in lengths.items() if c > MAX_LINES} == {}


def test_no_test_file_is_too_long():
    files = [p for p in (ROOT / "tests").rglob("*.py") if "benchmarks" not in p.parts]
    assert {name_of(p) for p in files if len(p.read_text().splitlines()) > MAX_LINES} == set()


Function = ast.FunctionDef | ast.AsyncFunctionDef


def public(body: list[ast.stmt], prefix: str = "") -> Iterator[tuple[str, Function | ast.ClassDef]]:
    """Public functions, classes, and methods of public classes."""
    for node in body:
        if isinstance(node, Function | ast.ClassDef) and not node.name.startswith("_"):
            yield prefix + node.name, node
            if isinstance(node, ast.ClassDef):
                yield from public(node.body, f"{prefix}{node.name}.")


def untyped(function: Function, *, method: bool) -> bool:
    given = function.args
    named = [*given.posonlyargs, *given.args, *given.kwonlyargs]
    bound = method and not any(isinstance(d, ast.Name) and d.id == "staticmethod" for d in function.decorator_list)
    if bound:
        named = named[1:]
    named += [a for a in (given.vararg, given.kwarg) if a]
    return function.returns is None or any(a.annotation is None for a in named)


@pytest.mark.parametrize("path", sources("twin", "runtime"), ids=name_of)
def test_public_names_have_docstrings_and_types(path):
    tree = tree_of(path)
    assert ast.get_docstring(tree), "the module has no docstring"
    for name, node in public(tree.body):
        if not (overrides_a_documented_method(name) or is_overload(node)):
            assert ast.get_docstring(node), f"{name} has no docstring"
        if isinstance(node, Function):
            assert not untyped(node, method="." in name), f"{name} lacks type hints"


def overrides_a_documented_method(name: str) -> bool:
    """Methods whose name and meaning a library's base class gives them."""
    return name.rsplit(".", 1)[-1] in {"compose_node", "construct_mapping", "forward", "backward"}


def is_overload(node: Function | ast.ClassDef) -> bool:
    """One of several signatures of a function that has its docstring below them."""
    return any(isinstance(d, ast.Name) and d.id == "overload" for d in node.decorator_list)


@pytest.mark.parametrize("path", sources("twin", "runtime"), ids=name_of)
def test_nothing_is_left_unfinished(path):
    """No note to oneself in code that ships."""
    text = path.read_text(encoding="utf-8")
    assert not [word for word in ("TODO", "FIXME", "XXX", "HACK") if word in text]


def test_no_number_of_a_machine_is_left_without_a_real_source():
    files = sorted((ROOT / "topologies").rglob("*.yaml"))
    bad = [name_of(p) for p in files if "TODO" in p.read_text(encoding="utf-8")]
    assert not bad, bad


def test_what_the_packages_are_installed_with_is_what_they_import():
    """A dependency that only a test imports belongs to `dev`."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    asked = [*project["dependencies"], *extras["runtime"]]
    called = {"pyyaml": "yaml"}
    text = "\n".join(path.read_text(encoding="utf-8") for path in sources(*PACKAGES))
    named = [re.split(r"[<>=\[]", one)[0] for one in asked]
    unused = [n for n in named if not re.search(rf"\b(import|from) {called.get(n, n)}\b|\"{n}\"", text)]
    assert unused == []
