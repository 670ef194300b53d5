"""Rules of the house that no linter checks: direction of imports, size of modules, docstrings."""

from __future__ import annotations

import ast
import re
import tomllib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

import twin

ROOT = Path(twin.__file__).parents[1]
PACKAGES = ["twin", "topologies", "runtime", "dashboards"]
MAX_LINES = 350
MAX_FUNCTION_LINES = 60
"""Of a function's body: what it is called with and what its docstring says are not counted."""

BELOW_QUESTIONS = {"description", "schedule", "strategies", "cost", "trace", "pages", "engine"}
# Who may import whom inside the twin, as the design draws it: downwards only. `show` is how the command line
# looks; the version number at the top of the package is everybody's.
LAYERS: dict[str, set[str]] = {
    "rooms": set(),
    "description": set(),
    "trace": {"description"},
    "pages": {"description", "trace"},
    "schedule": {"description"},
    "strategies": {"description", "schedule"},
    "cost": {"description", "schedule", "strategies"},
    "engine": {"description", "schedule", "strategies", "cost", "trace", "pages"},
    "search": BELOW_QUESTIONS,
    "calibrate": BELOW_QUESTIONS,
    "compare": BELOW_QUESTIONS,
    "goodput": BELOW_QUESTIONS,
    "diagnose": BELOW_QUESTIONS | {"compare"},
    "validate": BELOW_QUESTIONS | {"search", "calibrate"},
    "studies": BELOW_QUESTIONS | {"search", "validate"},
}
LAYERS["show"] = {*LAYERS}
LAYERS["api"] = BELOW_QUESTIONS | {"search", "validate", "compare", "diagnose"}
LAYERS["commands"] = LAYERS["cli"] = {*LAYERS, "commands"}
LAYERS["__main__"] = {"cli"}
LAYERS["__init__"] = {"api", "rooms"}

# The rooms of the runtime, from the ground up.
LOW = {"parallel", "launch", "data", "weights", "step"}
ROOMS: dict[str, set[str]] = {
    "parallel": set(),
    "launch": {"parallel"},
    "data": {"parallel"},
    "weights": {"parallel"},
    "step": {"parallel", "data", "weights"},
    "model": {"parallel", "weights", "step"},
    # PyTorch's fully_shard by the named collectives, for every strategy that divides weights with it
    "sharded": {"parallel", "weights", "model", "step"},
    "strategies": {"parallel", "weights", "model", "step", "sharded"},
    "auto": {"parallel", "weights", "strategies"},
    "records": LOW,
    "tracing": LOW,
    "checkpoint": LOW,
    "huggingface": LOW | {"records", "checkpoint"},
    "watch": LOW | {"records", "tracing"},
    "plan": LOW | {"records", "tracing", "watch", "checkpoint", "huggingface"},
    "slurm": {"launch", "plan"},
    "survive": LOW | {"records", "checkpoint", "plan"},
    "calibration": LOW | {"model", "strategies", "tracing", "recorder"},
    "recorder": LOW | {"strategies", "auto"},
    "smoke": LOW | {"model", "strategies"},
    "inference": LOW | {"strategies", "records", "checkpoint", "huggingface", "plan"},
    # trains many small models and asks each what it knows by heart; no run, so it needs nothing of `train`
    "memorize": LOW | {"strategies", "records", "checkpoint", "huggingface", "plan", "inference"},
    "train": LOW
    | {
        "model",
        "strategies",
        "records",
        "tracing",
        "checkpoint",
        "huggingface",
        "watch",
        "plan",
        "survive",
        "inference",
    },
}
ROOMS["commands"] = {*ROOMS}
ROOMS["api"] = LOW | {"records", "recorder"}
ROOMS["__init__"] = {*ROOMS}


def sources(*packages: str) -> list[Path]:
    return sorted(p for package in packages for p in (ROOT / package).rglob("*.py"))


def name_of(path: Path) -> str:
    return str(path.relative_to(ROOT))


