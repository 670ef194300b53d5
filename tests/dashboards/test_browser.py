"""What a visitor does, in Debian's Chromium: from the list of runs to the op that differs."""

from __future__ import annotations

import csv
import re
import urllib.parse
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from dashboards.page import Page
from dashboards.pages import PAGES
from tests.dashboards.serving import Server
from tests.tiers import quick

SHORT, LONG = 5_000, 15_000
"""Milliseconds that an action, and what a server draws, may take on a loaded machine."""
PAIR = ("by-hand/predicted", "by-hand/measured")


class Visitor:
    """A signed-in browser window that notes whatever goes wrong in it."""

    def __init__(self, browser: Any, server: Server, theme: str = "light", **options: Any) -> None:
        self.server, self.theme, self.wrong = server, theme, []
        self.context = browser.new_context(
            viewport={"width": 1400, "height": 900}, color_scheme=theme, accept_downloads=True, **options
        )
        self.context.set_default_timeout(LONG)
        self.page = self.context.new_page()
        self.page.on("console", self._console)
        self.page.on("pageerror", lambda error: self.wrong.append(f"error: {error}"))
        self.page.on("request", self._request)
        self.page.on("response", lambda r: r.status >= 400 and self.wrong.append(f"{r.status} {r.url}"))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning") and "GPU stall" not in message.text:
            self.wrong.append(f"{message.type}: {message.text}")

    def _request(self, request: Any) -> None:
        if urllib.parse.urlsplit(request.url).netloc != f"127.0.0.1:{self.server.port}" and not request.url.startswith(
            ("data:", "blob:")
        ):
            self.wrong.append(f"another host: {request.url}")

    def go(self, path: str, query: dict[str, str] | None = None) -> Any:
        """Open a page, showing the token, and wait until it is drawn."""
        text = urllib.parse.urlencode({**(query or {}), "token": self.server.token})
        self.page.goto(f"{self.server.address}{path}?{text}")
        self.page.locator("#content h1").wait_for()
        return self.page

    def query(self) -> dict[str, str]:
        return dict(urllib.parse.parse_qsl(urllib.parse.urlsplit(self.page.url).query))


@pytest.fixture(scope="module")
def window_of_all(browser, server) -> Iterator[Visitor]:
    """One window whose cache all tests share: the first load of all scripts takes seconds."""
    found = Visitor(browser, server)
    yield found
    found.context.close()


@pytest.fixture
def visitor(window_of_all: Visitor) -> Iterator[Visitor]:
    window_of_all.wrong.clear()
    yield window_of_all
    window_of_all.page.evaluate("localStorage.clear()")
    assert window_of_all.wrong == []


def expect(locator: Any) -> Any:
    from playwright.sync_api import expect as expected

    return expected(locator)


def window(page: Any) -> tuple[float, float]:
    """The seconds that the timeline shows."""
    script = "document.querySelector('#timeline .js-plotly-plot')._fullLayout.xaxis.range.map(Number)"
    low, high = page.evaluate(script)
    return low, high


def redrawn(page: Any, action: Any) -> str:
    """Do something that has the timeline drawn anew; return what is said of it."""
    words = page.locator("#timeline-words")
    before = words.inner_text()
    action()
    expect(words).not_to_have_text(before, timeout=LONG)
    return str(words.inner_text())


def ops(words: str) -> int:
    return int(re.search(r"([\d,]+) ops", words)[1].replace(",", ""))


def test_from_the_list_of_runs_to_the_verdict(visitor):
    page = visitor.go("/")
    for label in PAIR:
        page.locator(".ag-cell", has_text=re.compile(f"^{label}$")).first.click(modifiers=["ControlOrMeta"])
    page.get_by_role("button", name="Verdict").click()
    expect(page.locator("#content h1")).to_have_text("Verdict")
    expect(page.locator("#content")).to_contain_text(re.compile(r"Predicted 18 ns, measured 33 ns"))
    assert {"run", "other"} <= set(visitor.query())


