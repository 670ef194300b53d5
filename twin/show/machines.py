"""Machines and models on a terminal."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.table import Table

from twin.description.parameter import Counted, Parameter
from twin.description.spec import Spec
from twin.description.units import format_si, split_name
from twin.show.console import make_console, print_json

if TYPE_CHECKING:
    from twin.description.machine import Machine
    from twin.description.model import Model


def machine_list(machines: Sequence[Machine], *, as_json: bool) -> None:
    """Print the machines that are known."""
    if as_json:
        print_json(
            [
                {
                    "name": m.name,
                    "title": m.title,
                    "nodes": m.nodes,
                    "devices_per_node": m.devices_per_node,
                    "device": m.device.name,
                    "libraries": list(m.libraries),
                }
                for m in machines
            ]
        )
        return
    table = Table("machine", "nodes", "devices", "device", "peak", "memory", "NICs per node", "libraries")
    for m in machines:
        table.add_row(
            m.name,
            f"{m.nodes:,}",
            f"{m.nodes * m.devices_per_node:,}",
            m.device.title,
            format_si(m.device.peak_flops_per_second, "FLOP/s"),
            format_si(m.device.memory_bytes, "B"),
            f"{len(m.nic.devices) * (m.nic.count or 1)} × {format_si(m.nic.bandwidth_bytes_per_second, 'B/s')}",
            ", ".join(m.libraries),
        )
    make_console().print(table)


def machine(described: Machine, *, as_json: bool) -> None:
    """Print one machine: every number with kind and source."""
    if as_json:
        print_json(described.model_dump(mode="json", by_alias=True))
        return
    console = make_console()
    console.print(f"[bold]{escape(described.title)}[/]\n{escape(described.caveats)}\n")
    table = Table("key", "value", "kind", "source")
    table.columns[0].overflow = "fold"
    table.columns[3].overflow = "fold"
    for key, value in _rows(described):
        if isinstance(value, Counted):
            table.add_row(_yaml_path(key), f"{value:,}", value.kind, escape(value.source))
        elif isinstance(value, Parameter):
            _, dimension = split_name(key.rsplit(".", 1)[-1])
            shown = format_si(value, dimension.si) if dimension else f"{value:.4g}"
            table.add_row(_yaml_path(key), shown, value.kind, escape(value.source))
        else:
            table.add_row(_yaml_path(key), escape(str(value)), "", "")
    console.print(table)
    sources = dict(described.sources) | described.device.sources
    for library in described.libraries.values():
        sources |= library.sources
    console.print("[bold]Sources[/]")
    for short, document in sources.items():
        console.print(f"  {escape(short)}: {escape(document)}")


def _yaml_path(key: str) -> str:
    return ".".join(split_name(part)[0] for part in key.split("."))


def _rows(spec: Spec, prefix: str = "") -> Iterator[tuple[str, Any]]:
    for name in type(spec).model_fields:
        if name in {"sources", "schema_version", "caveat"}:
            continue
        yield from _value_rows(f"{prefix}{name}", getattr(spec, name))


def _value_rows(key: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Spec):
        yield from _rows(value, key + ".")
    elif isinstance(value, dict):
        for name, item in value.items():
            yield from _value_rows(f"{key}.{name}", item)
    elif isinstance(value, tuple) and value and isinstance(value[0], Spec):
        for item in value:
            plain = [f"{v}" for n, v in item if not isinstance(v, Parameter)]
            for name, inner in _rows(item):
                if isinstance(inner, Parameter):
                    yield f"{key}[{' '.join(plain)}].{name}", inner
    elif value is not None and value != ():
        yield key, value


def models(known: Sequence[Model], *, as_json: bool) -> None:
    """Print models."""
    if as_json:
        print_json([m.model_dump(mode="json", by_alias=True) | {"parameters": m.parameters} for m in known])
        return
    table = Table("model", "parameters", "layers", "hidden", "heads", "MLP", "positions", "sequence", "vocabulary")
    table.caption = "* the head is the table of tokens; of others it is a matrix of its own"
    for m in known:
        table.add_row(
            m.name,
            f"{m.parameters / 1e9:.2f} B",
            str(m.layers),
            str(m.hidden),
            str(m.heads) if m.key_value_heads == m.heads else f"{m.heads}, {m.key_value_heads} of keys",
            f"{m.mlp_hidden} {m.activation}",
            m.positions,
            str(m.sequence),
            f"{m.vocabulary}{'*' if m.tied_embeddings else ''}",
        )
    make_console().print(table)
