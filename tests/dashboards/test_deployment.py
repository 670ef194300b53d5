"""The command, a proxy that strips a prefix, and gunicorn."""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from dashboards.settings import LOCAL_HOSTS, Settings, from_environment
from dashboards.wsgi import application
from tests.dashboards.conftest import TOKEN
from tests.dashboards.proxying import stripping
from tests.dashboards.serving import Server, served
from tests.dashboards.test_browser import Visitor
from twin.cli import main
from twin.description.problems import DescriptionError

PREFIX = "/user/me/proxy/8050/"
PATIENCE = 30.0
"""Seconds that a process may take to start on a loaded machine."""


@contextmanager
def started(
    *command: str, ended_by: signal.Signals = signal.SIGINT, **environment: str
) -> Iterator[subprocess.Popen[str]]:
    """Run a program of its own and end it, with what it has started, and nothing else."""
    env = {k: v for k, v in os.environ.items() if not k.startswith("FOURFOLD")} | environment
    process = subprocess.Popen(
        [sys.executable, *command],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=env,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.send_signal(ended_by)
        try:
            process.communicate(timeout=PATIENCE)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)  # its children hold what it prints open
            process.communicate()


def printed(process: subprocess.Popen[str], until: str) -> str:
    """Read what a program prints, up to a line with a word."""
    text = ""
    assert process.stdout is not None
    for line in process.stdout:
        text += line
        if until in line:
            return text
    raise AssertionError(f"it ended, saying {text}")


@pytest.mark.process
def test_the_command_prints_address_token_and_tunnel(root: Path):
    with started("-m", "twin", "dashboard", str(root)) as process:
        text = printed(process, "Ctrl-C")
        port, token = re.search(r"http://127\.0\.0\.1:(\d+)/\?token=([\w-]+)", text).groups()
        assert f"ssh -N -L {port}:127.0.0.1:{port} {socket.gethostname()}" in text
        server = Server(int(port), token)
        assert server.ask("/").status == 403
        assert server.ask("/", cookie=server.sign_in()).status == 200
        with started("-m", "twin", "dashboard", str(root), "--port", port) as second:
            out, _ = second.communicate(timeout=PATIENCE)
            assert second.returncode == 2
            assert "--port" in out
            assert "Traceback" not in out
    assert process.returncode in (0, 130)


@pytest.mark.process
def test_behind_a_proxy_it_prints_what_to_open_there(root: Path):
    with started("-m", "twin", "dashboard", str(root), "--prefix", PREFIX, "--host-name", "hub.example") as process:
        text = printed(process, "Ctrl-C")
        assert re.search(rf"^  {PREFIX}\?token=[\w-]+$", text, re.MULTILINE)
        assert "http://" not in text
        server = Server(int(re.search(r"port (\d+)", text)[1]), "")
        assert server.ask("/", Host="hub.example").status == 403
        assert server.ask("/", Host="evil.example").status == 400


@pytest.mark.parametrize(
    ("arguments", "word"),
    [
        (["nowhere"], "nowhere"),
        ([".", "--port", "70000"], "65535"),
        ([".", "--port", "x"], "port"),
        ([".", "--prefix", "x"], "slash"),
        ([".", "--prefix", "/x"], "slash"),
        (["setup.py"], "directory"),
    ],
)
def test_what_cannot_be_served_is_said(arguments, word, capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["dashboard", *arguments])
    captured = capsys.readouterr()
    assert ended.value.code == 2
    assert word in captured.err
    assert "Traceback" not in captured.err


def test_behind_a_proxy_that_strips_a_prefix(browser, root: Path, queries):
    """A page with figures and tables, its links, and another page, all under the prefix."""
    from playwright.sync_api import expect

    with served(Settings(root, token=TOKEN, prefix=PREFIX)) as behind, stripping(PREFIX, behind.port) as port:
        visitor = Visitor(browser, replace(behind, port=port))
        page = visitor.go(PREFIX.rstrip("/") + "/verdict", queries["/verdict"])
        page.locator("#waterfall .point").first.wait_for()
        assert page.url.startswith(f"http://127.0.0.1:{port}{PREFIX}verdict?")
        assert "token" not in page.url
        assert {c["path"] for c in visitor.context.cookies()} == {PREFIX}
        page.get_by_role("link", name="Timeline").click()
        expect(page.locator("#content h1")).to_have_text("Timeline")
        page.locator("#timeline-words").wait_for()
        assert page.url.startswith(f"http://127.0.0.1:{port}{PREFIX}timeline?")
        visitor.context.close()
        assert visitor.wrong == []


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.process
def test_under_gunicorn(root: Path):
    if importlib.util.find_spec("gunicorn") is None:
        pytest.skip("gunicorn is not installed")
    port = free_port()
    with started(
        "-m",
        "gunicorn",
        "--worker-class",
        "gthread",
        "--threads",
        "4",
        "--workers",
        "1",
        "--bind",
        f"127.0.0.1:{port}",
        "--no-control-socket",
        "dashboards.wsgi:application()",
        # at SIGINT gunicorn's worker shuts its threads down in a handler, and hangs if it was just starting one
        ended_by=signal.SIGTERM,
        FOURFOLD_DASHBOARD_RUNS=str(root),
        FOURFOLD_DASHBOARD_TOKEN=TOKEN,
        FOURFOLD_DASHBOARD_HOSTS="hub.example, other.example",
    ) as process:
        server, end = Server(port, TOKEN), time.monotonic() + PATIENCE
        while time.monotonic() < end and process.poll() is None:
            try:
                server.ask("/")
                break
            except OSError:
                time.sleep(0.2)
        assert server.ask("/").status == 403
        cookie = server.sign_in()
        assert server.ask("/", cookie=cookie).status == 200
        assert server.ask("/", cookie=cookie, Host="hub.example").status == 200
        assert server.ask("/", cookie=cookie, Host="evil.example").status == 400
        layout = server.ask("/_dash-layout", cookie=cookie)
        assert (layout.status, layout.headers["cache-control"]) == (200, "no-store")
        assert "unsafe-eval" not in layout.headers["content-security-policy"]


def test_settings_from_the_environment(root: Path, monkeypatch):
    given = {
        "FOURFOLD_DASHBOARD_RUNS": str(root),
        "FOURFOLD_DASHBOARD_TOKEN": TOKEN,
        "FOURFOLD_DASHBOARD_PREFIX": PREFIX,
        "FOURFOLD_DASHBOARD_HOSTS": "a.example,, b.example ",
    }
    found = from_environment(given)
    assert (found.root, found.token, found.prefix) == (root, TOKEN, PREFIX)
    assert found.hosts == (*LOCAL_HOSTS, "a.example", "b.example")
    assert from_environment({**given, "FOURFOLD_DASHBOARD_TOKEN": "none"}).token == ""
    for key in ("RUNS", "TOKEN"):
        with pytest.raises(DescriptionError, match=key):
            from_environment({k: v for k, v in given.items() if not k.endswith(key)})
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    assert application().name == "fourfold"