def test_a_bar_of_the_verdict_leads_to_its_ops(visitor, queries):
    page = visitor.go("/verdict", queries["/verdict"])
    bars = page.locator("#waterfall .point")
    bars.first.wait_for()
    labels = page.evaluate("document.querySelector('#waterfall .js-plotly-plot').data.flatMap(t => [...t.y])")
    number = next(i for i, label in enumerate(labels) if "transfer" in label)
    bars.nth(number).locator("path").hover(force=True)
    bars.nth(number).locator("path").click(force=True)
    expect(page.locator("#content h1")).to_have_text("Timeline")
    assert visitor.query()["show"] == labels[number].rsplit(maxsplit=1)[-1]
    expect(page.locator("#timeline-words")).to_contain_text("ops")


def test_zooming_until_bars_appear(visitor, queries):
    page = visitor.go("/timeline", {"run": queries["/ranks"]["run"]})
    words = page.locator("#timeline-words")
    expect(words).to_contain_text("too many for bars")
    expect(page.locator("#timeline .imagelayer image")).to_have_count(1)
    page.locator("#timeline-frame").focus()
    for _ in range(12):
        if "one bar each" in redrawn(page, lambda: page.keyboard.press("+")):
            break
    expect(words).to_contain_text("one bar each")
    assert 0 < page.locator("#timeline .barlayer .point").count() <= 3000


def test_keys_move_the_timeline(visitor, queries):
    page = visitor.go("/timeline", queries["/timeline"])
    page.locator("#timeline .barlayer, #timeline .hm").first.wait_for(state="attached")
    page.locator("#timeline-frame").focus()
    whole = window(page)
    redrawn(page, lambda: page.keyboard.press("w"))
    zoomed = window(page)
    assert zoomed[1] - zoomed[0] == pytest.approx(0.6 * (whole[1] - whole[0]), rel=1e-6)
    redrawn(page, lambda: page.keyboard.press("ArrowRight"))
    moved = window(page)
    assert moved[0] - zoomed[0] == pytest.approx(0.25 * (zoomed[1] - zoomed[0]), rel=1e-6)
    redrawn(page, lambda: page.keyboard.press("a"))
    assert window(page) == pytest.approx(zoomed)
    redrawn(page, lambda: page.keyboard.press("Home"))
    assert window(page) == pytest.approx(whole)
    page.keyboard.press("Escape")
    assert page.evaluate("document.activeElement === document.body")


def test_a_key_asks_for_the_picture_and_its_sums_alone(visitor, names):
    """The picture that is there is stretched within its axes, not drawn again; neither menu nor script is asked for."""
    page = visitor.go("/timeline", {"run": names["gpt-320b-frontier"]})
    page.locator("#timeline-worst .ag-row").first.wait_for()  # the last that comes of itself
    page.wait_for_load_state("networkidle")
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.post_data or request.url))
    page.locator("#timeline-frame").focus()
    page.evaluate("""window.stretched = null; new MutationObserver(() => {
        const image = document.querySelector("#timeline [clip-path] > .imagelayer[transform] image");
        if (image) window.stretched = image.closest(".imagelayer").parentNode.getAttribute("clip-path");
    }).observe(document.querySelector("#timeline"), {subtree: true, attributes: true})""")
    redrawn(page, lambda: page.keyboard.press("w"))
    page.wait_for_load_state("networkidle")
    sent = [one for one in asked if "_favicon" not in one]
    assert [next(w for w in ("timeline-words", "timeline-found-rows") if w in one) for one in sent] == [
        "timeline-words",
        "timeline-found-rows",
    ]
    clip = page.evaluate("window.stretched")
    assert page.locator(f"clipPath{clip.removeprefix('url(').removesuffix(')')} rect").count() == 1
    assert page.locator("#timeline .layer-subplot[clip-path], #timeline .imagelayer[transform]").count() == 0


def test_a_zoom_that_is_overtaken_leaves_nothing_stretched(visitor, names):
    """The wheel turns, and all is asked for before its answer is there."""
    page = visitor.go("/timeline", {"run": names["gpt-320b-frontier"]})
    page.locator("#timeline .hm").first.wait_for(state="attached")
    page.locator("#timeline .nsewdrag").first.hover()
    page.mouse.wheel(0, -300)
    page.wait_for_url(re.compile("window="))
    page.locator("#timeline-frame").focus()
    page.keyboard.press("w")
    page.get_by_role("button", name="Show all").click()
    page.wait_for_load_state("networkidle")
    expect(page.locator("#timeline .imagelayer[transform], #timeline [clip-path] > .imagelayer")).to_have_count(0)


