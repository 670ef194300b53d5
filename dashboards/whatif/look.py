"""Looking for the answer to a what-if: what is said while there is none, and of the one that came."""

from __future__ import annotations

from typing import Any

import dash_mantine_components as dmc
from dash import no_update
from dash.development.base_component import Component

from dashboards.figures.change import terms
from dashboards.figures.waterfall import largest, same_tokens, times_as_long, times_the_rate
from dashboards.parts import percent, seconds
from dashboards.whatif.pool import Answer, Pool
from twin.description.problems import DescriptionError


def said(answer: Answer) -> Component:
    """Say in a sentence what changed, and whether the job fits into memory."""
    old, new = answer.old["step_seconds"], answer.new["step_seconds"]
    was, now = answer.old["tokens_per_second"], answer.new["tokens_per_second"]
    words, of_it = f"{seconds(old)} as it is, {seconds(new)} so", "The largest part"
    if same_tokens((old, was), (new, now)):
        words += f": {times_as_long(old, new)}, {percent(100 * (new / old - 1))}."
    else:
        words += f", for {new * now / (old * was):.3g} × the tokens: {was:,.0f} tokens/s as it is, {now:,.0f} so, "
        words += f"{times_the_rate(was, now)}, {percent(100 * (now / was - 1))}."
        of_it = "The largest part of the step's difference"
    most = largest(terms(answer.old, answer.new), new - old)
    if most:
        sign = "+" if most.difference_seconds > 0 else ""
        words += f" {of_it}: {most.label}, {sign}{seconds(most.difference_seconds)}."
    memory = answer.new["memory"]
    if memory["fits"]:
        return dmc.Alert(words, color="blue", variant="light", mb="md")
    return dmc.Alert(
        f"{words} But it cannot run: it {memory['advice']}.",
        color="orange",
        variant="light",
        mb="md",
        title="Does not fit into memory",
    )


def wrong(error: DescriptionError) -> Component:
    """Say what is wrong with a job, and the remedy; as text whatever it holds."""
    return dmc.Alert(
        [dmc.Text(str(p), size="sm") for p in error.problems],
        color="orange",
        variant="light",
        mb="md",
        title="This job cannot run",
        className="problem nothing-new",
    )


def after(ticks: Any, more: int = 1) -> int:
    """Let the clock tick once more, or so often: only when one look is answered does the next one start."""
    return (ticks if isinstance(ticks, int) else 0) + more


def named(visitor: Any) -> str:
    """Return a visitor's name, whatever the page sent for it, at no more than its length."""
    return str(visitor)[:64]


def known_answer(pool: Pool, ticket: Any) -> Answer | None:
    """Return an answer that is kept; None if it is not."""
    try:
        return pool.answer(ticket) if isinstance(ticket, int) else None
    except DescriptionError:
        return None


def looked(pool: Pool, visitor: str, ticket: Any, ticks: Any) -> tuple[Any, Any, Any, Any]:
    """Look for an answer; return how often to look, whose answer is there, what is said, and what to look for.

    A request that a newer one took the place of has no answer: the page says so and looks for the newer one's.
    """
    if not isinstance(ticket, int):
        return no_update, no_update, no_update, no_update
    try:
        answer = pool.answer(ticket)
    except DescriptionError as error:
        newest = pool.newest(visitor)
        if newest is None or newest <= ticket:
            return no_update, no_update, wrong(error), no_update
        words = "Superseded by a newer change; simulating that …"
        return after(ticks, 3), no_update, dmc.Alert(words, color="gray", mb="md"), newest
    if answer is None:
        return after(ticks), no_update, no_update, no_update
    return no_update, ticket, said(answer), no_update
