"""Content begun before it is asked for: made once, taken once, and anew when it is old."""

from __future__ import annotations

import json
from threading import Event

import flask
import pytest
from dash import html

from dashboards.ahead import KEEP_SECONDS, MAX_BEGUN, Ahead
from dashboards.app import create_app
from dashboards.page import Page
from dashboards.settings import Settings
from twin.description.problems import fail


class Made:
    """Makes values, waiting for leave, and counts them."""

    def __init__(self) -> None:
        self.keys: list[str] = []
        self.begun, self.leave = Event(), Event()

    def __call__(self, key: str) -> tuple[str, int]:
        self.keys.append(key)
        self.begun.set()
        assert self.leave.wait(30)
        return key, len(self.keys)


def test_what_was_begun_is_taken_once():
    made = Made()
    ahead = Ahead(made)
    ahead.begin("a")
    assert made.begun.wait(30)
    made.leave.set()
    assert ahead.take("a") == ("a", 1)
    assert ahead.take("a") == ("a", 2)
    assert made.keys == ["a", "a"]


def test_what_still_waits_in_line_is_made_at_once():
    """The first key holds the only worker; the second does not wait for it."""
    made = Made()
    ahead = Ahead(lambda key: made(key) if key == "slow" else (key, 0))
    ahead.begin("slow")
    assert made.begun.wait(30)
    ahead.begin("quick")
    assert ahead.take("quick") == ("quick", 0)
    made.leave.set()
    assert ahead.take("slow") == ("slow", 1)


def test_what_is_old_is_made_anew():
    now = [0.0]
    made = Made()
    made.leave.set()
    ahead = Ahead(made, lambda: now[0])
    ahead.begin("a")
    assert made.begun.wait(30)
    now[0] = KEEP_SECONDS + 1
    assert ahead.take("a") == ("a", 2)


def test_of_what_nobody_takes_little_stays():
    made = Made()
    ahead = Ahead(made)
    for number in range(10 * MAX_BEGUN):
        ahead.begin(str(number))
    made.leave.set()
    assert ahead.take("1") == ("1", len(made.keys))
    assert len(made.keys) <= MAX_BEGUN + 2


def test_an_error_is_that_of_making_it():
    def wrong(key: str) -> str:
        raise fail("run", "is not there", key)

    ahead = Ahead(wrong)
    ahead.begin("a")
    with pytest.raises(ValueError, match="is not there"):
        ahead.take("a")


ASKED = {
    "output": "..content.children...titled.data..",
    "outputs": [{"id": "content", "property": "children"}, {"id": "titled", "property": "data"}],
    "inputs": [
        {"id": "address", "property": "pathname", "value": "/toy"},
        {"id": "address", "property": "search", "value": "?b=2&a=1"},
    ],
    "changedPropIds": ["address.pathname", "address.search"],
}


@pytest.mark.parametrize(("shows_token", "begun"), [(True, 1), (False, 0)])
def test_the_frame_of_a_page_begins_its_content(tmp_path, shows_token: bool, begun: int):
    """And only for those who may see it: who shows no token is refused, and has nothing made."""
    seen, came = [], Event()

    def shown(_context, query):
        seen.append(dict(query))
        came.set()
        return html.P("as made")

    app = create_app(Settings(tmp_path, token="secret" * 4), [Page("/toy", "Toy", shown)])
    client = app.server.test_client()
    assert isinstance(app.server, flask.Flask)
    host = {"Host": "127.0.0.1"}
    if shows_token:
        client.get("/toy?token=" + "secret" * 4, headers=host)
    client.get("/toy?a=1&b=2", headers=host)
    assert came.wait(30 if shows_token else 0.5) is bool(begun)
    assert seen == [{"a": "1", "b": "2"}] * begun
    if shows_token:
        answer = client.post("/_dash-update-component", json=ASKED, headers=host)
        assert "as made" in json.dumps(answer.get_json())
        assert len(seen) == 1
