"""A stranger in a browser, from the first page and without the documents: five questions, and the way back."""

from __future__ import annotations

import re
import time
from collections.abc import Iterator

import pytest

from tests.dashboards.test_browser import LONG, Visitor, expect, redrawn, window

PATIENCE_SECONDS = 120


@pytest.fixture
def stranger(browser, server) -> Iterator[Visitor]:
    found = Visitor(browser, server)
    yield found
    found.context.close()
    assert found.wrong == []


def pick(page, label: str) -> None:
    page.locator(".ag-pinned-left-cols-container .ag-cell", has_text=re.compile(f"^{label}$")).first.click(
        modifiers=["ControlOrMeta"]
    )


def follow(page, name: str) -> None:
    """Take a link of the menu."""
    page.get_by_role("link", name=re.compile(f"^{name}")).click()
    expect(page.locator("#content h1")).to_have_text(name)


def choose(page, label: str, value: str) -> None:
    """Choose in a list of the header."""
    page.locator(".chooser").get_by_label(label, exact=True).click()
    page.get_by_role("option", name=value, exact=True).click()


def test_five_questions_are_answered(stranger: Visitor):
    page = stranger.go("/")
    page.locator(".ag-row").first.wait_for()
    began = time.monotonic()

    # which run is slowest, and why?
    page.locator(".ag-header-cell[col-id=step] .ag-header-cell-label").click(click_count=2, delay=80)
    expect(page.locator(".ag-header-cell[col-id=step]")).to_have_attribute("aria-sort", "descending")
    first = page.locator(".ag-pinned-left-cols-container .ag-row[row-index='0'] .ag-cell").first
    slowest = first.inner_text()
    assert slowest.startswith("gpt-320b")
    first.click()
    page.get_by_role("button", name="Timeline").click()
    shares = page.locator("#timeline-window tr")
    shares.first.wait_for()
    assert any("compute" in words for words in shares.all_inner_texts())

    # is the training healthy?
    follow(page, "Training")
    expect(page.locator("#training-drawn")).to_contain_text("Healthy: loss")

    # which of two grids wins, and by what?
    follow(page, "Runs")
    page.locator(".ag-row").first.wait_for()
    for label in ("testbed/2x2x2x1-measured", "testbed/8x1x1x1-measured"):
        pick(page, label)
    page.get_by_role("button", name="Compare").click()
    expect(page.locator("#content")).to_contain_text(
        re.compile(r"8x1x1x1-measured wins: 1\.\d\d × .* the largest part of .*: ")
    )

    # who was late at step 7?
    follow(page, "Runs")
    page.locator(".ag-row").first.wait_for()
    for label in ("testbed/2x2x2x1-measured", "testbed/8x1x1x1-measured"):
        pick(page, label)
    expect(page.locator("#chosen")).to_have_text("Nothing is chosen.")
    pick(page, "late")
    page.get_by_role("button", name="Timeline", exact=True).click()
    expect(page.locator("#content h1")).to_have_text("Timeline")
    choose(page, "step", "7")
    expect(page.locator("#content")).to_contain_text("(step 7)")
    page.get_by_label("Search ops by name").fill("wait")
    page.locator("#timeline-found .ag-row").first.click()
    expect(page.locator("#timeline-panel")).to_contain_text("Rank 1 came last, 500 ns after the first")

    # what would 1.4 times the NIC give?
    follow(page, "What-if")
    page.get_by_label("NIC rate, times").fill("1.4")
    expect(page.locator("#whatif-status")).to_contain_text(re.compile("× (faster|slower)|as fast"), timeout=2 * LONG)

    assert time.monotonic() - began < PATIENCE_SECONDS


