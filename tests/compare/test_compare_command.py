"""`fourfold compare` on a real pair of runs, and the page it writes."""

from __future__ import annotations

import html.parser
import json
import re
from pathlib import Path

import pytest

from tests.compare.compare_traces import Row, by_hand_measured, by_hand_predicted, table, write
from tests.runtime import runs
from tests.tiers import makes
from twin.cli import main
from twin.compare.compare import compare
from twin.compare.page import facts_of, page, write_page
from twin.diagnose.diagnose import diagnose_trace

EVIL = '<script>alert("hi")</script><!--"\'&\x1b[31m[bold]%TITLE%'


@pytest.fixture(scope="module")
@makes("process")
def pair(tmp_path_factory) -> tuple[str, str]:
    """A prediction of a small job on two ranks, and three real steps of it."""
    pytest.importorskip("torch")
    folder = tmp_path_factory.mktemp("pair")
    job = runs.write_job(folder, train={"steps": 4, "checkpoints": {"every": 4}})
    with pytest.raises(SystemExit) as ended:
        main(["simulate", str(job), "--out", str(folder / "p")])
    assert not ended.value.code
    done = runs.train(
        job, "--ranks", "2", "--out", str(folder / "run"), "--trace", str(folder / "m"), "--trace-steps", "1-3"
    )
    assert done.returncode == 0, done.stderr
    return str(folder / "p"), str(folder / "m")


