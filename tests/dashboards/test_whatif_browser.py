"""What-if and configurations in Debian's Chromium."""

from __future__ import annotations

from pathlib import Path

from tests.dashboards.test_browser import LONG, expect
from twin.strategies import load_job

SIMULATED = 60_000
"""Milliseconds that a simulation may take on a loaded machine, with the start of its process."""


def test_a_what_if_is_run_changed_refused_and_saved(visitor, queries, tmp_path: Path):
    page = visitor.go("/whatif", queries["/whatif"])
    status = page.locator("#whatif-status")
    expect(status).to_contain_text("+0.0 %", timeout=SIMULATED)
    page.get_by_label("slow rank").fill("3")
    page.get_by_label("times slower").fill("2.5")
    expect(status).to_contain_text("The largest part", timeout=SIMULATED)
    assert visitor.query()["stragglers-0-slowdown"] == "2.5"
    expect(page.locator("#whatif-words")).to_contain_text("As it is above what if", timeout=SIMULATED)
    page.get_by_label("micro sequences").fill("1000000")
    expect(status).to_contain_text("This job cannot run", timeout=SIMULATED)
    expect(status).to_contain_text("batch.micro_sequences")
    page.get_by_label("micro sequences").fill("")
    expect(status).to_contain_text("The largest part", timeout=SIMULATED)
    with page.expect_download() as download:
        page.get_by_role("button", name="Download as job file").click()
    download.value.save_as(tmp_path / "job.yaml")
    assert [(s.rank, s.slowdown) for s in load_job(tmp_path / "job.yaml").stragglers] == [(3, 2.5)]


def test_levers_that_are_emptied_are_as_they_were_and_ranks_go_by_powers_of_two(visitor, queries):
    page = visitor.go("/whatif", queries["/whatif"])
    status = page.locator("#whatif-status")
    expect(status).to_contain_text("+0.0 %", timeout=SIMULATED)
    rate = page.get_by_role("textbox", name="NIC rate, times")
    rate.fill("8")
    page.wait_for_url("**scale-nic=3*", timeout=SIMULATED)
    rate.fill("")
    page.wait_for_url("**scale-nic=0*", timeout=SIMULATED)
    expect(status).to_contain_text("+0.0 %", timeout=SIMULATED)
    expect(rate).to_have_value("")
    expect(page.get_by_role("slider", name="NIC rate")).to_have_attribute("aria-valuenow", "0")
    rate.fill("4")
    page.wait_for_url("**scale-nic=2*", timeout=SIMULATED)
    ranks = page.get_by_role("combobox", name="ranks, times", exact=True).or_(
        page.get_by_role("textbox", name="ranks, times", exact=True)
    )
    ranks.click()
    page.get_by_role("option", name="2 ×", exact=True).click()
    page.wait_for_url("**scale-ranks=1*", timeout=SIMULATED)
    expect(status).to_contain_text("ranks = 16:", timeout=SIMULATED)  # more than that machine has
    page.get_by_role("slider", name="ranks, times").press("ArrowRight")
    page.wait_for_url("**scale-ranks=2*", timeout=SIMULATED)
    expect(ranks).to_have_value("4 ×")


def test_a_what_if_that_is_shared_is_the_same(visitor, queries):
    page = visitor.go("/whatif", {**queries["/whatif"], "recompute": "off"})
    expect(page.locator("#whatif-status")).to_contain_text("as it is,", timeout=SIMULATED)
    assert visitor.query()["recompute"] == "off"


def test_two_configurations_are_chosen_on_the_figure_and_saved(visitor, queries, tmp_path: Path):
    page = visitor.go("/configurations", queries["/configurations"])
    points = page.locator("#pareto .trace").first.locator("path.point")
    points.first.wait_for(timeout=LONG)
    for number, words in ((0, "Chosen"), (points.count() - 1, "Side by side")):
        box = points.nth(number).bounding_box()
        x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
        page.mouse.move(x - 1, y)
        page.mouse.move(x, y, steps=3)
        page.mouse.click(x, y)
        expect(page.locator("#configurations-pair")).to_contain_text(words, timeout=LONG)
    assert len(visitor.query()["pair"].split(",")) == 2
    with page.expect_download() as download:
        page.get_by_role("button", name="Job file").first.click()
    download.value.save_as(tmp_path / "job.yaml")
    assert load_job(tmp_path / "job.yaml").concrete_grid.ranks > 1


def test_a_filter_narrows_what_is_drawn_and_stands_in_the_address(visitor, queries):
    page = visitor.go("/configurations", queries["/configurations"])
    words = page.locator("#configurations-words")
    before = words.inner_text()
    page.get_by_role("combobox", name="fits").or_(page.get_by_role("textbox", name="fits")).first.click()
    page.get_by_role("option", name="yes", exact=True).click()
    page.wait_for_url("**fits=yes**", timeout=LONG)
    assert words.inner_text() == before  # what cannot run has no step to be drawn with
    expect(page.locator("#configurations-refused")).to_have_text("All of them can run.", timeout=LONG)
