"""What a visitor chooses to see of a timeline: ranks and kinds of ops; what is said of choices that cannot be."""

from __future__ import annotations

import pytest

from dashboards.events import columns
from dashboards.pages.timeline import wrong_of
from dashboards.pages.timeline_parts import kinds_of, summary
from dashboards.timeline.lanes import lanes
from dashboards.timeline.opened import view_of
from dashboards.timeline.view import View, parse_ranks
from tests.compare.compare_traces import by_hand_measured, by_hand_predicted, table
from tests.dashboards.test_browser import Visitor, expect
from tests.dashboards.test_timeline_parts import by_hand, pair_of
from twin.description.problems import DescriptionError


@pytest.mark.parametrize("text", ["x", "1-2-3", "-1", "1-", "９９９９９９９９９９９９９９９９９９９９９", "1;2", "0x1"])
def test_ranks_that_are_no_numbers_are_refused(text):
    if text in ("1-",):  # a range without an end is one rank
        assert parse_ranks(text, [0, 1, 2]) == (1,)
        return
    with pytest.raises(DescriptionError, match="ranks"):
        parse_ranks(text, [0, 1, 2])


def test_each_field_that_names_ranks_is_told_what_is_wrong_with_it():
    """Below the figure alone it was out of sight, and said of *ranks* whichever field it was."""
    pair = pair_of(*by_hand())
    with pytest.raises(DescriptionError) as refused:
        view_of({"ranks": "abc", "pins": "0", "turned": "9"}, pair)
    assert [problem.path for problem in refused.value.problems] == ["ranks", "turned"]
    ranks, pins, turned = wrong_of(refused.value.problems)
    assert "such as 0,3,8-15" in ranks
    assert pins == ""
    assert "choose among 0-1" in turned
    assert wrong_of(()) == ["", "", ""]
    assert view_of({"ranks": "1", "pins": "0"}, pair).pins == (0,)


def test_of_one_thing_one_is_said_and_kinds_that_no_run_has_are_not_offered():
    """The measured run lacks one op of a rank, then of both; none has copies, experts or a pipeline."""
    rows = by_hand_measured()
    first = columns(table(by_hand_predicted()))
    for missing, words in ((0, "1 op is in the predicted run only"), (1, "2 ops are in the predicted run only")):
        rows[missing] = rows[missing][:-1]
        pair = pair_of(first, columns(table(rows)))
        assert words in summary(pair, lanes(pair, View()))
    assert kinds_of(pair, View()) == ["compute", "x", "wait", "gap"]
    assert kinds_of(pair, View(show="tensor")) == ["compute", "tensor", "x", "wait", "gap"]


def test_ranges_of_ranks_cost_nothing():
    assert parse_ranks("0-99999999999999999,3", [2, 3]) == (2, 3)
    assert parse_ranks("", [1]) == ()


@pytest.mark.parametrize("text", ["5", "2,5", "4-9", "0,99999999"])
def test_a_rank_without_events_is_refused_and_others_offered(text):
    """It was drawn as if no rank had been named: all of them."""
    with pytest.raises(DescriptionError, match="choose among 0-2"):
        parse_ranks(text, [0, 1, 2])


def test_a_field_of_ranks_that_names_none_is_marked(browser, server, queries):
    visitor = Visitor(browser, server)
    page = visitor.go("/timeline", queries["/timeline"])
    page.locator("#timeline-worst .ag-row").first.wait_for()
    ranks, pins = page.get_by_label("ranks (0"), page.get_by_label("pinned above")
    ranks.fill("abc")
    expect(ranks).to_have_attribute("aria-invalid", "true")
    expect(page.get_by_text("expected numbers and ranges").first).to_be_visible()
    pins.fill("999")
    expect(pins).to_have_attribute("aria-invalid", "true")
    ranks.fill("0")
    expect(ranks).not_to_have_attribute("aria-invalid", "true")
    expect(pins).to_have_attribute("aria-invalid", "true")
    pins.fill("")
    expect(pins).not_to_have_attribute("aria-invalid", "true")
    expect(page.locator("#timeline-words")).to_contain_text("ops")
    visitor.context.close()
    assert visitor.wrong == []
