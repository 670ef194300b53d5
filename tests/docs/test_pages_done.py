"""The tutorial, and what there is to add to Fourfold: done as the pages say, and what they show is what comes."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import twin
from tests.docs.pages import ROOT, check, done, like
from twin.cost import algorithms
from twin.strategies import registry

TUTORIAL = sorted((ROOT / "docs/tutorial").glob("[!i]*.md"))
HOW_TO = sorted((ROOT / "docs/howto").glob("add-*.md"))
SHOWN = [ROOT / "docs/howto/megatron.md"]
"""Other pages that show what a command prints."""


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder beside the examples, in which modules are found; what they register is forgotten afterwards."""
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    algorithms.registered()  # the built-in ones are found once
    known, strategies, modules = dict(algorithms._registered), dict(registry._REGISTERED), set(sys.modules)
    yield tmp_path
    algorithms._registered.clear()
    algorithms._registered.update(known)
    registry._REGISTERED.clear()
    registry._REGISTERED.update(strategies)
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


@pytest.mark.docs
@pytest.mark.parametrize("page", TUTORIAL, ids=lambda p: p.name)
@pytest.mark.usefixtures("checkout")
def test_the_tutorial_shows_what_comes(page):
    done(page, check)


@pytest.mark.docs
@pytest.mark.quick
@pytest.mark.parametrize("page", [*HOW_TO, *SHOWN], ids=lambda p: p.name)
@pytest.mark.usefixtures("checkout")
def test_what_a_how_to_says_can_be_done_from_outside(page):
    done(page, check)


@pytest.mark.parametrize("page", ["tutorial/first-steps.md", "howto/compare.md"])
def test_what_is_predicted_beside_a_measurement_is_what_is_simulated(page):
    """Numbers of blocks that are measured are not held against what comes: of the tutorial the prediction was old."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    (shown,) = re.findall(r"^ *step {5,}(\d+) ms +\d", text, flags=re.M)
    step = twin.simulate(twin.load_job(ROOT / "examples" / "tiny-gpt.yaml")).step_seconds
    assert float(shown) == pytest.approx(1000 * step, abs=0.6)  # an event begins some microseconds later than the step


def test_there_is_a_how_to_for_everything_that_is_added():
    assert [page.stem for page in HOW_TO] == ["add-collective", "add-dashboard-page", "add-machine", "add-strategy"]
    assert [page.stem for page in TUTORIAL] == ["first-steps", "python"]


def test_what_is_shown_is_held_against_what_comes():
    assert like("simulated, 1 s\n…\nc\n", "simulated, 2.5 s\nb\nb\nc\n")
    assert not like("x 1 3.969 s\n", "x 1 3.960 s\n")
    assert not like("a 1.5 ms\n", "a 1.6 ms\n")
    assert like("loss 1.5  0.2 ms █\n", "loss 1.7  1.2 µs\n", measured=True)
    assert not like("loss 1.5\n", "gain 1.5\n", measured=True)
    assert not like("a\nc\n", "a\nb\nc\n")


def test_only_a_note_says_that_numbers_are_measured(checkout):
    """The name of a file in a cell did, and the page showed 0.469 s where 0.470 came."""
    page, cell = checkout / "page.md", "```python\n'x-measured', 1 + 1\n```\n\n```text\n('x-measured', 3)\n```\n"
    page.write_text(cell)
    with pytest.raises(AssertionError):
        done(page, check)
    page.write_text(f"<!-- measured -->\n{cell}")
    done(page, check)


def test_a_page_that_shows_something_else_is_refused(checkout):
    page = checkout / "page.md"
    page.write_text("```python\n1 + 1\n```\n\n```text\n3\n```\n")
    with pytest.raises(AssertionError):
        done(page, check)
    page.write_text(
        "<!-- file: m.py -->\n```python\nX = 1\n```\n```python\nimport m\nm.X + 1\n```\n\n```text\n2\n```\n"
    )
    done(page, check)
