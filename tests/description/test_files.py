"""Files that are written whole or not at all."""

from __future__ import annotations

from pathlib import Path

import pytest

from twin.description.files import write_whole
from twin.description.problems import DescriptionError


def test_a_file_is_replaced_and_nothing_is_left_beside_it(tmp_path):
    write_whole(tmp_path / "new", "é")
    write_whole(tmp_path / "new", b"again")
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == {"new": b"again"}


@pytest.mark.parametrize("place", ["nowhere/new", "file/new", "n" * 400], ids=["no directory", "a file", "too long"])
def test_a_place_that_takes_no_file_is_named(tmp_path, place):
    """The temporary file cannot be removed either: that must not be what is told."""
    (tmp_path / "file").touch()
    with pytest.raises(DescriptionError, match="cannot be written: "):
        write_whole(tmp_path / Path(place), "text")
