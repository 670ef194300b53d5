"""The shell of the pages: one head, facts and body, in which no word of a stranger is obeyed."""

from __future__ import annotations

import html.parser
import json
import subprocess
import sys

import pytest

from twin.pages.shell import filled, printable

EVIL = '</title></script><script>alert("1")</script><!-- {{ 7 * 7 }} {% raw %} " onload=x \x1b[31m \ud800'
TEMPLATE = "timeline.html"


class Page(html.parser.HTMLParser):
    """Tags, words of elements, and scripts of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.words: dict[str, list[str]] = {}
        self._open = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs
        self._open = tag

    def handle_data(self, data: str) -> None:
        self.words.setdefault(self._open, []).append(data)


def shell(word: str, *, data: object = None, plotly: bool = False) -> Page:
    page = filled("twin.pages", TEMPLATE, title=word, facts=[(word, word)], data=data, plotly=plotly)
    page.encode()  # no lone surrogate is left
    return Page(page)


def test_words_of_strangers_are_shown_and_not_obeyed():
    plain, evil = shell("plain"), shell(EVIL)
    assert evil.tags == plain.tags
    assert {name for name, _ in evil.attributes} == {name for name, _ in plain.attributes}
    shown = printable(EVIL)
    assert "\x1b" not in shown
    assert "".join(evil.words["title"]).strip() == shown
    assert evil.words["dt"][0] == evil.words["dd"][0] == shown


def test_data_travel_as_json_that_closes_no_script():
    page = shell("plain", data={"name": EVIL})
    assert page.tags.count("script") == 1
    assert json.loads(page.words["script"][0]) == {"name": EVIL}


def test_numbers_that_json_does_not_know_are_refused():
    with pytest.raises(ValueError, match="not JSON compliant"):
        shell("plain", data=[float("nan")])


def test_a_page_without_plotly_may_run_nothing():
    page = shell("plain")
    assert "script" not in page.tags
    assert ("content", "default-src 'none'; style-src 'unsafe-inline'") in page.attributes


def test_a_word_that_a_template_wants_and_nobody_gives_is_an_error():
    from jinja2 import UndefinedError

    with pytest.raises(UndefinedError):
        filled("twin.compare", "page.html", title="", facts=[])


@pytest.mark.process
@pytest.mark.quick
def test_jinja_is_loaded_only_when_a_page_is_written():
    modules = ("twin.cli", "twin.pages.timeline", "twin.compare.page", "twin.search.page", "twin.studies.page")
    code = f"import sys, {', '.join(modules)}; sys.exit(bool({{'jinja2', 'markupsafe', 'plotly'}} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
