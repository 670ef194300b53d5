"""Files that come with Fourfold are read by a quicker parser: to the same numbers, and they break no rule."""

from __future__ import annotations

import pytest

import topologies
from twin.description.load import ROOT
from twin.description.strict_yaml import read_packaged_yaml, read_yaml

FILES = sorted(ROOT.glob("**/*.yaml"))


@pytest.mark.parametrize("path", FILES, ids=lambda p: p.stem)
def test_both_parsers_read_the_same(path):
    assert read_packaged_yaml(path) == read_yaml(path)


def test_all_of_them_are_here():
    assert ROOT.samefile(next(iter(topologies.__path__)))
    assert len(FILES) > 20
