"""YAML without surprises.

* No duplicate keys, no anchors, aliases and tags, keys are words, files of moderate size and depth.
* Plain scalars as in YAML 1.2: `1e9` is a number; `010`, `1:30`, `on` and `no` are words.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import yaml

from twin.description.problems import DescriptionError, Problem, fail, shorten

MAX_BYTES = 1 << 20
MAX_DEPTH = 40
HALF = re.compile("[\ud800-\udfff]")
"""Escapes can make what no file can hold."""


class _StrictLoader(yaml.SafeLoader):
    """A safe loader with its own scalars and no aliases."""

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        if self.check_event(yaml.events.AliasEvent):
            event = self.peek_event()  # type: ignore[no-untyped-call]
            raise yaml.constructor.ConstructorError(
                None, None, "anchors and aliases are not used here; write the value out", event.start_mark
            )
        event = self.peek_event()  # type: ignore[no-untyped-call]
        if tag := getattr(event, "tag", None):
            said = shorten(tag.replace("tag:yaml.org,2002:", "!!"))
            raise yaml.constructor.ConstructorError(
                None, None, f"tags such as {said} are not used here", event.start_mark
            )
        if isinstance(text := getattr(event, "value", None), str) and HALF.search(text):
            raise yaml.constructor.ConstructorError(
                None, None, "half a character (a surrogate); write the character", event.start_mark
            )
        return super().compose_node(parent, index)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        seen = set()
        for key_node, _ in node.value:
            if not isinstance(key_node, yaml.ScalarNode):
                raise yaml.constructor.ConstructorError(
                    None, None, "a key must be a word, not a list or mapping", key_node.start_mark
                )
            key = key_node.value
            if key in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"key {key!r} is given twice; keep one", key_node.start_mark
                )
            seen.add(key)
        return super().construct_mapping(node, deep)


_SCALARS = {
    "bool": (r"true|True|false|False", "tTfF"),
    "int": (r"[-+]?(?:0|[1-9][0-9_]*)", "-+0123456789"),
    "float": (
        r"[-+]?(?:(?:0|[1-9][0-9_]*)?\.[0-9]*(?:[eE][-+]?[0-9]+)?|(?:0|[1-9][0-9_]*)[eE][-+]?[0-9]+|\.inf)|\.nan",
        "-+0123456789.",
    ),
    "null": (r"~|null|", ["~", "n", ""]),
}
_StrictLoader.yaml_implicit_resolvers = {}
for _tag, (_pattern, _first) in _SCALARS.items():
    _StrictLoader.add_implicit_resolver(f"tag:yaml.org,2002:{_tag}", re.compile(f"^(?:{_pattern})$"), list(_first))


def parse_yaml(text: str, origin: str) -> dict[str, Any]:
    """Parse YAML text whose top level must be a mapping with text keys."""
    try:
        data = yaml.load(text, _StrictLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        what = getattr(error, "problem", None) or str(error).splitlines()[0]
        if "'\\t'" in what:
            what += "; indent with spaces, not tabs"
        raise DescriptionError([Problem(where, f"not valid YAML: {what}")], origin) from None
    except RecursionError:
        raise DescriptionError([Problem("", "nested too deeply")], origin) from None
    except (ValueError, OverflowError) as error:  # dates, numbers and escapes that Python cannot hold
        raise DescriptionError([Problem("", f"not valid YAML: {error}")], origin) from None
    if data is None:
        raise DescriptionError(
            [Problem("", "the file is empty, or has comments alone; begin with one of those in examples")], origin
        )
    if not isinstance(data, dict):
        raise DescriptionError([Problem("", f"expected a mapping of keys, found {shorten(data)}")], origin)
    if _depth(data) > MAX_DEPTH:
        raise DescriptionError([Problem("", "nested too deeply")], origin)
    if odd := [k for k in data if not isinstance(k, str)]:
        raise DescriptionError([Problem(str(k), "keys must be text") for k in odd], origin)
    return data


def _depth(value: Any) -> int:
    if isinstance(value, dict):
        return 1 + max(map(_depth, value.values()), default=0)
    if isinstance(value, list):
        return 1 + max(map(_depth, value), default=0)
    return 0


class _PackagedLoader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]  # PyYAML may lack libyaml
    """The same scalars, read by libyaml in a sixth of the time; its complaints are less clear."""


_PackagedLoader.yaml_implicit_resolvers = _StrictLoader.yaml_implicit_resolvers


def read_packaged_yaml(path: Path) -> dict[str, Any]:
    """Read a file that comes with Fourfold, which a test holds against `read_yaml`."""
    found: dict[str, Any] = yaml.load(path.read_text(encoding="utf-8"), _PackagedLoader)
    return found


def read_yaml(path: Path) -> dict[str, Any]:
    """Read one YAML file of moderate size."""
    try:
        if not path.is_file():
            raise fail(str(path), "no such file" if not path.exists() else "not a file")
        if path.stat().st_size > MAX_BYTES:
            raise fail(str(path), f"larger than {MAX_BYTES >> 20} MiB; not a description file")
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise fail(str(path), "not text in UTF-8") from None
    except OSError as error:
        raise fail(str(path), f"cannot be read: {error.strerror}") from None
    return parse_yaml(text, str(path))


def parse_value(text: str, override: str) -> Any:
    """Parse the value of a `--set KEY=VALUE`."""
    try:
        return yaml.load(text, _StrictLoader)
    except (yaml.YAMLError, ValueError, RecursionError):
        raise fail("--set", "the value is not valid YAML", override) from None
