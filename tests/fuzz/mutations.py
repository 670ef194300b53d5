"""Documents that are nearly right: a valid one, changed in a few places, written as text, and the text damaged."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Callable
from typing import Any

import yaml
from hypothesis import strategies as st

NUMBERS = [
    0,
    -1,
    1,
    2,
    3,
    7,
    63,
    64,
    65,
    1000,
    2**31 - 1,
    2**31,
    2**53,
    2**63 - 1,
    2**63,
    2**64,
    10**9,
    10**9 + 1,
    10**18,
    10**30,
    10**400,
    -(2**63),
    0.0,
    -0.0,
    0.5,
    1e-320,
    1e-30,
    1e-9,
    1.5,
    1e30,
    1e300,
    1e308,
    -1e308,
    math.inf,
    -math.inf,
    math.nan,
]
WORDS = [
    "",
    " ",
    "auto",
    "null",
    "~",
    "true",
    "no",
    "1e999",
    "-1 s",
    "0 GB/s",
    "1e308 GB/s",
    "1e-320 GB",
    "5 parsecs",
    "0x10",
    "1_000",
    "010",
    "1:30",
    "=",
    "<<",
    "*",
    "&a",
    "!!python/object/apply:os.system [ls]",
    "\0",
    "\ud800",
    "\u202e",
    "é",
    "e\u0301",
    "😀",
    "a\nb",
    "\x1b[31m",
    "a.b",
    "..",
    "../../../etc/passwd",
    "/etc/passwd",
    "/dev/zero",
    "/dev/stdin",
    "/proc/self/mem",
    ".",
    "/",
    "frontier",
    "laptop",
    "gpt2",
    "x" * 300,
    "y" * 100_000,
    "{x}",
    "%s%n",
    "2026-11-20",
    "[",
    "{",
    "step-00000001",
    "file:///etc/passwd",
    "__class__",
    "constructor",
    "frontier.yaml",
    "./none.yaml",
    "a/" * 3000,
    "1" * 5000,
    "rank-00000.safetensors",
]


def nested(depth: int, how: str) -> Any:
    """Lists or mappings so deep."""
    value: Any = 1
    for _ in range(depth):
        value = [value] if how == "list" else {"a": value}
    return value


NASTY: st.SearchStrategy[Any] = st.one_of(
    st.sampled_from(NUMBERS),
    st.sampled_from(WORDS),
    st.text(max_size=20),
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.sampled_from([[], {}, [[]], [None], {"": 1}, {"value": 1}, [0] * 1000, ["a"] * 50]),
    st.builds(nested, st.sampled_from([1, 30, 41, 200]), st.sampled_from(["list", "mapping"])),
    st.dictionaries(st.text(max_size=5), st.integers(), max_size=4),
)
NASTY_KEYS = st.one_of(
    st.text(max_size=10),
    st.sampled_from(
        [
            "",
            "extends",
            "preset",
            "value",
            "kind",
            "source",
            "name",
            "__proto__",
            "a.b",
            "\0",
            "0",
            "x" * 5000,
            "é",
            "<<",
        ]
    ),
)


def places(node: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Paths of everything inside a document."""
    found = [path] if path else []
    if isinstance(node, dict):
        for key, value in node.items():
            found += places(value, (*path, key))
    elif isinstance(node, list):
        for number, value in enumerate(node):
            found += places(value, (*path, number))
    return found


def get(node: Any, path: tuple[Any, ...]) -> Any:
    """What stands at a path."""
    for key in path:
        node = node[key]
    return node


@st.composite
def mutated(draw: st.DrawFn, base: Any, most: int = 3) -> Any:
    """Change a document of mappings and lists in up to so many places; keys of it hold text."""
    document = copy.deepcopy(base)
    for _ in range(draw(st.integers(1, most))):
        known = places(document)
        if not known:
            return draw(NASTY)
        path = draw(st.sampled_from(known))
        above, key = get(document, path[:-1]), path[-1]
        how = draw(
            st.sampled_from(["value", "value", "value", "scale", "drop", "rename", "add", "swap", "wrap", "repeat"])
        )
        if how == "value":
            above[key] = copy.deepcopy(draw(NASTY))
        elif how == "scale" and isinstance(above[key], int | float):
            above[key] = above[key] * draw(st.sampled_from([-1, 0, 2, 3, 1000, 10**12, 0.5, 1e-12]))
        elif how == "drop":
            del above[key]
        elif how == "rename" and isinstance(above, dict):
            above[draw(NASTY_KEYS)] = above.pop(key)
        elif how == "add" and isinstance(above, dict):
            above[draw(NASTY_KEYS)] = copy.deepcopy(draw(NASTY))
        elif how == "swap":
            above[key] = copy.deepcopy(get(document, draw(st.sampled_from(known))))
        elif how == "wrap":
            above[key] = draw(st.sampled_from([[above[key]], {"value": above[key]}, [above[key]] * 3]))
        elif how == "repeat" and isinstance(above, list):
            above.insert(draw(st.integers(0, len(above))), copy.deepcopy(above[key]))
    return document


