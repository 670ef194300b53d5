"""The what-if page as a function of its address."""

from __future__ import annotations

from typing import Any

import pytest
from dash import no_update

from dashboards.app import content
from dashboards.catalog import Catalog
from dashboards.page import PageContext
from dashboards.pages.whatif import PAGE, given
from dashboards.settings import Settings
from dashboards.whatif.answer import Memory, answer
from dashboards.whatif.form import KEYS, fields_of
from dashboards.whatif.kept import show
from dashboards.whatif.look import after, looked, said
from dashboards.whatif.pool import Answer, Pool
from dashboards.whatif.results import drawn, figure_rows, part_rows
from tests.compare.compare_traces import by_hand_predicted, table, write
from tests.dashboards.serving import EVIL
from tests.dashboards.test_pages import shows_a_problem, text_of
from tests.dashboards.test_whatif_pool import JOB, NEVER, SLOWER, waited


@pytest.fixture(scope="module")
def found() -> Answer:
    head, tables = answer(Memory(), JOB, SLOWER)
    return Answer(head["old"], head["new"], tuple(head["ranks"]), tuple(tables))


def test_without_a_run_the_form_starts_from_an_example(context):
    shown = content(PAGE, context, {})
    assert not shows_a_problem(shown)
    assert "GPT-320B" in text_of(shown)


def test_a_visitor_has_a_name_that_nobody_guesses(context):
    def visitor() -> str:
        nodes = PAGE.shown(context, {})._traverse()
        return str(next(n.data for n in nodes if getattr(n, "id", None) == "whatif-visitor"))

    assert len(visitor()) == 32
    assert visitor() != visitor()


@pytest.mark.parametrize("text", [EVIL, "x" * 5000, "nan", "1e999", "-1", "\x00", "²"])
def test_whatever_an_address_says_the_form_is_shown(context, text):
    shown = text_of(content(PAGE, context, dict.fromkeys(KEYS, text)))
    assert "x" * 100 not in shown


def test_the_form_is_that_of_the_jobs_strategy(tmp_path):
    """All that the page listens to is there once; seen is what the strategy has."""
    described = {"model": "gpt2", "machine": "perlmutter", "ranks": 8, "strategy": "megatron"}
    described |= {"grid": {"pipeline": 2, "data": 2, "tensor": 2}, "batch": {"sequences": 64, "micro_sequences": 2}}
    write(tmp_path / "piped", "predicted", table(by_hand_predicted()), job=described)
    context = PageContext(Settings(tmp_path), Catalog(tmp_path))
    shown = content(PAGE, context, {"run": context.catalog.entries()[0].name})
    assert not shows_a_problem(shown)
    parts = list(shown._traverse())
    ids = [part.id for part in parts if isinstance(getattr(part, "id", None), dict)]
    assert sorted(one["key"] for one in ids if one["type"] == "state") == sorted(KEYS)
    hidden = next(part for part in parts if getattr(part, "hidden", None) is True)
    unseen = {part.id["key"] for part in hidden.children}
    assert unseen == set(KEYS) - {field.key for field in fields_of("megatron")}
    assert {"grid-z", "overlap-halves"} <= unseen


def test_only_changes_come_from_controls():
    values = [0 if key.startswith("scale-") else "" for key in KEYS]
    assert given(values, "?run=a&recompute=on") == {"run": "a"}
    values[KEYS.index("scale-nic")] = -0.5
    values[KEYS.index("stragglers-0-rank")] = 0
    assert given(values, None) == {"scale-nic": "-0.5", "stragglers-0-rank": "0"}


def test_the_clock_ticks_once_more():
    assert [after(ticks) for ticks in (None, 0, 4)] == [1, 1, 5]


def test_the_answer_is_said_in_a_sentence_and_tables(found):
    words = text_of(said(found))
    assert "%" in words
    parts = {row["part"]: row["difference (s)"] for row in part_rows(found)}
    assert sum(v for k, v in parts.items() if k != "step") == pytest.approx(parts["step"])
    step = figure_rows(found)[0]
    assert step["change (%)"] == pytest.approx(100 * (step["what if"] / step["as it is"] - 1), abs=0.01)


