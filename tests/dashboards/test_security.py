"""Who gets an answer, and what an answer allows, by a real server."""

from __future__ import annotations

import re
import socket
import urllib.parse

import pytest

from dashboards.app import create_app
from dashboards.parts import GRAPH_CONFIG
from dashboards.security import MAX_REQUEST_BYTES
from dashboards.settings import Settings
from tests.dashboards.serving import Server, served
from twin.description.problems import DescriptionError

PATHS = [
    "/",
    "/verdict",
    "/_dash-layout",
    "/_dash-dependencies",
    "/assets/style.css",
    "/nothing",
    "/_favicon.ico",
    "/_dash-component-suites/dash/deps/react@18.js",
    "/assets/../app.py",
]


@pytest.fixture(scope="module")
def cookie(server: Server) -> str:
    return server.sign_in()


def callback(output: str, **changes) -> dict:
    """A request for what stands under an address."""
    asked = {
        "output": output,
        "outputs": {"id": "chosen", "property": "children"},
        "inputs": [{"id": "runs", "property": "selectedRows", "value": []}],
        "changedPropIds": ["runs.selectedRows"],
    }
    return asked | changes


def show(pathname: str, search: str, pages: int) -> dict:
    """The request that the frame sends for a page."""
    return {
        "output": '..content.children...{"path":["ALL"],"type":"link"}.href...{"path":["ALL"],"type":"link"}.active..',
        "outputs": [
            {"id": "content", "property": "children"},
            *(
                [
                    [{"id": {"path": str(i), "type": "link"}, "property": p} for i in range(pages)]
                    for p in ("href", "active")
                ]
            ),
        ],
        "inputs": [
            {"id": "address", "property": "pathname", "value": pathname},
            {"id": "address", "property": "search", "value": search},
        ],
        "changedPropIds": ["address.search"],
    }


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("key", ["", "?token=", "?token=wrong", "?token=a-token-of-tests-012345678", "?token=%C3%A9"])
def test_without_the_token_nothing_is_shown(server: Server, path: str, key: str):
    answer = server.ask(path + key)
    assert answer.status == 403
    assert "set-cookie" not in answer.headers
    assert answer.headers["content-type"].startswith("text/plain")
    assert "Fourfold</title>" not in answer.text


def test_a_wrong_cookie_does_not_help(server: Server, cookie: str):
    for wrong in ("", server.token, cookie[:-1], cookie + "0", "é", "\N{SNOWMAN}".encode().decode("latin-1")):
        assert server.ask("/", cookie=wrong).status == 403


def test_the_token_becomes_a_cookie_and_leaves_the_address(server: Server):
    answer = server.ask(f"/timeline?run=a%26b&token={server.token}&ranks=0-3")
    assert answer.status == 302
    address = urllib.parse.urlsplit(answer.headers["location"])
    assert (address.netloc, address.path) in (("", "/timeline"), (f"127.0.0.1:{server.port}", "/timeline"))
    assert urllib.parse.parse_qs(address.query) == {"run": ["a&b"], "ranks": ["0-3"]}
    set_cookie = answer.headers["set-cookie"]
    assert {"HttpOnly", "SameSite=Strict", "Path=/"} <= {part.strip() for part in set_cookie.split(";")}
    assert server.token not in set_cookie
    assert server.ask("/", cookie=server.sign_in()).status == 200


def test_the_way_from_the_token_leads_nowhere_else(server: Server):
    """`//host/` would be an address of another host."""
    for path in ("//other.example/x", "/\\other.example", "/%0d%0aX-Evil:1", "///other.example"):
        answer = server.ask(f"{path}?token={server.token}")
        location = answer.headers.get("location", "/")
        assert urllib.parse.urlsplit(location).netloc in ("", f"127.0.0.1:{server.port}"), location
        assert not location.startswith(("//", "/\\"))
        assert "x-evil" not in answer.headers


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:80",
        "127.0.0.1.evil.example",
        "127.0.0.2",
        "0.0.0.0",
        "localhost.evil.example",
        "",
        "[::2]",
        "localhost@evil.example",
    ],
)
def test_another_name_for_this_host_is_refused(server: Server, cookie: str, host: str):
    """What a name that was pointed at 127.0.0.1 would send (DNS rebinding)."""
    assert server.ask("/", cookie=cookie, Host=host).status == 400
    assert server.ask(f"/?token={server.token}", Host=host).status == 400


