"""A directory of runs, a server of it, and a browser: one of each for all tests of the dashboard."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dashboards.catalog import Catalog
from dashboards.page import PageContext
from dashboards.settings import Settings
from tests.compare.compare_traces import by_hand_measured, by_hand_predicted, table, write
from tests.dashboards import serving
from tests.dashboards.test_browser import Visitor
from tests.tiers import makes

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "runs"
TOKEN = "a-token-of-tests-0123456789"


@pytest.fixture(scope="session")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The example runs, and a pair of runs made by hand."""
    folder = tmp_path_factory.mktemp("dashboard") / "runs"
    shutil.copytree(EXAMPLES, folder)
    serving.write_training(folder / "training")
    write(folder / "late", "measured", *(table(serving.one_late(step, 500 * (step == 7)), step) for step in range(9)))
    write(folder / "by-hand" / "predicted", "predicted", table(by_hand_predicted()))
    write(folder / "by-hand" / "measured", "measured", table(by_hand_measured()))
    serving.write_hostile(folder / "hostile")
    return folder


@pytest.fixture(scope="session")
def context(root: Path) -> PageContext:
    return PageContext(Settings(root), Catalog(root))


@pytest.fixture(scope="session")
def names(context: PageContext) -> dict[str, str]:
    """What addresses call each entry, by its label."""
    return {entry.label: entry.name for entry in context.catalog.entries()}


@pytest.fixture(scope="session")
def queries(names: dict[str, str]) -> dict[str, dict[str, str]]:
    """Good parameters for each page, by its path."""
    pair = {"run": names["testbed/2x2x2x1-predicted"], "other": names["testbed/2x2x2x1-measured"]}
    return {
        "/": {},
        "/training": {"run": names["training"]},
        "/verdict": pair,
        "/timeline": pair,
        "/compare": {"run": names["testbed/2x2x2x1-measured"], "other": names["testbed/8x1x1x1-measured"]},
        "/communication": pair,
        "/memory": pair,
        "/trust": pair,
        "/report": pair,
        "/ranks": {"run": names["gpt-320b-frontier-every-rank"]},
        "/configurations": {"run": names["gpt-5b-search"]},
        "/scaling": {"run": names["weak-scaling"]},
        "/what-if": {"run": names["testbed/2x2x2x1-predicted"]},
        "/whatif": {"run": names["testbed/2x2x2x1-predicted"]},
    }


@pytest.fixture(scope="session")
def server(root: Path) -> Iterator[serving.Server]:
    """A server that asks for a token."""
    with serving.served(Settings(root, token=TOKEN)) as running:
        yield running


@pytest.fixture(scope="session")
@makes("browser")
def browser() -> Iterator[Any]:
    """Debian's Chromium; tests are skipped where it or Playwright is missing."""
    api = pytest.importorskip("playwright.sync_api", reason="Playwright is not installed")
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        pytest.skip("Chromium is not installed (Debian: apt-get install chromium)")
    api.expect.set_options(timeout=30_000)  # the default of 5 s measures how busy the machine is
    with api.sync_playwright() as playwright:
        running = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        yield running
        running.close()


@pytest.fixture
def visitor(browser: Any, server: serving.Server) -> Iterator[Visitor]:
    """Someone with a window of their own, in which nothing may go wrong."""
    found = Visitor(browser, server)
    yield found
    found.context.close()
    assert found.wrong == []
