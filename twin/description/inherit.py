"""What `extends` means: a machine, a device or a library with some keys changed.

* Mappings are merged key by key; lists and plain values replace. `null` takes a key away that the base has.
* A bare value in place of a parameter, or for one that the base leaves out, is assumed and set by the user: the
  base's source was of another number.
* What extends a file inherits its caveat, which was found for another than this one, and says so.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, get_args

from twin.description.parameter import USER, Parameter
from twin.description.spec import Spec

INHERITED = "Inherited from"


def inheriting(base: Mapping[str, Any], changes: Mapping[str, Any], name: str, model: type[Spec]) -> dict[str, Any]:
    """Merge what extends a file of this model with it."""
    merged = _merge(base, changes, (model,))
    caveat = base.get("caveat")
    if caveat and isinstance(caveat, str) and "caveat" not in changes and not caveat.startswith(INHERITED):
        merged["caveat"] = f"{INHERITED} {name}: {caveat}"
    return merged


def _merge(base: Mapping[str, Any], changes: Mapping[str, Any], types: tuple[Any, ...]) -> dict[str, Any]:
    """Merge mappings deeply; `types` are what the base may be of."""
    merged = dict(base)
    for key, value in changes.items():
        old, below = merged.get(key), _types_of(types, key)
        if value is None and key in merged:
            del merged[key]  # what the base has, this one has not; of what it has not either the check will tell
        elif isinstance(value, dict) and "extends" in value:
            merged[key] = value  # another device or library, with changes
        elif isinstance(old, str) and isinstance(value, dict):
            merged[key] = {"extends": old, **value}  # a named device or library with changes
        elif _is_bare(value) and (Parameter in below if old is None else _is_parameter(old)):
            merged[key] = {"value": value, "kind": "assumed", "source": USER}
        elif isinstance(value, dict) and not _is_parameter(value):
            merged[key] = _merge(old if isinstance(old, dict) else {}, value, below)
        elif isinstance(old, dict) and isinstance(value, dict):
            merged[key] = {**old, **value}
        else:
            merged[key] = value
    return merged


def _types_of(types: tuple[Any, ...], key: object) -> tuple[Any, ...]:
    """Return what a key of something of these types may be of: a field's, or what a mapping by name holds."""
    found: list[Any] = []
    for each in types:
        if isinstance(each, type) and issubclass(each, Spec):
            annotations = [field.annotation for field in each.model_fields.values() if field.alias == key]
            found += [one for annotation in annotations for one in (annotation, *get_args(annotation))]
        else:  # of dict[str, Library] what it holds; of anything else nothing
            found += get_args(each)
    return tuple(found)


def _is_parameter(raw: object) -> bool:
    return isinstance(raw, dict) and {"value", "kind", "source"} <= set(raw)


def _is_bare(raw: object) -> bool:
    return raw is not None and not isinstance(raw, dict | list | bool)