def test_the_wheel_zooms_at_the_pointer_and_back_undoes_it(stranger: Visitor, queries):
    page = stranger.go("/timeline", queries["/timeline"])
    page.locator("#timeline .barlayer").first.wait_for(state="attached")
    expect(page.locator("#timeline .dash-graph--pending")).to_have_count(0)
    whole = window(page)
    box = page.locator("#timeline .nsewdrag").bounding_box()
    assert box is not None
    at = whole[0] + 0.25 * (whole[1] - whole[0])
    page.locator("#timeline-words").scroll_into_view_if_needed()
    box = page.locator("#timeline .nsewdrag").bounding_box()
    page.mouse.move(box["x"] + 0.25 * box["width"], box["y"] + box["height"] - 40)
    redrawn(page, lambda: page.mouse.wheel(0, -300))
    low, high = window(page)
    assert high - low < 0.8 * (whole[1] - whole[0])
    assert low + 0.25 * (high - low) == pytest.approx(at, abs=0.01 * (whole[1] - whole[0]))
    page.wait_for_url(re.compile("window="))
    redrawn(page, page.go_back)
    assert window(page) == pytest.approx(whole)
    assert "window=" not in page.url


def test_a_click_opens_a_panel_and_frames_the_op(stranger: Visitor, queries):
    page = stranger.go("/timeline", queries["/timeline"])
    page.locator("#timeline .barlayer .point").first.wait_for(state="attached")
    expect(page.locator("#timeline .dash-graph--pending")).to_have_count(0)
    page.locator("#timeline-frame").focus()
    page.keyboard.press("n")
    expect(page.locator("#timeline-panel")).to_contain_text("rank: ")
    page.wait_for_url(re.compile(r"op=[01]\.\d+"))
    expect(page.locator("#timeline .shapelayer path")).not_to_have_count(0)
    page.get_by_role("button", name="Close the panel").click()
    expect(page.locator("#timeline-panel")).to_have_text("")


def test_a_bar_is_reached_by_keyboard(stranger: Visitor, queries):
    page = stranger.go("/verdict", queries["/verdict"])
    page.locator("#waterfall .point").first.wait_for()
    page.get_by_role("figure").first.focus()
    for _ in range(3):  # past both steps, to the first term
        page.keyboard.press("ArrowRight")
    expect(page.locator("#waterfall .hoverlayer .hovertext")).to_have_count(1)
    page.keyboard.press("Enter")
    expect(page.locator("#content h1")).to_have_text("Timeline")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_what_the_pointer_shows_can_be_read(browser, server, queries, theme):
    """Words and their ground differ in lightness by 4.5 to 1, by WCAG's formula."""
    visitor = Visitor(browser, server, theme)
    page = visitor.go("/verdict", queries["/verdict"])
    page.locator("#waterfall .point").first.wait_for()
    page.get_by_role("figure").first.focus()
    page.keyboard.press("ArrowRight")
    hover = page.locator("#waterfall .hoverlayer .hovertext")
    colours = [hover.locator(part).first.evaluate("node => getComputedStyle(node).fill") for part in ("path", "text")]
    light = sorted(luminance([int(n) for n in re.findall(r"\d+", one)[:3]]) for one in colours)
    assert (light[1] + 0.05) / (light[0] + 0.05) >= 4.5
    visitor.context.close()


def luminance(rgb: list[int]) -> float:
    linear = [c / 12.92 if (c := n / 255) <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for n in rgb]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def test_a_live_training_is_drawn_on_without_a_reload(stranger: Visitor, root):
    import json

    from tests.dashboards.serving import step_line, write_training

    folder = write_training(root / "live")
    page = stranger.go("/training")
    page.get_by_label("trainings").first.wait_for()
    page.evaluate("window.same = true")
    expect(page.locator("#training-table")).to_contain_text("40")
    with (folder / "metrics.jsonl").open("a") as file:
        file.write(json.dumps(step_line(1233, 2.0)) + "\n")
    page.locator("#training-table").scroll_into_view_if_needed()  # what nobody sees is not drawn
    expect(page.locator("#training-table")).to_contain_text("1,234", timeout=2 * LONG)
    assert page.evaluate("window.same") is True
    for path in sorted(folder.rglob("*"), reverse=True):
        path.rmdir() if path.is_dir() else path.unlink()
    folder.rmdir()
