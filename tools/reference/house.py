"""The picture of the house: rooms as boxes on floors, arrows downwards, drawn from the code's own imports.

A room imports from rooms below it only, so that its floor is the longest way down. An import that another way down
implies has no arrow of its own.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping
from pathlib import Path
from xml.sax.saxutils import escape

from tools.reference.markdown import cell, code, table

ROOT = Path(__file__).parents[2]
LEFT_OUT = {"__init__", "__main__", "rooms"}
OUTSIDE = ("runtime", "dashboards")
"""Packages that use the twin, drawn above it."""
WIDTH, HEIGHT, GAP, FLOOR, MARGIN = 104, 34, 56, 74, 12
Graph = Mapping[str, frozenset[str]]
STYLE = """
.house rect { fill: var(--color-background-secondary, #f8f9fb); stroke: var(--color-foreground-muted, #6b6f76); }
.house .outside rect { fill: none; stroke-dasharray: 5 4; }
.house text { fill: var(--color-foreground-primary, #111); font: 14px sans-serif; text-anchor: middle; }
.house path { fill: none; stroke: var(--color-foreground-muted, #6b6f76); stroke-width: 1.2; marker-end: url(#tip); }
.house marker path { fill: var(--color-foreground-muted, #6b6f76); stroke: none; marker-end: none; }
"""


def page() -> str:
    """Write what each room is, from its own docstring, and what it imports."""
    parts = []
    for package in ("twin", "runtime", "dashboards"):
        graph = rooms(package)
        rows = [[code(room), sentence(package, room), ", ".join(sorted(graph[room]))] for room in ordered(graph)]
        parts += [f"## {package}\n", table(["room", "what it is", "imports"], rows)]
    return "\n".join(parts)


def picture() -> str:
    """Draw the twin's rooms, and above them what uses it."""
    graph = dict(rooms("twin"))
    for package in OUTSIDE:
        used = {room for path in sources(package) for room in rooms_named(path, "twin")}
        graph[package] = frozenset(used & set(graph))
    return drawn(reduced(graph))


def sources(package: str) -> list[Path]:
    """Return all modules of a package."""
    return sorted((ROOT / package).rglob("*.py"))


def rooms(package: str) -> Graph:
    """Return which room of a package imports which."""
    found: dict[str, set[str]] = {}
    for path in sources(package):
        room = path.relative_to(ROOT / package).with_suffix("").parts[0]
        if room not in LEFT_OUT:
            found.setdefault(room, set()).update(rooms_named(path, package))
    return {room: frozenset(used & set(found) - {room}) for room, used in found.items()}


def rooms_named(path: Path, package: str) -> set[str]:
    """Return the rooms of a package that a module names in its imports."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return {parts[1] for name in names if (parts := name.split("."))[0] == package and len(parts) > 1}


def below(graph: Graph, room: str, seen: frozenset[str] = frozenset()) -> set[str]:
    """Return all rooms that can be reached from one."""
    found: set[str] = set()
    for one in graph[room] - seen:
        found |= {one, *below(graph, one, seen | {room})}
    return found


def reduced(graph: Graph) -> Graph:
    """Leave out arrows that a longer way implies."""
    implied = {room: set().union(*(below(graph, one) for one in used)) for room, used in graph.items()}
    return {room: frozenset(used - implied[room]) for room, used in graph.items()}


def floor(graph: Graph, room: str, seen: frozenset[str] = frozenset()) -> int:
    """Return how many floors are below a room."""
    return max((1 + floor(graph, one, seen | {room}) for one in graph[room] - seen), default=0)


def ordered(graph: Graph) -> list[str]:
    """Return the rooms from the ground up."""
    return sorted(graph, key=lambda room: (floor(graph, room), room))


def levels(graph: Graph) -> dict[str, int]:
    """Return a floor for every room: as high as those that import it allow; what stands beside as low as it can."""
    found: dict[str, int] = {}
    for room in reversed(ordered(graph)):
        above = [found[one] for one in graph if room in graph[one] and one not in OUTSIDE]
        found[room] = min(above) - 1 if above else floor(graph, room)
    for package in set(OUTSIDE) & set(graph):
        found[package] = 1 + max(found[room] for room in graph[package])
    lowest = min(found.values())
    return {room: level - lowest for room, level in found.items()}


def places(graph: Graph) -> dict[str, tuple[float, float]]:
    """Return the upper left corner of every box: over the middle of what it imports; what is beside at the right."""
    level = levels(graph)
    floors: dict[int, list[str]] = {}
    for room in graph:
        floors.setdefault(level[room], []).append(room)
    middle = max(sum(room not in OUTSIDE for room in row) for row in floors.values()) * (WIDTH + GAP) / 2
    at: dict[str, tuple[float, float]] = {}

    def over(room: str) -> float:
        return sum(at[one][0] for one in graph[room]) / max(1, len(graph[room]))

    for number in sorted(floors):
        row = sorted((room for room in floors[number] if room not in OUTSIDE), key=lambda room: (over(room), room))
        left = middle - len(row) * (WIDTH + GAP) / 2
        beside = [room for room in floors[number] if room in OUTSIDE]
        y = (max(floors) - number) * FLOOR
        at.update({room: (left + place * (WIDTH + GAP), y) for place, room in enumerate(row)})
        at.update({room: (2 * middle + place * (WIDTH + GAP), y) for place, room in enumerate(beside)})
    return at


def drawn(graph: Graph) -> str:
    """Draw boxes and arrows as SVG that takes its colours from the page."""
    at = places(graph)
    width = max(x for x, _ in at.values()) + WIDTH + 2 * MARGIN
    height = max(y for _, y in at.values()) + HEIGHT + 2 * MARGIN
    shapes = []
    for room, used in graph.items():
        for one in sorted(used):
            (x, y), (to_x, to_y) = at[room], at[one]
            start, end = (x + WIDTH / 2, y + HEIGHT), (to_x + WIDTH / 2, to_y - 4)
            bend = (end[1] - start[1]) / 2
            curve = f"{start[0]:g} {start[1] + bend:g} {end[0]:g} {end[1] - bend:g} {end[0]:g} {end[1]:g}"
            shapes.append(f'<path d="M {start[0]:g} {start[1]:g} C {curve}"/>')
    for room, (x, y) in at.items():
        kind = ' class="outside"' if room in OUTSIDE else ""
        note = f"<title>{escape(sentence('twin' if room not in OUTSIDE else '', room))}</title>"
        box = f'<rect x="{x:g}" y="{y:g}" width="{WIDTH}" height="{HEIGHT}" rx="5"/>'
        label = f'<text x="{x + WIDTH / 2:g}" y="{y + HEIGHT / 2 + 5:g}">{escape(room)}</text>'
        shapes.append(f"<g{kind}>{note}{box}{label}</g>")
    tip = '<marker id="tip" viewBox="0 0 8 8" refX="6" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
    head = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="{-MARGIN} {-MARGIN} {width:g} {height:g}" width="{width:g}" '
    )
    described = 'role="img" aria-label="Rooms of the twin on floors; arrows point from a room to those it imports">'
    defined = f'<style>{STYLE}</style><defs>{tip}<path d="M0 0 L8 4 L0 8 z"/></marker></defs>'
    return f"{head}{described}{defined}{''.join(shapes)}</svg>"


def sentence(package: str, room: str) -> str:
    """Return the first sentence of a room's docstring."""
    place = ROOT / package / room
    path = place / "__init__.py" if place.is_dir() else place.with_suffix(".py")
    text = ast.get_docstring(ast.parse(path.read_text(encoding="utf-8"))) or ""
    return cell(text.split("\n\n")[0].split("; from")[0])
