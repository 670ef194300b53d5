"""Numbers about hardware that know where they come from.

* `Parameter`: a float in SI units.
* `Counted`: a whole number above 0.

Both compute as plain numbers; the result of arithmetic carries no source.
"""

from __future__ import annotations

from typing import Any, ClassVar, Literal, get_args

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from twin.description.units import parse_quantity, split_name

Kind = Literal["datasheet", "measured", "calibrated", "assumed"]
USER = "set by the user"
MAX_COUNTED = 10_000_000


class _Sourced:
    """A number with kind and source, as pydantic sees it: `{value, kind, source}`."""

    kind: Kind
    source: str
    _plain: ClassVar[type[float] | type[int]]
    _json_types: ClassVar[list[str]]

    @classmethod
    def __get_pydantic_core_schema__(cls, _source: Any, _handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.is_instance_schema(
            cls,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda n: {"value": cls._plain(n), "kind": n.kind, "source": n.source}
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, _s: CoreSchema, _h: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {
            "type": "object",
            "properties": {
                "value": {"type": cls._json_types},
                "kind": {"enum": list(get_args(Kind))},
                "source": {"type": "string"},
            },
            "required": ["value", "kind", "source"],
            "additionalProperties": False,
        }


class Parameter(_Sourced, float):
    """A hardware number in SI units, with its kind and its source."""

    _plain = float
    _json_types: ClassVar[list[str]] = ["number", "string"]

    def __new__(cls, value: float, kind: Kind = "assumed", source: str = USER) -> Parameter:
        """Make a parameter; `value` is in SI units."""
        parameter = super().__new__(cls, value)
        parameter.kind = kind
        parameter.source = source
        return parameter

    def __reduce__(self) -> tuple[type[Parameter], tuple[float, Kind, str]]:
        return Parameter, (float(self), self.kind, self.source)

    @classmethod
    def read(cls, raw: object, name: str) -> Parameter:
        """Read `{value, kind, source}`; the suffix of the field's `name` decides the units."""
        if isinstance(raw, Parameter):
            return raw
        if not isinstance(raw, dict):
            kinds = "|".join(get_args(Kind))
            raise ValueError(  # noqa: TRY004 - pydantic reports ValueErrors
                f"{raw!r}: a hardware number is written {{value: …, kind: {kinds}, source: …}}"
            )
        given, kind, source = _parts(raw)
        value = parse_quantity(given, split_name(name)[1])
        _check_range(name, value, given)
        return cls(value, kind, source)


class Counted(_Sourced, int):
    """A whole hardware number above 0, with its kind and its source: nodes, devices in a node."""

    _plain = int
    _json_types: ClassVar[list[str]] = ["integer"]

    def __new__(cls, value: int, kind: Kind = "assumed", source: str = USER) -> Counted:
        """Make a counted number."""
        counted = super().__new__(cls, value)
        counted.kind = kind
        counted.source = source
        return counted

    def __reduce__(self) -> tuple[type[Counted], tuple[int, Kind, str]]:
        return Counted, (int(self), self.kind, self.source)

    @classmethod
    def read(cls, raw: object) -> Counted:
        """Read `{value, kind, source}`; a bare number is taken as set by the user."""
        if isinstance(raw, Counted):
            return raw
        value: Any = raw
        kind: Kind = "assumed"
        source = USER
        if isinstance(raw, dict):
            value, kind, source = _parts(raw)
        if isinstance(value, bool) or not isinstance(value, int):
            raise ValueError(  # noqa: TRY004 - pydantic reports ValueErrors
                "Input should be a valid integer"
            )
        if not 0 < value <= MAX_COUNTED:
            limit = "greater than 0" if value <= 0 else f"at most {MAX_COUNTED}"
            raise ValueError(f"Input should be {limit}")
        return cls(value, kind, source)

    @classmethod
    def __get_pydantic_json_schema__(cls, s: CoreSchema, h: GetJsonSchemaHandler) -> JsonSchemaValue:
        described = super().__get_pydantic_json_schema__(s, h)
        return {"anyOf": [described, {"type": "integer", "minimum": 1}]}


def _parts(raw: dict[Any, Any]) -> tuple[Any, Kind, str]:
    """Take a described number apart: value, kind and source."""
    if unknown := set(raw) - {"value", "kind", "source"}:
        raise ValueError(f"unknown key {sorted(map(str, unknown))[0]!r}; use value, kind and source")
    if "value" not in raw:
        raise ValueError("value is missing")
    if raw.get("kind") not in get_args(Kind):
        raise ValueError(f"kind is {raw.get('kind')!r}; choose from {', '.join(get_args(Kind))}")
    if not isinstance(raw.get("source"), str) or not raw["source"].strip():
        raise ValueError("source is missing: name the document or measurement")
    return raw["value"], raw["kind"], raw["source"]


def _check_range(name: str, value: float, raw: object) -> None:
    """Refuse what no hardware has: rates and sizes of nothing, negative times, shares beyond 1."""
    _, dimension = split_name(name)
    if dimension is not None and dimension.name in {"bandwidth", "compute rate", "size"}:
        if value <= 0:
            raise ValueError(f"{raw!r} must be more than 0")
    elif value < 0:
        raise ValueError(f"{raw!r} must not be negative")
    elif name.endswith(("efficiency", "_share")) and not 0 < value <= 1:
        raise ValueError(f"{raw!r} is a share: more than 0, at most 1")
    elif name.endswith("_spread") and value >= 1:
        raise ValueError(f"{raw!r} is a share: at least 0, less than 1")
