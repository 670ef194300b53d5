"""The site builds without a warning and asks no other host; figures are what commands print; keys have meanings."""

from __future__ import annotations

import re
import subprocess
import sys

import pytest

from tests.docs.pages import ROOT
from tools import figures
from tools.reference import api, commands, glossary, house, keys


@pytest.mark.docs
def test_the_site_builds_without_a_warning(tmp_path):
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", "docs", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    pages = {page: page.read_text(encoding="utf-8") for page in tmp_path.rglob("*.html")}
    assert len(pages) > 30
    loads = re.compile(r"""<(?:script|img|iframe)[^>]+src="https?:|<link[^>]+stylesheet[^>]+href="https?:""")
    assert [str(page) for page, text in pages.items() if loads.search(text)] == []


@pytest.mark.docs
@pytest.mark.quick
def test_cheap_figures_are_what_the_command_prints():
    assert figures.stale(figures.Answers(None, known=["simulate"])) == []


@pytest.mark.docs
def test_figures_of_published_runs_are_what_the_command_prints():
    assert figures.stale(figures.Answers(None, known=["simulate", "validate"])) == []


def test_every_figure_in_a_page_is_known():
    named = {m["name"] for page in figures.PAGES for m in figures.REGION.finditer(page.read_text("utf-8"))}
    assert named == {*figures.FIGURES, figures.STAMP}


def test_a_stale_figure_is_found_and_renewed():
    answers = figures.Answers(None, known=[])
    answers.ask = {"simulate": {"step_seconds": 1.26}}.get
    text = "a <!-- figure: step-320b -->9.9<!-- /figure --> b <!-- figure: iterations -->kept<!-- /figure -->"
    assert figures.renewed(text, answers) == text.replace("9.9", "1.3")


@pytest.mark.parametrize("part", [keys.job, keys.machine], ids=["job", "machine"])
def test_every_key_has_a_meaning(part):
    rows = [re.split(r" (?<!\\)\| ", line) for line in part().splitlines() if line.startswith("| `")]
    assert len(rows) > 50
    assert [row[0] for row in rows if not row[2].strip()] == []


def test_every_command_and_strategy_is_in_the_reference():
    listed = commands.commands()
    assert all(f"## {name}\n" in listed for name in ("simulate", "search", "train", "record", "dashboard", "calibrate"))
    assert "strategy: four_d" in keys.job()
    assert "`ddp`" in glossary.glossary()


def test_public_functions_are_in_the_reference_with_their_types():
    written = api.api()
    assert "simulate(\n    job: JobLike," in written
    assert "| `step_seconds` | `float` | Last rank's end minus first rank's start. |" in written


@pytest.mark.full
def test_the_picture_has_every_room_once_and_arrows_that_point_down():
    graph = house.rooms("twin")
    picture = house.picture()
    assert all(picture.count(f">{room}</text>") == 1 for room in [*graph, "runtime", "dashboards"])
    level = house.levels(graph)
    assert [(room, one) for room, used in graph.items() for one in used if level[room] <= level[one]] == []
