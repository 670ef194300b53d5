"""Controls of the form: empty where nothing is changed, the job's own value shown in grey."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import dash_mantine_components as dmc
from dash import html
from dash.development.base_component import Component

from dashboards.page import Query, state
from dashboards.parts import aria
from dashboards.whatif.form import Field, changed, grid_choices, said
from twin.description.job import Job
from twin.description.problems import DescriptionError
from twin.description.units import format_seconds, format_si
from twin.strategies import load_job

MAX_HELP = 130
"""Letters below a control: two lines."""
OCTAVES = {"scale-ranks": (-6, 6, 1.0)}
"""Lowest, highest and step of a lever, in powers of 2; others go from an eighth to eight times."""
TIMES = {-6: "1/64", -5: "1/32", -4: "1/16", -3: "⅛", -2: "¼", -1: "½"}


def select_choices(base: Job, query: Query) -> dict[str, tuple[str, ...]]:
    """Return the choices of those fields whose choices follow from the others: grid axes and library."""
    job = base
    try:
        raw = changed(base, {key: text for key, text in query.items() if not key.startswith(("grid-", "stragglers"))})
        job = load_job(
            {
                **raw,
                "grid": "auto",
                "batch": {**raw["batch"], "micro_sequences": "auto"},
                "library": None,
                "stragglers": [],
                "degraded": [],
            }
        )
    except DescriptionError:
        pass  # the answer says what is wrong; the choices stay those of the job as it was
    found = {f"grid-{axis}": sizes for axis, sizes in grid_choices(job).items()}
    return found | {"library": tuple(job.machine.libraries)}


def control(field: Field, base: Job, query: Query, choices: Mapping[str, tuple[str, ...]]) -> Component:
    """Make the control of one field."""
    own, text = said(base, field.key), query.get(field.key, "").strip()[:40]
    shortened = textwrap.shorten(field.help, MAX_HELP, placeholder=" …")
    words = html.Span(shortened, style={"color": "var(--quiet)"})
    common: dict[str, Any] = {"id": state(field.key), "label": field.label, "description": words}
    if field.kind == "lever":
        return _lever(field, text, base)
    if field.kind == "choice" or field.key in choices:
        data = list(choices.get(field.key, field.choices))
        if text and text not in data and field.key in choices:
            data.append(text)  # what an address says is shown, even if it cannot run
        return dmc.Select(
            **common,
            data=data,
            value=text if text in data else None,
            clearable=True,
            placeholder=own,
            searchable=len(data) > 8,
        )
    if field.kind == "text":
        return dmc.TextInput(**common, value=text, placeholder=own, debounce=500)
    return dmc.NumberInput(
        **common,
        value=_number(text),
        placeholder=own or "none",
        debounce=500,
        min=field.least,
        max=field.most,
        allowDecimal=not field.whole,
        hideControls=False,
    )


def unseen(keys: Sequence[str]) -> Component:
    """Make controls that hold nothing, for keys that a strategy lacks: what the page listens to must be there."""
    return html.Div([dmc.Select(id=state(key), data=[], value=None) for key in keys], hidden=True)


def _lever(field: Field, text: str, base: Job) -> Component:
    low, high, step = OCTAVES.get(field.key, (-3, 3, 0.5))
    value = _number(text)
    marks = [{"value": n, "label": times(n)} for n in range(low, high + 1, 1 if high < 4 else 2)]
    slider = dmc.Slider(
        id=state(field.key),
        value=min(max(value or 0, low), high),
        min=low,
        max=high,
        step=step,
        marks=marks,
        updatemode="mouseup",
        label=None,
        thumbLabel=field.label,
        mb="lg",
        mt=6,
    )
    box: dict[str, Any] = {"id": {"type": "times", "key": field.key}, "size": "xs", "w": 90}
    box |= aria(f"{field.label.removesuffix(', times')}, times")
    number = _powers(low, high, value or 0, box) if field.whole else _factor(low, high, value or 0, box)
    words = [
        dmc.Group([dmc.Text(field.label, size="sm", fw=500), number], justify="space-between", wrap="nowrap", mb=4),
        dmc.Text(f"{field.help} At 1: {as_it_is(field.key, base)}.", size="xs", c="var(--quiet)"),
    ]
    return dmc.Box([*words, slider], px=8, **aria(field.label))


def _powers(low: int, high: int, value: float, box: Mapping[str, Any]) -> Component:
    """Offer whole powers of 2, where nothing else can be."""
    data = [{"value": f"{2.0**n:g}", "label": f"{times(n)} ×"} for n in range(low, high + 1)]
    return dmc.Select(data=data, value=f"{2**value:g}", allowDeselect=False, **box)


def _factor(low: int, high: int, value: float, box: Mapping[str, Any]) -> Component:
    return dmc.NumberInput(
        value=float(f"{2**value:.6g}"),
        min=2.0**low,
        max=2.0**high,
        step=0.1,
        decimalScale=4,
        debounce=400,
        suffix=" ×",
        **box,
    )


def as_it_is(key: str, base: Job) -> str:
    """Write what a lever multiplies; of NICs that nothing crosses, that this changes nothing."""
    machine = base.machine
    idle = f"; but all {base.ranks:,} ranks are on one node" if base.ranks <= machine.devices_per_node else ""
    return {
        "scale-ranks": f"{base.ranks:,}",
        "scale-nic": format_si(machine.nic.bandwidth_bytes_per_second, "B/s") + idle,
        "scale-latency": format_seconds(machine.nic.latency_seconds) + idle,
        "scale-peak": format_si(machine.device.peak_flops_per_second, "FLOP/s"),
    }[key]


def times(octaves: int) -> str:
    """Write a power of 2.

    >>> times(-2), times(0), times(3)
    ('¼', '1', '8')
    """
    return TIMES.get(octaves) or f"{2**octaves}"


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if abs(value) < 1e12 else None
