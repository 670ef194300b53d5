"""What visitors put into addresses and forms, and what strangers' runs put under the dashboard's directory."""

from __future__ import annotations

import json
import shutil
import site
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import pytest
from hypothesis import strategies as st

from tests.fuzz.harness import cases, fuzz, guarded, survives, tree
from tests.fuzz.mutations import NUMBERS, WORDS

pytest.importorskip("dash", reason="the dashboard is not installed")

from dashboards.app import carried, content, create_app
from dashboards.catalog import Catalog
from dashboards.page import PageContext
from dashboards.pages import PAGES
from dashboards.query import query_of
from dashboards.settings import Settings
from dashboards.whatif.answer import Memory
from dashboards.whatif.base import base_of, job_file
from dashboards.whatif.form import FIELDS, KEYS, changed
from tests.dashboards import serving
from twin.strategies import load_job

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples" / "runs"
PATHS = [page.path for page in PAGES]
LINKS = ("href", "active", "description", "className", "aria-label")
LINK = '{"path":["ALL"],"type":"link"}'
CODE = (
    ROOT,
    Path(sys.prefix),
    Path(sys.base_prefix),
    *map(Path, site.getsitepackages()),
    Path("/usr"),
    Path("/proc/self"),
    Path("/etc/localtime"),
    Path("/etc/mime.types"),
)
"""Where Python itself reads; everything but the runs lies here."""


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("dashboard") / "runs"
    folder.mkdir()
    for name in (
        "gpt-5b-search",
        "weak-scaling",
        "gpt-320b-frontier",
        "testbed/2x2x2x1-predicted",
        "testbed/2x2x2x1-measured",
    ):
        shutil.copytree(EXAMPLES / name, folder / name)
    serving.write_hostile(folder / "hostile")
    return folder


@pytest.fixture(scope="module")
def context(root: Path) -> PageContext:
    return PageContext(Settings(root, token=""), Catalog(root))


@pytest.fixture(scope="module")
def client(root: Path) -> Iterator[Any]:
    server = create_app(Settings(root, token="")).server
    server.testing = False  # errors become answers, as visitors get them
    with server.test_client() as made:
        yield made


VALUES = st.one_of(
    st.sampled_from([str(n) for n in NUMBERS]),
    st.sampled_from(WORDS),
    st.text(max_size=30),
    st.just("0,3,8-15"),
    st.just("0-99999999999999999999"),
    st.just("٣"),
    st.just("²"),
    st.just("1,2"),
    st.just("0:5"),
    st.just("nan:inf"),
    st.just("step"),
    st.just("1e400,-1e400"),
    st.just("0.1,0.2"),
    st.just("x" * 5000),
    st.just("kind"),
)
PARAMETERS = [
    "run",
    "other",
    "step",
    "align",
    "ranks",
    "show",
    "colour",
    "window",
    "figure",
    "pair",
    "sections",
    "y",
    "z",
    "x",
    "data",
    "recompute",
    "sharding",
    "fits",
    "token",
    *KEYS,
]


def queries(context: PageContext) -> st.SearchStrategy[dict[str, str]]:
    """Parameters of an address; runs are mostly there."""
    names = st.one_of(st.sampled_from([entry.name for entry in context.catalog.entries()]), VALUES)
    runs = st.fixed_dictionaries({}, optional={"run": names, "other": names})
    rest = st.dictionaries(st.one_of(st.sampled_from(PARAMETERS), st.text(max_size=6)), VALUES, max_size=5)
    return st.builds(lambda a, b: {**b, **a}, runs, rest)


@cases(60, 1500)
def test_parameters_of_pages(count: int, context: PageContext, root: Path) -> None:
    before = tree(root)

    def check(case: tuple[Any, dict[str, str]]) -> None:
        page, query = case
        with guarded(readable=(root, *CODE)):
            content(page, context, query)
            for other in PAGES:
                carried(other, query)

    fuzz(count, st.tuples(st.sampled_from(PAGES), queries(context)), check)
    assert tree(root) == before


