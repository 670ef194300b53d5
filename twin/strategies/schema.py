"""The published JSON schema of job files: the keys of every strategy, chosen by `strategy:`."""

from __future__ import annotations

from typing import Any

from twin.description.job import AUTO, DEFAULT_STRATEGY
from twin.description.schema import job_schema_of
from twin.strategies.auto import AutoJob
from twin.strategies.registry import named, names

Schema = dict[str, Any]


def job_schema(strategy: str | None = None) -> Schema:
    """JSON schema of the job files of one strategy; by default of all, whose `strategy:` decides."""
    if strategy is not None:
        return job_schema_of(named(strategy).options)
    whole = job_schema_of(named(DEFAULT_STRATEGY).options)
    chosen: Schema = {key: whole.pop(key) for key in ("properties", "required", "additionalProperties") if key in whole}
    for name in [*names(), AUTO]:
        if name != DEFAULT_STRATEGY:
            own = _prefixed(job_schema_of(AutoJob if name == AUTO else named(name).options), name)
            whole["$defs"] |= own["$defs"]
            part = {key: own[key] for key in ("properties", "required", "additionalProperties") if key in own}
            chosen = {
                "if": {"properties": {"strategy": {"const": name}}, "required": ["strategy"]},
                "then": part,
                "else": chosen,
            }
    return whole | chosen


def _prefixed(schema: Any, name: str) -> Any:
    """Give the definitions of a strategy names of their own."""
    if isinstance(schema, dict):
        return {
            key: {f"{name}.{of}": _prefixed(part, name) for of, part in value.items()}
            if key == "$defs"
            else value.replace("#/$defs/", f"#/$defs/{name}.")
            if key == "$ref"
            else _prefixed(value, name)
            for key, value in schema.items()
        }
    return [_prefixed(part, name) for part in schema] if isinstance(schema, list) else schema
