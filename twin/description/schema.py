"""The published JSON schemas of job and machine files.

They are what pydantic derives, loosened where the loader accepts more: names in place of
machines, models, devices and libraries; `extends`; quantities written as text with a unit.
"""

from __future__ import annotations

from typing import Any

from twin.description.huggingface import PREFIX
from twin.description.job import Job
from twin.description.load import names
from twin.description.machine import Machine
from twin.description.presets import presets
from twin.description.spec import Spec
from twin.description.units import split_name

Schema = dict[str, Any]
DIALECT = "https://json-schema.org/draft/2020-12/schema"


def job_schema_of(options: type[Job]) -> Schema:
    """JSON schema of the job files of one strategy, whose keys are `options`."""
    schema = _base(options.model_json_schema(by_alias=True), "Fourfold job")
    properties = schema["properties"]
    properties["machine"] = _named(properties["machine"], names(), "A name, a path, or a machine.")
    properties["model"] = _named(properties["model"], list(presets()), "A preset, hf:DIR, or a model.")
    model = schema["$defs"]["Model"]
    named = [{"enum": list(presets())}, {"pattern": f"^{PREFIX}."}]
    model["properties"]["preset"] = {"anyOf": named, "description": "Start from this model; hf:DIR, from that one."}
    model.pop("required", None)
    _loosen_machine(schema["$defs"])
    return schema


def machine_schema() -> Schema:
    """JSON schema of a machine file."""
    schema = _base(Machine.model_json_schema(by_alias=True), "Fourfold machine")
    _loosen_machine(schema["$defs"] | {"Machine": schema})
    return schema


def _base(schema: Schema, title: str) -> Schema:
    schema["$schema"] = DIALECT
    schema["title"] = title
    _add_units(schema)
    return schema


def _loosen_machine(definitions: Schema) -> None:
    machine = definitions["Machine"]
    machine["properties"]["extends"] = {"type": "string", "description": "Start from this machine."}
    for name in _parts(Machine):
        _loosen(definitions[name])
    for name in ("Device", "Library"):
        definitions[name]["properties"]["extends"] = {"type": "string", "description": "Start from this one."}
    machine["properties"]["device"] = _named(machine["properties"]["device"], names("devices"), "A name, or a device.")
    libraries = machine["properties"]["libraries"]
    named = _named(libraries["additionalProperties"], names("libraries"), "A name, or a library; null takes one away.")
    named["anyOf"].append({"type": "null"})
    libraries["additionalProperties"] = named


def _named(schema: Schema, known: list[str], description: str) -> Schema:
    return {"anyOf": [{"type": "string", "examples": known}, schema], "description": description}


def _parts(model: type[Spec]) -> set[str]:
    found = {model.__name__}
    for field in model.model_fields.values():
        for part in _models_in(field.annotation):
            found |= _parts(part)
    return found


def _models_in(annotation: Any) -> list[type[Spec]]:
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return [annotation]
    return [m for part in getattr(annotation, "__args__", ()) for m in _models_in(part)]


def _quantities(model: type[Spec]) -> set[str]:
    found = {split_name(n)[0] for n, f in model.model_fields.items() if f.annotation is float and split_name(n)[1]}
    return found.union(*(_quantities(p) for f in model.model_fields.values() for p in _models_in(f.annotation)))


def _loosen(part: Schema) -> None:
    part.pop("required", None)
    for key, value in part["properties"].items():
        if set(value.get("properties", {})) == {"value", "kind", "source"}:
            part["properties"][key] = {"anyOf": [value, {"type": ["number", "string"]}]}


def _add_units(schema: Schema) -> None:
    """Let every plain number with a unit in its name also be text."""
    quantities = _quantities(Job) | {"bucket"}
    for model in [schema, *schema.get("$defs", {}).values()]:
        for key, value in model.get("properties", {}).items():
            if value.get("type") == "number" and key in quantities:
                value["type"] = ["number", "string"]