def test_its_own_names_are_answered(server: Server, cookie: str):
    for host in ("localhost", "LOCALHOST:1", f"127.0.0.1:{server.port}", "[::1]", "[::1]:80"):
        assert server.ask("/", cookie=cookie, Host=host).status == 200


@pytest.mark.parametrize("origin", ["http://evil.example", "null", "http://127.0.0.1:1", "http://localhost", "x", ""])
def test_other_sites_cannot_ask_in_a_visitors_name(server: Server, cookie: str, origin: str):
    body = b"{}"
    answer = server.ask("/_dash-update-component", method="POST", body=body, cookie=cookie, Origin=origin)
    assert answer.status == 403
    own = {"Origin": f"http://127.0.0.1:{server.port}", "Content_Type": "application/json"}
    assert server.ask("/_dash-update-component", method="POST", body=body, cookie=cookie, **own).status != 403


@pytest.mark.parametrize("path", [*PATHS, "/_dash-update-component"])
def test_every_answer_limits_what_a_page_may_do(server: Server, cookie: str, path: str):
    for answer in (server.ask(path, cookie=cookie), server.ask(path), server.ask(path, Host="evil.example")):
        policy = answer.headers["content-security-policy"]
        rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
        assert rules["default-src"] == rules["connect-src"] == "'self'"
        assert rules["object-src"] == rules["frame-ancestors"] == rules["base-uri"] == "'none'"
        assert all(s == "'self'" or re.fullmatch(r"'sha256-[\w+/=]+'", s) for s in rules["script-src"].split())
        assert "unsafe-eval" not in policy
        assert "http:" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"


def test_what_a_page_loads_comes_from_this_server(server: Server, cookie: str):
    page = server.ask("/", cookie=cookie).text
    assert not re.findall(r"""(?:src|href)=["'](?:https?:)?//""", page)
    assert server.token not in page


def test_figures_have_no_button_that_sends_them_away():
    assert GRAPH_CONFIG["showSendToCloud"] is False
    assert GRAPH_CONFIG["displaylogo"] is False
    assert not GRAPH_CONFIG.get("plotlyServerURL", "")


def test_large_requests_are_refused(server: Server, cookie: str):
    answer = server.call(cookie, b'{"a": "' + b"x" * (MAX_REQUEST_BYTES + 1) + b'"}')
    assert answer.status == 413
    assert server.ask("/", cookie=cookie).status == 200


OUTSIDE = [
    "/assets/../app.py",
    "/assets/%2e%2e/app.py",
    "/assets/..%2fapp.py",
    "/assets/....//app.py",
    "/../etc/passwd",
    "/assets//etc/passwd",
    "/%2e%2e/%2e%2e/etc/passwd",
    "/assets/%252e%252e/app.py",
    "/assets/..\\app.py",
    "/_dash-component-suites/dash/../../../etc/passwd",
    "/_dash-component-suites/os/path.py",
    "/_dash-component-suites/dashboards/app.py",
    "/_dash-component-suites/dash/%2e%2e/dash.py",
    "/assets/%00",
    "/_dash-component-suites/dash/__init__.py",
]


@pytest.mark.parametrize("path", OUTSIDE)
def test_no_path_leads_to_a_file(server: Server, cookie: str, path: str):
    answer = server.ask(path, cookie=cookie)
    assert "root:" not in answer.text
    assert "import annotations" not in answer.text
    assert "import " not in answer.text.splitlines()[0]
    assert "Traceback" not in answer.text


