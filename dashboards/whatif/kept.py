"""What-ifs that a visitor keeps, side by side: in the visitor's browser, as addresses with their figures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any
from urllib.parse import urlencode

import dash_mantine_components as dmc
from dash import Dash, Input, Output, State, ctx, no_update
from dash.development.base_component import Component

from dashboards.figures.waterfall import same_tokens, times_the_rate
from dashboards.page import PageContext, state
from dashboards.parts import card, seconds
from dashboards.query import query_of
from dashboards.whatif.form import FIELDS, KEYS
from dashboards.whatif.look import known_answer
from dashboards.whatif.pool import Pool
from twin.description.units import format_memory, format_si

KEPT, CARD = "whatif-kept", "whatif-kept-card"
MAX_KEPT, MAX_LETTERS = 12, 1500
"""What-ifs side by side; and letters of an address, which a stranger's browser may send."""
LABELS = {field.key: field.label.removesuffix(", times") for field in FIELDS if field.kind == "lever"}
FIGURES = ("step", "tokens", "exposed", "memory", "energy")


def keep(pool: Pool, _clicks: Any, _clear: Any, ticket: Any, *given: Any) -> Any:
    """Add what the controls say, with the answer that is shown, to those kept; or forget all."""
    *values, kept, search = given
    if ctx.triggered_id == "whatif-forget":
        return []
    answer = known_answer(pool, ticket)
    if answer is None:
        return no_update
    query = {k: v for k, v in query_of(search).items() if k in ("run", "candidate")}
    changes = {key: str(value) for key, value in zip(KEYS, values, strict=True) if value not in (None, "", 0, 0.0)}
    new = answer.new
    one = {
        "address": urlencode({**query, **changes})[:MAX_LETTERS],
        "words": ", ".join(f"{_named(key)} {_said(key, value)}" for key, value in changes.items()) or "as it is",
        "tokens_as_it_is": answer.old["tokens_per_second"],
        "step": new["step_seconds"],
        "tokens": new["tokens_per_second"],
        "exposed": new["exposed_communication_seconds"],
        "memory": new["memory"]["per_rank_bytes"],
        "energy": new["energy_joules"],
    }
    before = [each for each in sound(kept) if each["address"] != one["address"]]
    return [*before, one][-MAX_KEPT:]


def _named(key: str) -> str:
    """Name a change as its control is named.

    >>> _named("scale-nic"), _named("batch-sequences")
    ('NIC rate', 'batch sequences')
    """
    return LABELS[key] if key in LABELS else key.replace("-", " ")


def _said(key: str, value: str) -> str:
    """Write a lever's powers of 2 as times."""
    return f"× {2 ** float(value):.3g}" if key.startswith("scale-") else value[:60]


def sound(kept: Any) -> list[dict[str, Any]]:
    """Return those kept that make sense: a browser may send anything."""
    found = kept if isinstance(kept, list) else []
    numbers = ("tokens_as_it_is", *FIGURES)
    return [
        each
        for each in found[:MAX_KEPT]
        if isinstance(each, dict)
        and all(isinstance(each.get(n), int | float) and each[n] >= 0 for n in numbers)
        and all(isinstance(each.get(n), str) and len(each[n]) <= MAX_LETTERS for n in ("address", "words"))
    ]


def show(context: PageContext, kept: Any) -> Component | None:
    """Show those kept as a table; the fastest is said."""
    rows = sound(kept)
    if not rows:
        return None
    heads = ("what if", "step", "against as it is", "tokens/s", "exposed", "memory of a rank", "energy of a step")
    body = [
        dmc.TableTr(
            [
                dmc.TableTd(
                    dmc.Anchor(one["words"], href=f"{context.settings.prefix}whatif?{one['address']}", size="sm")
                ),
                *(
                    dmc.TableTd(cell)
                    for cell in (
                        seconds(one["step"]),
                        times_the_rate(one["tokens_as_it_is"], one["tokens"]),
                        f"{one['tokens']:,.0f}",
                        seconds(one["exposed"]),
                        format_memory(one["memory"]),
                        format_si(one["energy"], "J", digits=3),
                    )
                ),
            ]
        )
        for one in rows
    ]
    table = dmc.Table(
        [dmc.TableThead(dmc.TableTr([dmc.TableTh(h) for h in heads])), dmc.TableTbody(body)], striped="even"
    )
    words = f"{len(rows)} kept in this browser. {fastest(rows)}."
    forget = dmc.Button("Forget all", id="whatif-forget", variant="default", size="xs", mt="xs")
    return card("What-ifs that are kept", words, dmc.TableScrollContainer(table, minWidth=620), forget)


def fastest(rows: Sequence[Mapping[str, Any]]) -> str:
    """Say which of those kept is the fastest, by tokens where their batches differ."""
    best = max(rows, key=lambda one: float(one["tokens"]))
    if same_tokens(*((one["step"], one["tokens"]) for one in rows)):
        return f"The shortest step: {best['words']}, {seconds(best['step'])}"
    return f"The most tokens per second, of steps that differ in tokens: {best['words']}, {best['tokens']:,.0f}"


def register_kept(app: Dash, context: PageContext, pool: Pool) -> None:
    """A button keeps what is shown; a card shows all that are kept."""
    app.callback(
        Output(KEPT, "data"),
        Input("whatif-keep", "n_clicks"),
        Input("whatif-forget", "n_clicks", allow_optional=True),
        State("whatif-done", "data"),
        *(State(state(key), "value") for key in KEYS),
        State(KEPT, "data"),
        State("address", "search"),
        prevent_initial_call=True,
    )(partial(keep, pool))
    app.callback(Output(CARD, "children"), Input(KEPT, "data"))(partial(show, context))
