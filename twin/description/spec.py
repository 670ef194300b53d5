"""The base of everything read from YAML: frozen, strict, and honest about its numbers.

* `Spec`: a frozen pydantic model that refuses unknown keys. A field called
  `bandwidth_bytes_per_second` is the YAML key `bandwidth`, and takes `25 GB/s`.
* `Parameter`: a float that knows where it comes from. Every number that describes hardware
  is one, so that a reader can ask any figure for its source.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    field_validator,
)
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema
from pydantic_core.core_schema import ValidationInfo

from twin.description.units import parse_quantity, split_name

Kind = Literal["datasheet", "measured", "calibrated", "assumed"]
USER = "set by the user"
MOST_COUNTED = 10_000_000


class Parameter(float):
    """A hardware number in SI units, with its kind and its source.

    It is a float and computes as one; the result of arithmetic is a plain float.
    """

    kind: Kind
    source: str

    def __new__(cls, value: float, kind: Kind = "assumed", source: str = "") -> Parameter:
        """Make a parameter; `value` is in SI units."""
        parameter = super().__new__(cls, value)
        parameter.kind = kind
        parameter.source = source
        return parameter

    def __reduce__(self) -> tuple[type[Parameter], tuple[float, Kind, str]]:
        return Parameter, (float(self), self.kind, self.source)

    @classmethod
    def read(cls, raw: object, name: str) -> Parameter:
        """Read `{value, kind, source}`, or a bare quantity, which must then be overridden data.

        `name` is the field's name, whose suffix decides the units.
        """
        if isinstance(raw, Parameter):
            return raw
        _, dimension = split_name(name)
        if not isinstance(raw, dict):
            raise ValueError(  # noqa: TRY004 - pydantic reports ValueErrors
                f"{raw!r}: a hardware number is written {{value: …, kind: "
                             f"{'|'.join(get_args(Kind))}, source: …}}")  # fmt: skip
        given, kind, source = _parts(raw)
        value = parse_quantity(given, dimension)
        _check_range(name, value, given)
        return cls(value, kind, source)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: Any, _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.is_instance_schema(
            cls,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda p: {"value": float(p), "kind": p.kind, "source": p.source}
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _s: CoreSchema, _h: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        return _json_schema("number", "string")


class Counted(int):
    """A whole hardware number above 0, with its kind and its source: nodes, devices in a node."""

    kind: Kind
    source: str

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
            raise ValueError("Input should be a valid integer")  # noqa: TRY004 - pydantic reports ValueErrors
        if not 0 < value <= MOST_COUNTED:
            limit = "greater than 0" if value <= 0 else f"at most {MOST_COUNTED}"
            raise ValueError(f"Input should be {limit}")
        return cls(value, kind, source)

    @classmethod
    def __get_pydantic_core_schema__(
        cls, _source: Any, _handler: GetCoreSchemaHandler
    ) -> CoreSchema:
        return core_schema.is_instance_schema(
            cls,
            serialization=core_schema.plain_serializer_function_ser_schema(
                lambda c: {"value": int(c), "kind": c.kind, "source": c.source}
            ),
        )

    @classmethod
    def __get_pydantic_json_schema__(
        cls, _s: CoreSchema, _h: GetJsonSchemaHandler
    ) -> JsonSchemaValue:
        described = _json_schema("integer")
        return {"anyOf": [described, {"type": "integer", "minimum": 1}]}


def _parts(raw: dict[Any, Any]) -> tuple[Any, Kind, str]:
    """Take a described number apart: value, kind and source."""
    if unknown := set(raw) - {"value", "kind", "source"}:
        raise ValueError(
            f"unknown key {sorted(map(str, unknown))[0]!r}; use value, kind and source"
        )
    if "value" not in raw:
        raise ValueError("value is missing")
    if raw.get("kind") not in get_args(Kind):
        raise ValueError(f"kind is {raw.get('kind')!r}; choose from {', '.join(get_args(Kind))}")
    if not isinstance(raw.get("source"), str) or not raw["source"].strip():
        raise ValueError("source is missing: name the document or measurement")
    return raw["value"], raw["kind"], raw["source"]


def _json_schema(*types: str) -> JsonSchemaValue:
    return {
        "type": "object",
        "properties": {
            "value": {"type": list(types)},
            "kind": {"enum": list(get_args(Kind))},
            "source": {"type": "string"},
        },
        "required": ["value", "kind", "source"],
        "additionalProperties": False,
    }


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


def yaml_key(name: str) -> str:
    """Return the YAML key of a field: its name without the unit."""
    return split_name(name)[0]


class Spec(BaseModel):
    """A frozen description read from YAML."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=yaml_key, populate_by_name=True,
        protected_namespaces=(), use_attribute_docstrings=True,
    )  # fmt: skip

    @field_validator("*", mode="before")
    @classmethod
    def _read_quantities(cls, raw: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        annotation = cls.model_fields[name].annotation
        options = (annotation, *get_args(annotation))
        if Counted in options and raw is not None:
            return Counted.read(raw)
        if Parameter in options and raw is not None:
            return Parameter.read(raw, name)
        if float in options and (raw is None or isinstance(raw, str | bool | int | float)):
            return raw if raw is None else parse_quantity(raw, split_name(name)[1])
        return raw