JUNK = [
    b"",
    b"{",
    b"[]",
    b"null",
    b"1",
    b'"x"',
    b"\xff\xfe",
    b"{}",
    b"[" * 10_000,
    callback("nothing.children"),
    callback("chosen.children", outputs=None),
    callback("chosen.children", inputs=None),
    callback("chosen.children", inputs=[]),
    callback("chosen.children", inputs=[{}]),
    callback("chosen.children", changedPropIds=None),
    callback("__import__('os').x"),
    callback("..a.b...c.d.."),
    callback("chosen.children", inputs=[{"id": "runs", "property": "selectedRows", "value": {"a": [1]}}]),
    callback("chosen.children", inputs=[{"id": "runs", "property": "selectedRows", "value": [{"name": {}}]}]),
    callback("chosen.children", inputs=[{"id": "runs", "property": "selectedRows", "value": [[], 1]}]),
    show({"a": 1}, "?run=x", 3),
    show("/verdict", [1, 2], 3),
    show("/x" * 5000, "?" * 5000, 3),
    show("/timeline", "?run=../../etc/passwd&other=%2Fetc%2Fpasswd", 3),
]


@pytest.mark.parametrize("body", JUNK, ids=lambda b: str(b)[:40])
def test_junk_gets_no_details(server: Server, cookie: str, body):
    answer = server.call(cookie, body)
    assert answer.status in (200, 204, 400, 404, 415, 500)
    assert len(answer.text) < 20_000
    for word in ("Traceback", 'File "', "site-packages", "/dash", "Error:", "root:x:"):
        assert word not in answer.text.replace("/dash/", "")
    assert server.ask("/", cookie=cookie).status == 200


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "TRACE", "CONNECT", "PROPFIND"])
def test_other_methods_do_nothing(server: Server, cookie: str, method: str):
    assert server.ask("/_dash-layout", method=method, cookie=cookie).status in (400, 404, 405, 501)


def test_neither_debugger_nor_tools_for_machines_answer(server: Server, cookie: str, monkeypatch, root):
    """Also where variables of the environment, or their names in later versions, would turn them on."""
    for path in (
        "/_mcp",
        "/mcp",
        "/_dash-mcp",
        "/_alive_x",
        "/_reload-hash",
        "/console",
        "/?__debugger__=yes&cmd=resource",
    ):
        answer = server.ask(path, cookie=cookie)
        assert "EVALEX" not in answer.text
        assert path == "/" or "jsonrpc" not in answer.text
    for name in ("DASH_DEBUG", "DASH_UI", "DASH_HOT_RELOAD", "DASH_MCP_ENABLED", "FLASK_DEBUG"):
        monkeypatch.setenv(name, "1")
    monkeypatch.setenv("DASH_SERVE_LOCALLY", "false")
    with served(Settings(root, token="")) as other:
        page = other.ask("/").text
        assert '"hot_reload"' not in page
        assert '"ui":true' not in page.replace(" ", "")
        assert "cdn" not in page
        rules = [str(rule) for rule in create_app(Settings(root, token="")).server.url_map.iter_rules()]
        assert not [rule for rule in rules if "mcp" in rule.lower()]
        for rule in ("/_mcp", "/mcp"):
            answer = other.ask(
                rule,
                method="POST",
                body=b'{"jsonrpc":"2.0","id":1,"method":"initialize"}',
                Content_Type="application/json",
            )
            assert "jsonrpc" not in answer.text


def test_it_listens_on_this_host_only(server: Server):
    with socket.socket() as probe:
        probe.settimeout(2)
        own = {a[4][0] for a in socket.getaddrinfo(socket.gethostname(), None, socket.AF_INET)} - {"127.0.0.1"}
        for address in own or {"127.0.0.3"}:
            assert probe.connect_ex((address, server.port)) != 0


@pytest.mark.parametrize(
    ("changes", "word"), [({"prefix": "x/"}, "slash"), ({"prefix": "/x"}, "slash"), ({"token": "short"}, "16")]
)
def test_settings_that_cannot_work_are_refused(root, changes, word):
    with pytest.raises(DescriptionError, match=word):
        Settings(root, **changes)
    with pytest.raises(DescriptionError, match="not a directory"):
        Settings(root / "manifest.json")


def test_tokens_cannot_be_guessed(root):
    tokens = {Settings(root).token for _ in range(20)}
    assert len(tokens) == 20
    assert min(map(len, tokens)) >= 32