@cases(40, 800)
def test_addresses(count: int, client: Any, context: PageContext, root: Path) -> None:
    """Any path and any query gets an answer without details of this machine."""
    segments = st.lists(
        st.one_of(
            st.sampled_from(
                [
                    "..",
                    ".",
                    "assets",
                    "_dash-layout",
                    "%2e%2e",
                    "_dash-component-suites",
                    "dash",
                    "style.css",
                    "app.py",
                    "etc",
                    "passwd",
                    "%00",
                    "",
                    "\\..",
                    "_reload-hash",
                    "_favicon.ico",
                ]
            ),
            st.text(max_size=10).map(lambda t: quote(t, errors="replace")),
            st.sampled_from(PATHS),
        ),
        max_size=6,
    )
    pairs = st.one_of(
        queries(context).map(lambda q: urlencode(q, errors="replace")),
        st.text(max_size=50).map(lambda t: quote(t, safe="&=?;%+", errors="replace")),
    )

    def check(case: tuple[list[str], str]) -> None:
        parts, query = case
        with guarded(readable=(root, *CODE)):
            answer = client.get("/" + "/".join(parts).lstrip("/") + "?" + query, base_url="http://127.0.0.1")
        text = answer.get_data().decode(errors="replace")
        assert answer.status_code < 500, (case, answer.status_code)
        assert "Traceback" not in text
        assert "root:" not in text
        query_of("?" + query)

    fuzz(count, st.tuples(segments, pairs), check)


@cases(30, 600)
def test_requests_for_pages(count: int, client: Any, context: PageContext, root: Path) -> None:
    """The requests that the frame sends for an address, for its page and its links, their values of any kind."""

    def check(case: tuple[str, Any, Any, Any]) -> None:
        path, pathname, search, kept = case
        address = [
            {"id": "address", "property": "pathname", "value": path if pathname is None else pathname},
            {"id": "address", "property": "search", "value": search},
        ]
        page = {
            "output": "..content.children...titled.data..",
            "outputs": [{"id": "content", "property": "children"}, {"id": "titled", "property": "data"}],
            "inputs": address,
        }
        links = {
            "output": ".." + "...".join(f"{LINK}.{word}" for word in LINKS) + "..",
            "outputs": [[{"id": {"path": p, "type": "link"}, "property": w} for p in PATHS] for w in LINKS],
            "inputs": [*address, {"id": "state", "property": "data", "value": kept}],
        }
        plain = isinstance(search, str | None) and isinstance(pathname, str | None)
        for asked in (page, links):
            with guarded(readable=(root, *CODE)):
                body = json.dumps({**asked, "changedPropIds": ["address.search"]}).encode(errors="surrogatepass")
                answer = client.post(
                    "/_dash-update-component", data=body, content_type="application/json", base_url="http://127.0.0.1"
                )
            assert answer.status_code == 200 or not plain, (case, answer.status_code)
            assert "Traceback" not in answer.get_data().decode(errors="replace")

    searches = st.one_of(queries(context).map(lambda q: "?" + urlencode(q, errors="replace")), VALUES, st.none())
    kept = st.one_of(st.none(), VALUES, queries(context))
    fuzz(count, st.tuples(st.sampled_from(PATHS), st.one_of(st.none(), st.none(), VALUES), searches, kept), check)


FORM = st.dictionaries(
    st.sampled_from(KEYS),
    st.one_of(VALUES, st.sampled_from(["on", "off", "1", "2", "4", "8", "0.5", "-3", "64", "auto", "laptop", "gpt2"])),
    max_size=5,
)
CHOICES = st.sampled_from([f for f in FIELDS if f.choices]).flatmap(
    lambda f: st.tuples(st.just(f.key), st.sampled_from(f.choices))
)


@cases(40, 1000)
def test_what_if_forms(count: int, context: PageContext) -> None:
    """Any form makes a job or a message; jobs that are small are simulated, as the worker does."""
    names = [None, *(entry.name for entry in context.catalog.entries() if entry.kind == "predicted")]
    memory = Memory()

    def check(case: tuple[str | None, dict[str, str], list[tuple[str, str]]]) -> None:
        name, form, choices = case

        def answer() -> None:
            base, _ = base_of(context.catalog, name)
            raw = changed(base, {**dict(choices), **form})
            job = load_job(raw)
            job_file(raw)
            if job.ranks <= 64 and job.grid != "auto" and job.micro_steps * job.model.layers <= 200:
                memory.simulated(raw)

        survives(answer, readable=CODE)

    fuzz(count, st.tuples(st.sampled_from(names), FORM, st.lists(CHOICES, max_size=2)), check)
