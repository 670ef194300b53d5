"""The tiers themselves: nothing starts a process in secret, nothing is in no tier, a quick profile tries little."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import settings

from tests.profiles import part, share
from tests.runtime.pool import GROUP_SECONDS
from tests.tiers import full, quick
from tools.run_tests import GROUPS, SECONDS_A_TEST, TIERS, selection

ROOT = Path(__file__).parents[1]
CONFTEST = "from tests.tiers import _no_process_in_secret, pytest_collection_finish, pytest_collection_modifyitems\n"
SUITE = """
import multiprocessing, subprocess
import pytest
from tests.tiers import makes

@pytest.fixture(scope="module")
@makes("process")
def started():
    subprocess.run(["true"], check=True)

def test_in_secret():
    subprocess.run(["true"], check=True)

def test_of_a_library_in_secret():
    child = multiprocessing.get_context("fork").Process(target=print)
    child.start()
    child.join()

@pytest.mark.process
def test_openly():
    subprocess.run(["true"], check=True)

def test_through_a_fixture(started): pass
def test_through_a_fixture_that_is_there(started): pass
def test_of_nothing(): pass
"""


def outcomes(folder: Path, *arguments: str) -> str:
    (folder / "conftest.py").write_text(CONFTEST)
    (folder / "test_suite.py").write_text(SUITE)
    command = [sys.executable, "-m", "pytest", "-c", str(ROOT / "pyproject.toml"), "-p", "no:cacheprovider"]
    done = subprocess.run(
        [*command, "--rootdir", str(folder), str(folder), *arguments],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    return done.stdout


@pytest.mark.process
@pytest.mark.quick
def test_a_process_that_is_not_marked_fails(tmp_path):
    said = outcomes(tmp_path)
    assert "6 passed, 2 errors" in said, said
    # pytest's summary says why as well where it has room, which is always under CI
    assert re.findall(r"^ERROR \S*test_suite\.py::(\w+)", said, re.MULTILINE) == [
        "test_in_secret",
        "test_of_a_library_in_secret",
    ]
    assert "3 passed, 3 deselected, 2 errors" in outcomes(tmp_path, "-m", "not process")


def test_each_tier_is_a_part_of_the_next_and_every_test_in_one_group():
    """For all that markers can say of a test."""
    names = ["process", "browser", "docs", "full", "slow", "quick"]
    for number in range(2 ** len(names)):
        marks = {name: bool(number >> i & 1) for i, name in enumerate(names)}
        within = {tier: [eval(selection(tier, kinds), {}, marks) for kinds, _ in GROUPS.values()] for tier in TIERS}
        assert sum(within["all"]) == 1
        assert within["full"] == [there and not marks["slow"] for there in within["all"]]
        assert all(more or not less for less, more in zip(within["quick"], within["full"], strict=True))
    plain = dict.fromkeys(names, False)
    assert eval(selection("quick", GROUPS["others"][0]), {}, plain)


def test_what_waits_by_itself_says_so_before_the_limit_of_a_test_is_over():
    assert min(SECONDS_A_TEST.values()) > 2 * (GROUP_SECONDS + 30)


@pytest.mark.process
@pytest.mark.quick
def test_a_property_that_hangs_is_ended(tmp_path):
    """Hypothesis takes what pytest-timeout raises of itself for an example that fails, and goes on without a limit."""
    path = tmp_path / "test_hanging.py"
    path.write_text(
        "import time\n"
        "from hypothesis import given, strategies as st\n"
        "@given(st.integers())\n"
        "def test_hangs(number):\n"
        "    time.sleep(600)\n",
        encoding="utf-8",
    )
    (tmp_path / "conftest.py").write_text(
        "from tests.limits import pytest_timeout_cancel_timer, pytest_timeout_set_timer\n", encoding="utf-8"
    )
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--timeout=1", str(tmp_path)]
    paths = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=paths, capture_output=True, text=True, check=False, timeout=60)
    assert "OverLimitError" in done.stdout, done.stdout + done.stderr
    assert "1 failed" in done.stdout
    assert "time.sleep" in done.stdout + done.stderr


def test_cases_are_chosen():
    assert quick([1, 2], 2)[0] == 1
    assert [mark.name for mark in quick([1, 2], 2)[1].marks] == ["quick"]
    assert full([(1, 2)], (1, 2))[0].values == (1, 2)
    with pytest.raises(AssertionError):
        quick([1, 2], 3)


def test_the_share_of_a_profile():
    assert 2 <= share(60) <= 60


def test_a_part_of_cases_is_spread_over_all_and_ends_with_the_last():
    here = settings.get_current_profile_name()
    try:
        settings.load_profile("quick")
        assert part(range(20), 5) == [3, 7, 11, 15, 19]
        assert part("abc", 1) == ["c"]
        assert part("ab", 3) == ["a", "b"]
        settings.load_profile("full")
        assert part(range(20), 5) == list(range(20))
    finally:
        settings.load_profile(here)