def test_the_pointer_tells_what_a_place_of_the_picture_holds(visitor, names):
    page = visitor.go("/timeline", {"run": names["gpt-320b-frontier"]})
    page.locator("#timeline .hm").first.wait_for(state="attached")
    box = page.locator("#timeline .nsewdrag").first.bounding_box()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 10)
    page.mouse.move(box["x"] + box["width"] / 2 + 3, box["y"] + 12)
    told = page.locator("#timeline .hoverlayer .hovertext")
    expect(told).to_contain_text(re.compile(r"rank 0.* \d+(\.\d+)? %.*around"))


def test_scripts_are_asked_for_once(visitor, server):
    """What has its version in its address stays in the cache; Plotly is one of these."""
    page = visitor.go("/")
    address = page.locator("meta[name=plotly]").get_attribute("content")
    styles = page.locator("link[rel=stylesheet][href*='style.css']").get_attribute("href")
    for path in (address, styles):  # of megabytes, where others may have the cores
        answer = page.request.get(server.address + path, timeout=2 * LONG)
        assert "max-age=31536000" in answer.headers.get("cache-control", ""), path
    page.wait_for_function("!!(window.Plotly && window.Plotly.react)", timeout=2 * LONG)
    assert page.locator("script[src*='plotly.min.js']").count() == 0


EARLY = """
addEventListener("DOMContentLoaded", () => new MutationObserver((_, self) => {
  const words = document.getElementById("timeline-words");
  if (!words || !document.querySelector("#timeline .barlayer, #timeline .hm")) return;
  self.disconnect();
  document.documentElement.dataset.before = words.innerText;
  document.getElementById("timeline-frame").focus();
  document.dispatchEvent(new KeyboardEvent("keydown", {key: "w"}));
}).observe(document.body, {childList: true, subtree: true}));
"""
"""Presses a key in the moment in which the bars appear, before Dash listens to the figure."""


def test_a_key_pressed_too_early_is_not_lost(browser, server, queries):
    visitor = Visitor(browser, server)
    visitor.page.add_init_script(EARLY)
    page = visitor.go("/timeline", queries["/timeline"])
    drawn = page.locator("html[data-before]")
    drawn.wait_for(state="attached", timeout=2 * LONG)
    before = drawn.get_attribute("data-before")
    expect(page.locator("#timeline-words")).not_to_have_text(before, timeout=LONG)
    expect(page.locator("#timeline-words")).to_contain_text("ops")
    visitor.context.close()
    assert visitor.wrong == []


def test_a_shared_address_shows_the_same(visitor, browser, server, queries):
    """The largest difference, looked at by one visitor and then by another."""
    page = visitor.go("/timeline", queries["/timeline"])
    page.locator("#timeline .barlayer, #timeline .hm").first.wait_for(state="attached")
    words = redrawn(page, page.get_by_role("button", name="Largest difference").click)
    page.wait_for_url(re.compile("window="))
    assert ops(words) < 3000
    other = Visitor(browser, server)
    address = urllib.parse.urlsplit(page.url)
    shared = other.go(address.path, visitor.query())
    expect(shared.locator("#timeline-words")).to_have_text(words)
    shared.locator("#timeline .barlayer .point").first.wait_for(state="attached")
    assert window(shared) == pytest.approx(window(page), rel=1e-6)
    assert "token" not in shared.url
    other.context.close()
    assert other.wrong == []


def test_the_theme_can_be_switched_and_stays(visitor, queries):
    page = visitor.go("/verdict", queries["/verdict"])
    scheme = page.locator("html")
    expect(scheme).to_have_attribute("data-mantine-color-scheme", "light")
    page.get_by_label("Light or dark").click()
    expect(scheme).to_have_attribute("data-mantine-color-scheme", "dark")
    page.reload()
    expect(scheme).to_have_attribute("data-mantine-color-scheme", "dark")