def as_json(document: Any) -> bytes:
    """Write a document as JSON, with NaN and infinities, lone surrogates and all."""
    return json.dumps(document, default=str).encode(errors="surrogatepass")


def as_yaml(document: Any) -> bytes:
    """Write a document as YAML; as JSON, which is YAML too, where it cannot be."""
    try:
        return yaml.safe_dump(document, allow_unicode=True).encode(errors="surrogatepass")
    except (yaml.YAMLError, RecursionError, ValueError):
        return as_json(document)


YAML_TRICKS = [
    b"a: &a [1]\nb: *a\n",
    b"<<: {ranks: 1}\n",
    b"--- \nx: 1\n",
    b"%YAML 9.9\n---\n",
    b"\xef\xbb\xbf",
    b"\t",
    b"ranks: 1\nranks: 2\n",
    b"!!python/object/apply:os.system ['touch /tmp/owned']\n",
    b"? [a]\n: 1\n",
    b"a: &x {b: *x}\n",
    b"\x00",
    b"\r\n",
    b"x: !!binary aGk=\n",
    b"x: !!set {a}\n",
    b"x: 2026-11-20\n",
    b"l1: &l1 [x,x]\nl2: &l2 [*l1,*l1]\nl3: &l3 [*l2,*l2]\n",
    b"x: |\n  text\n",
    b"x: >-\n",
    b"- 1\n",
    b"...\n",
    b"x: 0o17\n",
    b"x: 1e\n",
    b"[" * 2000,
    b"{a: " * 500,
    b"x: " + b"9" * 5000 + b"\n",
    b"!<tag:a> x\n",
    b"@",
    b"`",
    b"x: .inf\n",
    b"!!int x\n",
    b"x: !!float '.'\n",
    b"x: !!int ''\n",
    b"x: !!timestamp '9'\n",
    b"x: !!bool y\n",
    b"x: !!int '0b2'\n",
    b"x: !!null 5\n",
    b"x: !!float ''\n",
    b"x: !!omap [a]\n",
    b"x: !!pairs 1\n",
]


@st.composite
def damaged(draw: st.DrawFn, content: bytes) -> bytes:
    """Damage bytes: cut, flip, overwrite, insert, repeat."""
    data = bytearray(content)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, max(0, len(data) - 1)))
        how = draw(st.sampled_from(["cut", "flip", "flip", "set", "insert", "trick", "repeat", "drop"]))
        if how == "cut":
            del data[at:]
        elif how == "flip" and data:
            data[at] ^= 1 << draw(st.integers(0, 7))
        elif how == "set" and data:
            data[at : at + 8] = draw(st.binary(min_size=8, max_size=8))
        elif how == "insert":
            data[at:at] = draw(st.binary(max_size=12))
        elif how == "trick":
            lines = [0, *(n + 1 for n, byte in enumerate(data) if byte == 10)]
            place = draw(st.sampled_from(lines[:200]))
            data[place:place] = draw(st.sampled_from(YAML_TRICKS))
        elif how == "repeat":
            data[at:at] = data[at : at + draw(st.integers(1, 64))]
        elif how == "drop":
            del data[at : at + draw(st.integers(1, 64))]
    return bytes(data)


def texts(base: Any, write: Callable[[Any], bytes]) -> st.SearchStrategy[bytes]:
    """Texts made of a document: changed in its structure, damaged in its bytes, both, or no text at all."""
    structured = mutated(base).map(write)
    return st.one_of(
        structured, structured, structured, damaged(write(base)), structured.flatmap(damaged), st.binary(max_size=200)
    )