def tree_of(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


@cache
def imported(path: Path) -> list[str]:
    """Every module named in an import statement, wherever it stands."""
    package, found = path.relative_to(ROOT).with_suffix("").parts, []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            above = ".".join(package[: len(package) - node.level]) + "." if node.level else ""
            base = (above + (node.module or "")).rstrip(".")
            found += [f"{base}.{alias.name}" for alias in node.names]
    return found


def layer(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").parts[1]


@cache
def unit(module: str, package: str = "twin") -> str | None:
    """The room of a package that an imported name belongs to."""
    parts = module.split(".")
    if parts[0] != package or len(parts) < 2:
        return None
    there = ROOT / package / parts[1]
    return parts[1] if there.is_dir() or there.with_suffix(".py").is_file() else None


@pytest.mark.parametrize(("package", "rooms"), [("twin", LAYERS), ("runtime", ROOMS)], ids=["twin", "runtime"])
def test_every_part_has_its_place(package, rooms):
    assert {layer(p) for p in sources(package)} == set(rooms)


@pytest.mark.parametrize(
    ("package", "rooms", "room"),
    [*(("twin", LAYERS, room) for room in LAYERS), *(("runtime", ROOMS, room) for room in ROOMS)],
    ids=[*(f"twin.{room}" for room in LAYERS), *(f"runtime.{room}" for room in ROOMS)],
)
def test_dependencies_point_one_way(package, rooms, room):
    bad = [
        f"{name_of(path)} imports {module}"
        for path in sources(package)
        if layer(path) == room
        for module in imported(path)
        if unit(module, package) not in {None, room, *rooms[room]}
    ]
    assert not bad, bad


@pytest.mark.parametrize("rooms", [LAYERS, ROOMS], ids=["twin", "runtime"])
def test_the_drawing_itself_has_no_circle(rooms):
    left = {room: below - {room, "__init__", "commands"} for room, below in rooms.items()}
    while left:
        ground = [room for room, below in left.items() if not below & set(left)]
        assert ground, f"these rooms stand on each other: {sorted(left)}"
        left = {room: below for room, below in left.items() if room not in ground}


def test_no_modules_import_each_other_in_a_circle():
    """Not even through others, or for types alone; the tops of packages, whose version is everybody's, load nothing."""
    files = {module_of(path): path for path in sources(*PACKAGES) if module_of(path) not in PACKAGES}
    graph = {name: {m for m in map(known(files), imported(path)) if m and m != name} for name, path in files.items()}
    left = dict(graph)
    while ground := [name for name, below in left.items() if not below & set(left)]:
        left = {name: below for name, below in left.items() if name not in ground}
    assert not left, f"circles among or below {sorted(left)}"


def module_of(path: Path) -> str:
    return ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")


def known(files: dict[str, Path]) -> Callable[[str], str | None]:
    def of(module: str) -> str | None:
        return module if module in files else above if (above := module.rpartition(".")[0]) in files else None

    return of


STRATEGY_OWN = {"z_gather", "z_scatter"}


def test_only_a_strategy_knows_how_it_cuts():
    """Nobody else imports a strategy's folder, or names the streams of one; the default's name stands once.

    What remains is the runtime's own measuring and `auto_parallelize`, which are 4D themselves.
    """
    themselves = ("twin/strategies/", "runtime/strategies/", "runtime/auto/", "runtime/calibration/")
    bad = []
    for path in sources("twin", "runtime", "dashboards"):
        if name_of(path).startswith(themselves):
            continue
        folders = [m for m in imported(path) if m.startswith(("twin.strategies.four_d", "twin.strategies.ddp"))]
        streams = {n.value for n in ast.walk(tree_of(path)) if isinstance(n, ast.Constant)} & STRATEGY_OWN
        if (folders or streams) and name_of(path) not in ALLOWED:
            bad.append(f"{name_of(path)}: {folders or streams}")
    assert not bad, bad


ALLOWED = {"runtime/recorder/own.py": "records modules under auto_parallelize, on a 4D grid"}


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

    Measurements of ranks and links are no part of a step, and neither is what a Fabric program reduces by itself.
    """
    others = {"runtime/tracing/probe.py", "runtime/watch/window.py", "runtime/auto/fabric.py"}
    verbs = ("all_reduce", "all_gather_single", "all_gather_into_tensor", "reduce_scatter", "all_to_all")
    bad = [
        name_of(path)
        for path in sources("runtime")
        if name_of(path) not in {"runtime/parallel/collectives.py", *others}
        and any(f"dist.{verb}" in path.read_text(encoding="utf-8") for verb in verbs)
    ]
    assert not bad, bad


@pytest.mark.parametrize(
    ("package", "shared"),
    [
        ("runtime", {"description", "trace", "pages", "schedule", "strategies", "rooms"}),
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


def body_lines(function: Function) -> int:
    """Lines of a function without its signature and docstring."""
    body = function.body[1:] if ast.get_docstring(function) else function.body
    return (body[-1].end_lineno or 0) - body[0].lineno + 1 if body else 0


@pytest.mark.parametrize("package", PACKAGES)
def test_no_function_is_too_long(package):
    lengths = {
        f"{name_of(path)}:{node.name}": body_lines(node)
        for path in sources(package)
        for node in ast.walk(tree_of(path))
        if isinstance(node, Function)
    }
    assert {name: lines for name, lines in lengths.items() if lines > MAX_FUNCTION_LINES} == {}


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
