"""The page about recordings shows what a recording of its first example holds."""

from __future__ import annotations

import json
import re

import pytest

from tests.docs.pages import ROOT
from twin.cli import main


def test_what_the_page_shows_of_a_recording_is_in_it(tmp_path, monkeypatch, capsys):
    (tmp_path / "examples").symlink_to(ROOT / "examples")
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as ended:
        main(["record", "examples/tiny-gpt.yaml", "--rank", "3", "--out", "tiny.json"])
    assert ended.value.code == 0
    capsys.readouterr()
    found = json.loads((tmp_path / "tiny.json").read_text())
    page = (ROOT / "docs/howto/record.md").read_text()
    shown = re.search(r"```text\n(\{\"format\".*?)```", page, re.S)
    assert shown is not None
    head, *ops = re.split(r"\n(?=\{\"op\")", shown[1])
    assert (
        re.sub(r": \{…\}", ": {}", head)
        .rstrip()
        .startswith(json.dumps({"format": found["format"], "schema_version": found["schema_version"], "rank": 3})[:-1])
    )
    repeat, *inside = ops
    values = json.loads(re.search(r"\[[\d, ]*\]", repeat)[0])
    (body,) = (op["body"] for op in found["ops"] if op["op"] == "repeat" and op["values"] == values)
    for text in inside:
        assert json.loads(text.strip().rstrip("…").rstrip().rstrip(",")) in body