def run(capsys, *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(["compare", *arguments])
    captured = capsys.readouterr()
    return int(ended.value.code or 0), captured.out, captured.err


def test_a_real_step_is_explained_exactly(pair, capsys):
    code, out, _ = run(capsys, *pair, "--json")
    found = json.loads(out)
    assert code == 0
    assert found["unpaired"] == {"predicted": [], "measured": []}
    assert (found["ranks"], found["steps"]) == (2, [1, 2, 3])
    for terms in (found["terms"], found["phases"]):
        for key in ("predicted", "measured", "difference"):
            total = sum(term[f"{key}_seconds"] for term in terms)
            assert total == pytest.approx(found[f"{key}_seconds"], rel=1e-9)
    assert found["predicted_seconds"] > 0
    assert found["measured_seconds"] > 0
    assert {g["name"] for g in found["errors"] if g["by"] == "kind"} >= {"gemm", "all_gather", "reduce_scatter"}
    assert {t["name"] for t in found["terms"]} >= {"gemm", "transfer_z", "between"}


def test_the_terminal_says_the_same(pair, capsys):
    code, out, err = run(capsys, *pair, "--step", "3")
    assert (code, err) == (0, "")
    found = compare(Path(pair[0]), Path(pair[1]), 3)
    for label in [t.label for t in found.terms]:
        assert label in out
    assert "step 3, one of 3 traced" in out
    assert re.search(r"median error of GEMMs +[\d.,]+ %", out)
    assert re.search(r"median error of collectives +[\d.,]+ %", out)
    assert "one host's monotonic clock" in out


def test_bad_runs_end_with_code_2(pair, tmp_path, capsys):
    for arguments, words in (
        ([pair[1], pair[0]], "swap them"),
        ([pair[0], str(tmp_path)], "manifest.json is missing"),
        ([*pair, "--step", "7"], "choose from 1, 2, 3"),
    ):
        code, out, err = run(capsys, *arguments)
        assert (code, out) == (2, "")
        assert words in err
        assert "Traceback" not in err


class Page(html.parser.HTMLParser):
    """Tags and words of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.words = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        assert not {name for name, _ in attrs} & {"src", "href", "srcset", "action", "onload", "onclick"}

    def handle_data(self, data: str) -> None:
        self.words += data


def test_the_page_carries_the_figures_and_loads_nothing(pair, tmp_path, capsys):
    target = tmp_path / "page.html"
    assert run(capsys, *pair, "--html", str(target))[0] == 0
    text = target.read_text(encoding="utf-8")
    parsed = Page(text)
    found = compare(Path(pair[0]), Path(pair[1]))
    assert parsed.tags.count("rect") == len(found.terms) + 2
    assert all(t.label in parsed.words for t in found.terms)
    assert all(w.op in parsed.words for w in found.worst)
    assert not re.findall(r"https?:|//|@import|url\(", re.sub(r"<!doctype.*", "", text))
    assert not {"script", "link", "img", "iframe"} & set(parsed.tags)
    code, _, err = run(capsys, *pair, "--html", str(target))
    assert (code, "exists already" in err) == (2, True)
    assert run(capsys, *pair, "--html", str(target), "--force")[0] == 0
    other = tmp_path / "other.html"
    other.write_text("<html>mine</html>")
    code, _, err = run(capsys, *pair, "--html", str(other), "--force")
    assert (code, "will not be replaced" in err) == (2, True)
    assert other.read_text() == "<html>mine</html>"


def bars(text: str) -> list[tuple[float, float]]:
    """Left and right end of each bar."""
    found = re.findall(r'<rect x="([\d.]+)" y="\d+" width="([\d.]+)"', text)
    return [(float(x), float(x) + float(width)) for x, width in found]


def test_bars_join_and_are_to_scale(tmp_path):
    found = compare(
        write(tmp_path / "p", "predicted", table(by_hand_predicted())),
        write(tmp_path / "m", "measured", table(by_hand_measured())),
    )
    first, *steps, last = bars(page(found))
    scale = (first[1] - first[0]) / found.predicted_seconds
    assert (last[1] - last[0]) / found.measured_seconds == pytest.approx(scale, rel=1e-3)
    level = first[1]
    for term, (left, right) in zip(found.terms, steps, strict=True):
        begin = right if term.difference_seconds < 0 else left
        assert begin == pytest.approx(level, abs=1.02)  # a bar is at least a pixel wide
        level += term.difference_seconds * scale
    assert level == pytest.approx(last[1], abs=0.05)


def test_words_of_strangers_are_shown_and_not_obeyed(tmp_path, capsys):
    ranks = {r: [*rows, Row(f"micro0/fwd/{EVIL}", "compute", 40, 50)] for r, rows in by_hand_predicted().items()}
    job = {
        "name": EVIL,
        "model": {"layers": 1, "hidden": 16, "heads": 2, "sequence": 8, "vocabulary": 32, "name": EVIL},
    }
    clock = {"method": EVIL, "uncertainty_ns": 0}
    runs_ = (
        write(tmp_path / "p", "predicted", table(ranks), job=job, clock=clock),
        write(tmp_path / "m", "measured", table(ranks), job=job, clock=clock, code_version=EVIL),
    )
    text = page(compare(*runs_))
    plain = Page(
        page(
            compare(
                write(tmp_path / "q", "predicted", table(by_hand_predicted())),
                write(tmp_path / "n", "measured", table(by_hand_predicted())),
            )
        )
    )
    parsed = Page(text)
    assert set(parsed.tags) <= {*plain.tags, "ul", "li"}
    assert "script" not in parsed.tags
    assert "\x1b" not in text
    assert '<script>alert("hi")</script>' in parsed.words
    code, out, _ = run(capsys, *map(str, runs_))
    assert (code, "\x1b" in out) == (0, False)
    assert "[bold]%TITLE%" in out


def test_a_page_is_written_whole_or_not_at_all(tmp_path):
    found = compare(*(write(tmp_path / kind, kind, table(by_hand_predicted())) for kind in ("predicted", "measured")))
    (tmp_path / "folder").mkdir()
    for target in (tmp_path / "nowhere" / "page.html", tmp_path / "folder"):
        with pytest.raises(ValueError, match=r"cannot be written|will not be replaced"):
            write_page(target, found, overwrite=True)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["folder", "measured", "predicted"]


def test_the_median_beside_the_step_is_the_one_that_diagnose_says() -> None:
    """Of four steps no one is the median: the step taken apart is the shorter of the two in the middle."""
    runs = Path(__file__).parents[2] / "examples" / "runs" / "testbed"
    found = compare(runs / "2x2x2x1-predicted", runs / "2x2x2x1-measured")
    diagnosis, _ = diagnose_trace(runs / "2x2x2x1-measured")
    assert found.median_seconds == pytest.approx(diagnosis.step_seconds)
    assert found.measured_seconds < found.median_seconds
    assert dict(facts_of(found))["measured step taken apart"] == "step 1, one of 4 traced, whose median is 507 ms"
