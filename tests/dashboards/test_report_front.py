"""The front of a report: three sentences, cost and energy by hand, and nothing of a stranger's that is markup."""

from __future__ import annotations

import re

import pytest

from dashboards.report_front import front_of, written


@pytest.mark.parametrize(
    "labels",
    [
        ("gpt-320b-frontier",),
        ("testbed/2x2x2x1-predicted", "testbed/2x2x2x1-measured"),
        ("testbed/2x2x2x1-measured", "testbed/8x1x1x1-measured"),
        ("hostile/predicted", "hostile/measured"),
    ],
)
def test_the_conclusion_has_three_sentences_and_is_text(context, names, labels):
    query = dict(zip(("run", "other"), (names[label] for label in labels), strict=False))
    front = front_of(context, query, "", None)
    assert len(front.conclusion) == 3
    assert all(one.endswith(".") for one in front.conclusion)
    assert set(re.findall(r"<(/?\w+)", written(front))) <= {
        *("p", "/p", "table", "/table", "tr", "/tr", "th", "/th", "td", "/td", "h3", "/h3", "ul", "/ul", "li", "/li")
    }
    assert not any("cost" in what for what, _ in front.facts)


def test_hours_cost_and_energy_by_hand(context, names):
    entry = context.catalog.entry(names["gpt-320b-frontier"])
    figures, job = entry.head["figures"], entry.head["job"]
    tokens = job["batch"]["sequences"] * job["model"]["sequence"]
    facts = dict(front_of(context, {"run": entry.name}, "Mine", 2.5).facts)
    hours = 1e9 / tokens * figures["step_seconds"] * 32768 / 3600
    assert float(facts["device hours for a billion tokens"].replace(",", "")) == pytest.approx(hours, rel=1e-3)
    cost = float(facts["cost of a billion tokens, at the price given"].replace(",", ""))
    assert cost == pytest.approx(2.5 * hours, rel=1e-3)
    energy = float(facts["energy of devices for a billion tokens"].split()[0].replace(",", ""))
    assert energy == pytest.approx(figures["energy_joules"] / tokens * 1e9 / 3.6e6, rel=1e-3)
