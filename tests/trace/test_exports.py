"""Exports: the Chrome trace is JSON with one event per op; the timeline page stands alone."""

import gzip
import html.parser
import json
import re

import pyarrow as pa
import pytest

from twin.engine.events import event_table
from twin.engine.report import as_json, report
from twin.engine.runs import rank_name, timeline_page, write_chrome_trace, write_run
from twin.engine.simulate import simulate
from twin.engine.simulation import Simulation
from twin.pages.timeline import lanes, timeline_html
from twin.trace.chrome import chrome_events, write_chrome


@pytest.fixture(scope="module")
def simulation(make_job) -> Simulation:
    return simulate(make_job({"data": 2, "z": 2, "y": 2, "x": 2}, per_rank=2))


@pytest.fixture(scope="module")
def events(simulation) -> pa.Table:
    return event_table(simulation, [0, 9])


def durations(events: pa.Table) -> list[dict]:
    return [row for row in events.to_pylist() if row["kind"] != "wait"]


@pytest.mark.parametrize("name", ["trace.json", "trace.json.gz"])
def test_chrome_trace_has_one_event_for_each_op(tmp_path, events, name) -> None:
    path = tmp_path / name
    write_chrome(path, events, {0: "rank 0 (here)"})
    content = path.read_bytes()
    text = gzip.decompress(content) if name.endswith("gz") else content
    trace = json.loads(text)["traceEvents"]
    found = [e for e in trace if e["ph"] == "X"]
    rows = durations(events)
    assert len(found) == len(rows)
    assert {e["ph"] for e in trace} == {"X", "M"}
    threads = {(e["pid"], e["tid"]): e["args"]["name"] for e in trace if e["name"] == "thread_name"}
    processes = {e["pid"]: e["args"]["name"] for e in trace if e["name"] == "process_name"}
    assert processes == {0: "rank 0 (here)", 9: "rank 9"}
    assert len(set(threads.values())) == len(threads) / 2
    for event, row in zip(found, rows, strict=True):
        assert event["pid"] == row["rank"]
        assert threads[event["pid"], event["tid"]] == row["stream"]
        assert event["args"]["op"] == row["op"]
        assert event["ts"] * 1e3 == pytest.approx(row["start_ns"])
        assert event["dur"] * 1e3 == pytest.approx(row["end_ns"] - row["start_ns"], abs=1e-3)
        assert event["dur"] >= 0


def test_chrome_trace_of_nothing_is_valid(tmp_path, events) -> None:
    write_chrome(tmp_path / "empty.json", events.slice(0, 0), {})
    assert json.loads((tmp_path / "empty.json").read_text())["traceEvents"] == []
    assert list(chrome_events(events.slice(0, 0), {})) == []


def test_chrome_export_replaces_only_if_asked(tmp_path, simulation) -> None:
    path = tmp_path / "trace.json"
    write_chrome_trace(path, simulation, [3], overwrite=False)
    assert "rank 3 (data 0, z 0, y 1, x 1)" in path.read_text()
    with pytest.raises(ValueError, match="exists already"):
        write_chrome_trace(path, simulation, [3], overwrite=False)
    write_chrome_trace(path, simulation, [4], overwrite=True)
    assert "rank 4" in path.read_text()
    assert [p.name for p in tmp_path.iterdir()] == ["trace.json"]


