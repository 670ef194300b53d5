"""The base of everything read from YAML: frozen, strict, and with units in names.

A `Spec` refuses unknown keys. Its field `bandwidth_bytes_per_second` is the YAML key `bandwidth`
and takes `25 GB/s`; if the field is a `Parameter`, also kind and source.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, field_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core.core_schema import CoreSchema, ValidationInfo

from twin.description.parameter import Counted, Parameter
from twin.description.units import parse_quantity, split_name


def yaml_key(name: str) -> str:
    """Return the YAML key of a field: its name without the unit."""
    return split_name(name)[0]


def leaves(value: Any, path: str = "") -> Iterator[tuple[str, Any]]:
    """Yield all values below a mapping of mappings, each with its dotted path.

    >>> dict(leaves({"grid": {"z": 4}, "ranks": 8}))
    {'grid.z': 4, 'ranks': 8}
    """
    if isinstance(value, dict):
        for key, item in value.items():
            yield from leaves(item, f"{path}.{key}" if path else key)
    else:
        yield path, value


class Spec(BaseModel):
    """A frozen description read from YAML."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", alias_generator=yaml_key, populate_by_name=True, protected_namespaces=()
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core_schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Let the published schema say what the docstrings below the fields say."""
        from twin.description.docstrings import field_texts  # noqa: PLC0415  only schemas ask

        schema = handler(core_schema)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for name, text in field_texts(cls).items():
            key = cls.model_fields[name].alias if name in cls.model_fields else None
            if key in properties:
                properties[key].setdefault("description", text)
        return schema

    @field_validator("*", mode="before")
    @classmethod
    def _read_quantities(cls, raw: Any, info: ValidationInfo) -> Any:
        name = info.field_name or ""
        annotation = cls.model_fields[name].annotation
        options = (annotation, *get_args(annotation))
        if Counted in options and raw is not None:
            return Counted.read(raw)
        if get_origin(annotation) is dict and Parameter in options:
            return {key: _named(key, value) for key, value in raw.items()} if isinstance(raw, dict) else raw
        if Parameter in options and raw is not None:
            return Parameter.read(raw, name)
        if float in options and (raw is None or isinstance(raw, str | bool | int | float)):
            return raw if raw is None else parse_quantity(raw, split_name(name)[1])
        return raw


def _named(key: object, raw: object) -> Parameter:
    """Read a plain number of a mapping; what is wrong with it is said with its key."""
    try:
        return Parameter.read(raw, "")
    except ValueError as error:
        raise ValueError(f"{key}: {error}") from None