def test_steps_of_other_batches_are_compared_by_tokens(context):
    """Four times the sequences make a longer step that trains on more tokens a second."""
    larger = {**JOB, "batch": {"sequences": 32, "micro_sequences": 8}}
    head, _ = answer(Memory(), JOB, larger)
    old, new = head["old"], head["new"]
    words = str(said(Answer(old, new, (), ())).children)
    rates = [4 * 8 * 32 / new["step_seconds"], 8 * 32 / old["step_seconds"]]
    assert new["step_seconds"] > old["step_seconds"]
    assert rates[0] > rates[1]
    assert f"{rates[0] / rates[1]:.2f} × faster" in words
    assert "for 4 × the tokens" in words
    assert "slower" not in words
    assert f"{rates[1]:,.0f} tokens/s as it is, {rates[0]:,.0f} so" in words

    def kept(name: str, figures: dict[str, Any]) -> dict[str, Any]:
        found = {"address": name, "words": name, "tokens_as_it_is": old["tokens_per_second"], "memory": 1, "energy": 1}
        return {**found, "exposed": 0, "step": figures["step_seconds"], "tokens": figures["tokens_per_second"]}

    both = [kept("as it is", old), kept("larger", new)]
    side_by_side = text_of(show(context, both)).replace("\\u00d7", "×")
    assert f"{rates[0] / rates[1]:.2f} × faster" in side_by_side
    assert "slower" not in side_by_side
    assert f"The most tokens per second, of steps that differ in tokens: larger, {rates[0]:,.0f}." in side_by_side
    slower = answer(Memory(), JOB, SLOWER)[0]["new"]
    assert "The shortest step: as it is, " in text_of(show(context, [kept("slow", slower), kept("as it is", old)]))


def test_the_timeline_has_the_ranks_of_both(found):
    figure, words = drawn(found, None)
    lanes = figure.layout.yaxis.ticktext
    assert any(name.startswith("rank 3 compute") and "what if" in name for name in lanes)
    assert words.startswith("As it is above what if.")
    low, high = 0.0, found.old["step_seconds"] / 2
    assert tuple(drawn(found, (low, high))[0].layout.xaxis.range) == (low, high)


def test_a_step_of_too_many_ops_says_what_to_do(found):
    """And has axes as all others: of time with its unit, of names; nothing of another answer stays."""
    figure, words = drawn(Answer(found.old, found.new, (), ()), None)
    assert "simulate" in words
    assert f"{max(found.old['ops'], found.new['ops']):,} ops" in words
    axis = figure.layout.xaxis
    assert (axis.ticksuffix, axis.tickformat, axis.visible) == ("s", "~s", None)
    assert "time" in axis.title.text
    assert dict(zip(figure.data[0].y, figure.data[0].x, strict=True)) == {
        "as it is": found.old["step_seconds"],
        "what if": found.new["step_seconds"],
    }
    assert axis.range[1] > max(figure.data[0].x)


def test_a_job_that_does_not_fit_says_so(found):
    memory = {**found.new["memory"], "fits": False, "advice": "use more ranks"}
    words = text_of(said(Answer(found.old, {**found.new, "memory": memory}, found.ranks, found.tables)))
    assert "cannot run" in words
    assert "use more ranks" in words


@pytest.mark.process
def test_a_superseded_request_says_so_and_the_newest_answer_is_shown():
    pool = Pool(1)
    older = pool.ask("a", JOB, JOB, asked_at=1.0)
    newer = pool.ask("a", JOB, SLOWER, asked_at=2.0)
    ticks, done, words, ticket = looked(pool, "a", older, 7)
    assert "Superseded by a newer change" in text_of(words)
    assert (done, ticket) == (no_update, newer)
    assert ticks > 7  # the page looks again
    waited(pool, newer)
    _, done, words, _ = looked(pool, "a", ticket, ticks)
    assert done == newer
    assert "%" in text_of(words)
    pool.close()


@pytest.mark.process
def test_a_request_that_nothing_took_the_place_of_says_why_it_has_no_answer():
    pool = Pool(1, NEVER)
    ticket = pool.ask("a", JOB, JOB)
    assert looked(pool, "a", ticket, 1) == (after(1), no_update, no_update, no_update)
    pool.cancel("a")
    assert "not known any more" in text_of(looked(pool, "a", ticket, 1)[2])
    assert looked(pool, "a", None, 1) == (no_update,) * 4
    pool.close()