class Page(html.parser.HTMLParser):
    """Scripts, and every attribute that can load something."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.scripts: list[str] = []
        self.loads: list[tuple[str, str]] = []
        self.tags: list[str] = []
        self._in = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self._in = tag
        if tag == "script":
            self.scripts.append("")
        self.loads += [
            (name, value or "")
            for name, value in attrs
            if name in {"src", "href", "action", "data", "srcset", "poster"}
        ]

    def handle_data(self, data: str) -> None:
        if self._in == "script":
            self.scripts[-1] += data

    def handle_endtag(self, tag: str) -> None:
        self._in = self._in if tag != self._in else ""


@pytest.fixture(scope="module")
def page(simulation) -> str:
    return timeline_page(simulation, as_json(simulation, report(simulation), 0.0), [0, 9], 2)


def test_timeline_loads_nothing_from_elsewhere(page) -> None:
    """Outside the plotly library itself there is no address of another host at all."""
    parsed = Page(page)
    plotly = max(parsed.scripts, key=len)
    assert len(plotly) > 500_000, "plotly is part of the page"
    rest = page.replace(plotly, "")
    assert len(rest) < len(page) - 500_000
    assert not re.findall(r"""(?:https?:|["'(=]\s*)//[^\s"']*""", re.sub(r"//\s.*", "", rest))
    assert not re.findall(r"@import|url\(|import\(|fetch\(|XMLHttpRequest|WebSocket|sendBeacon", rest)
    remote = [value for _, value in parsed.loads if not value.startswith(("#", "data:"))]
    assert remote == []
    assert "showSendToCloud: false" in rest


def test_timeline_carries_every_event(page, events, simulation) -> None:
    parsed = Page(page)
    (packed,) = [s for s in parsed.scripts if s.startswith('{"lanes"')]
    data = json.loads(packed)["lanes"]
    rows = durations(events)
    assert sum(len(lane["start"]) for lane in data) == len(rows)
    assert {lane["rank"] for lane in data} == {rank_name(simulation, 0), rank_name(simulation, 9)}
    for lane in data:
        own = [
            row
            for row in rows
            if rank_name(simulation, row["rank"]) == lane["rank"] and row["stream"] == lane["stream"]
        ]
        names = sorted((round(r["start_ns"] / 1e6, 6), round(r["end_ns"] / 1e6, 6), r["name"]) for r in own)
        packed_names = [lane["names"][i] for i in lane["name"]]
        assert sorted(zip(lane["start"], lane["end"], packed_names, strict=True)) == names
        assert lane["start"] == sorted(lane["start"])


def test_text_of_the_user_is_shown_and_not_run(events) -> None:
    evil = '<script>alert("hi")</script><!--'
    page = timeline_html(events, {0: evil, 9: "nine"}, evil, [(evil, evil)])
    plain = Page(timeline_html(events, {0: "zero", 9: "nine"}, "title", [("fact", "value")]))
    parsed = Page(page)
    assert parsed.tags.count("script") == plain.tags.count("script")
    assert "alert(" not in "".join(s for s in parsed.scripts if not s.startswith('{"lanes"') and len(s) < 10**5)


def test_words_with_placeholders_stay_words(events) -> None:
    """A model may be called anything, also like the page's own marks."""
    page = timeline_html(events, {}, "%DATA% %PLOTLY% %FACTS%", [("%DATA%", "%PLOTLY%")])
    assert "<title>%DATA% %PLOTLY% %FACTS%</title>" in page
    assert page.count('{"lanes"') == 1


def test_lanes_of_one_rank_are_its_streams(events) -> None:
    packed = lanes(events, {})
    assert [lane["stream"] for lane in packed if lane["rank"] == "rank 0"] == [
        "compute",
        "x",
        "y",
        "z_gather",
        "z_scatter",
        "data",
    ]


def test_the_same_job_writes_the_same_bytes(simulation, tmp_path) -> None:
    """Every file of a run: nothing in it depends on when or where it was written."""
    figures = as_json(simulation, report(simulation), 0.0)
    for name in ("first", "second"):
        write_run(tmp_path / name, simulation, figures | {"wall_seconds": len(name)}, None, overwrite=False)
    files = sorted(p.name for p in (tmp_path / "first").iterdir())
    assert {"events.parquet", "job.yaml", "manifest.json", "timeline.html"} <= set(files)
    for file in files:
        assert (tmp_path / "first" / file).read_bytes() == (tmp_path / "second" / file).read_bytes()