def test_an_answer_that_takes_its_time_is_seen_to_be_on_its_way(visitor, queries):
    """The page stays as it was, with a sign above it, until the next one is there."""
    page = visitor.go("/verdict", queries["/verdict"])
    page.wait_for_load_state("networkidle")
    held: list[Any] = []
    page.route("**/_dash-update-component*", lambda route: held.append(route))  # noqa: PLW0108  Playwright looks into it
    page.locator("nav").get_by_role("link", name="Memory").click()
    sign = page.locator("[class*=sk-circle]")
    expect(sign.first).to_be_visible()
    expect(page.locator("#content h1")).to_have_text("Verdict")
    assert page.evaluate("document.documentElement.scrollHeight > 1.5 * innerHeight")
    top = "down => { scrollTo(0, down); return document.querySelector('.dash-sk-circle').getBoundingClientRect().y; }"
    for down in (0, 10**6):  # at the top of a tall page, and at its end
        assert 1 / 4 < page.evaluate(top, down) / page.viewport_size["height"] < 3 / 4
    assert held
    page.unroute("**/_dash-update-component*")  # what was held goes on
    expect(page.locator("#content h1")).to_have_text("Memory")
    expect(sign).to_have_count(0)


def test_tables_and_figures_can_be_saved(visitor, queries, tmp_path: Path):
    page = visitor.go("/verdict", queries["/verdict"])
    page.get_by_role("tab", name="Table").first.click()
    with page.expect_download() as table:
        page.get_by_role("button", name="Download as CSV").first.click()
    table.value.save_as(tmp_path / "terms.csv")
    rows = list(csv.DictReader((tmp_path / "terms.csv").read_text(encoding="utf-8-sig").splitlines()))
    assert rows
    assert {"term", "difference (s)"} <= set(rows[0])
    page.get_by_role("tab", name="Figure").first.click()
    page.locator("#waterfall").hover()
    with page.expect_download() as figure:
        page.locator("#waterfall .modebar-btn").first.click()
    figure.value.save_as(tmp_path / "figure")
    assert "<svg" in (tmp_path / "figure").read_text()[:500]


def test_names_of_strangers_are_text_in_the_browser(visitor, names):
    query = {"run": names["hostile/predicted"], "other": names["hostile/measured"]}
    for path in ("/", "/timeline", "/trust"):
        page = visitor.go(path, query)
        page.locator(".ag-root, .js-plotly-plot").first.wait_for(state="attached")
        assert page.evaluate("window.hacked") is None
        assert page.locator("a[href^=javascript], img[src=x]").count() == 0


@pytest.fixture(scope="module", params=["light", pytest.param("dark", marks=pytest.mark.slow)])
def looker(request, browser, server) -> Iterator[Visitor]:
    """One window for all pages of a theme, into which a script may be put."""
    found = Visitor(browser, server, request.param, bypass_csp=True)
    yield found
    found.context.close()


@pytest.mark.parametrize("of", quick(PAGES, next(p for p in PAGES if p.path == "/verdict")), ids=lambda p: p.path)
def test_every_page_is_quiet_and_accessible(looker: Visitor, queries, of: Page):
    """No error, no other host, no button to a cloud, and nothing serious that axe finds."""
    if find_spec("axe_playwright_python") is None:
        pytest.skip("axe-playwright-python is not installed")
    import axe_playwright_python

    axe = Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text(encoding="utf-8")
    looker.wrong.clear()
    page = looker.go(of.path, queries[of.path])
    page.wait_for_load_state("networkidle")
    expect(page.locator("#content .problem")).to_have_count(0)
    if page.locator(".dash-graph:visible").count():
        page.locator(".js-plotly-plot .main-svg").first.wait_for()
    assert page.locator(".modebar").get_by_label(re.compile("share|cloud", re.IGNORECASE)).count() == 0
    if page.locator(".ag-root:visible, #timeline-worst-rows").count():
        page.locator(".ag-header-cell:visible").first.wait_for()
    page.add_script_tag(content=axe)
    rules = ", runOnly: ['color-contrast']" if looker.theme == "dark" else ""  # the others know no colours
    found = page.evaluate(f"axe.run(document, {{resultTypes: ['violations']{rules}}})")["violations"]
    serious = [
        (v["id"], [n["html"][:200] for n in v["nodes"][:3]]) for v in found if v["impact"] in ("serious", "critical")
    ]
    assert serious == []
    assert looker.wrong == []
