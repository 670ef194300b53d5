"""What lies under the root is found; what lies elsewhere is not, by whatever way it is asked for."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from dashboards import catalog as module
from dashboards.catalog import MAX_CACHED, MAX_DEPTH, Catalog, read_json
from dashboards.events import events_of
from dashboards.pages.runs import counted
from dashboards.rank_table import rank_table_of
from tests.compare.compare_traces import by_hand_measured, by_hand_predicted, table, write
from twin.description.problems import DescriptionError


@pytest.fixture
def root(tmp_path: Path) -> Path:
    folder = tmp_path / "runs"
    write(folder / "a", "predicted", table(by_hand_predicted()))
    write(folder / "deep" / "b", "measured", table(by_hand_measured()))
    return folder


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    return write(tmp_path / "secret", "measured", table(by_hand_measured()), code_version="secret")


def labels(root: Path) -> set[str]:
    return {entry.label for entry in Catalog(root).entries()}


def only(root: Path, label: str):
    return next(entry for entry in Catalog(root).entries() if entry.label == label)


def test_it_finds_runs_searches_and_studies(root: Path):
    (root / "s").mkdir()
    (root / "s" / "ranking.json").write_text('{"a": 1}')
    (root / "t").mkdir()
    (root / "t" / "study.json").write_text("{}")
    (root / "checkpoint").mkdir()
    (root / "checkpoint" / "manifest.json").write_text("{}")
    (root / ".hidden").mkdir()
    (root / ".hidden" / "study.json").write_text("{}")
    found = {entry.label: entry.kind for entry in Catalog(root).entries()}
    assert found == {"a": "predicted", "deep/b": "measured", "s": "search", "t": "study"}


def test_names_are_safe_in_an_address_and_stay(root: Path):
    first, second = ({entry.label: entry.name for entry in Catalog(root).entries()} for _ in range(2))
    assert first == second
    assert all(name.isalnum() and name.isascii() and len(name) == 12 for name in first.values())
    assert len(set(first.values())) == len(first)


def test_the_root_itself_may_be_a_run(root: Path):
    (entry,) = Catalog(root / "a").entries()
    assert entry.kind == "predicted"
    assert len(events_of(Catalog(root / "a"), entry)) == 8


@pytest.mark.parametrize(
    "name",
    [
        "../secret",
        "/etc/passwd",
        "%2e%2e%2fsecret",
        "..%2Fsecret",
        "a",
        "deep/b",
        "",
        ".",
        "..",
        "a\x00",
        "0" * 12,
        "A" * 100_000,
        "～",
    ],
)
def test_only_names_open_entries(root: Path, elsewhere: Path, name: str):
    with pytest.raises(DescriptionError) as caught:
        Catalog(root).entry(name)
    assert len(str(caught.value)) < 300
    assert str(elsewhere.parent) not in str(caught.value)


def test_a_linked_directory_is_not_followed(root: Path, elsewhere: Path):
    (root / "link").symlink_to(elsewhere, target_is_directory=True)
    (root / "loop").symlink_to(root, target_is_directory=True)
    assert labels(root) == {"a", "deep/b"}


def test_a_linked_root_is_followed(root: Path, tmp_path: Path):
    """Who starts the server chose it."""
    (tmp_path / "scratch").symlink_to(root, target_is_directory=True)
    assert labels(tmp_path / "scratch") == {"a", "deep/b"}


@pytest.mark.parametrize("file", ["manifest.json", "events.parquet", "classes.parquet"])
def test_a_linked_file_is_refused(root: Path, elsewhere: Path, file: str):
    """The rest of the run may be as good as it likes."""
    (root / "a" / file).unlink(missing_ok=True)
    (elsewhere / "classes.parquet").write_bytes(b"")
    (root / "a" / file).symlink_to(elsewhere / file)
    catalog = Catalog(root)
    entry = only(root, "a")
    with pytest.raises(DescriptionError, match="outside"):
        catalog.trace(catalog.entry(entry.name))
    assert "secret" not in json.dumps(entry.head)


def test_linked_ranks_are_refused(root: Path, elsewhere: Path):
    (elsewhere / "ranks.parquet").write_bytes(b"PAR1")
    (root / "a" / "ranks.parquet").symlink_to(elsewhere / "ranks.parquet")
    catalog = Catalog(root)
    with pytest.raises(DescriptionError, match="outside"):
        rank_table_of(catalog, only(root, "a"))


@pytest.mark.parametrize("head", ["ranking.json", "study.json"])
def test_a_linked_head_is_refused(root: Path, elsewhere: Path, head: str):
    (elsewhere / head).write_text('{"secret": 1}')
    (root / "s").mkdir()
    (root / "s" / head).symlink_to(elsewhere / head)
    entry = only(root, "s")
    assert entry.kind is None
    assert "outside" in entry.problem
    assert entry.head == {}


def test_links_within_the_root_are_fine(root: Path):
    (root / "c").mkdir()
    for file in (root / "a").iterdir():
        (root / "c" / file.name).symlink_to(file)
    catalog = Catalog(root)
    assert len(events_of(catalog, only(root, "c"))) == 8


@pytest.mark.parametrize(
    "name", ["../../../secret/manifest.json", "/etc/passwd", "../../../secret/../secret/events.parquet"]
)
def test_a_file_of_an_entry_stays_in_the_root(root: Path, elsewhere: Path, name: str):
    assert elsewhere.is_dir()
    with pytest.raises(DescriptionError, match="outside"):
        Catalog(root).file(only(root, "deep/b"), name)


def test_it_looks_so_deep_and_no_deeper(root: Path):
    for depth in (MAX_DEPTH, MAX_DEPTH + 1):
        folder = root.joinpath(*"x" * depth)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "study.json").write_text("{}")
    assert "/".join("x" * MAX_DEPTH) in labels(root)
    assert "/".join("x" * (MAX_DEPTH + 1)) not in labels(root)


def test_it_does_not_walk_without_end(root: Path, monkeypatch):
    monkeypatch.setattr(module, "MAX_DIRECTORIES", 3)
    for number in range(20):
        (root / f"z{number:02}").mkdir()
        (root / f"z{number:02}" / "study.json").write_text("{}")
    assert len(labels(root)) < 5


DAMAGED = {
    "empty": b"",
    "not json": b"{",
    "nested": b"[" * 200_000,
    "a list": b"[]",
    "binary": b"\xff\xfe\x00",
    "null": b"null",
    "version": b'{"schema_version": 99}',
    "kind": b'{"schema_version": 1, "kind": ["predicted"]}',
    "huge number": b'{"schema_version": ' + b"9" * 5000 + b"}",
    "no kind": b'{"schema_version": 1}',
}


@pytest.mark.parametrize("text", DAMAGED.values(), ids=DAMAGED)
def test_a_damaged_manifest_is_listed_with_the_reason(root: Path, text: bytes):
    (root / "a" / "manifest.json").write_bytes(text)
    entry = only(root, "a")
    assert entry.kind is None
    assert 0 < len(entry.problem) < 500
    with pytest.raises(DescriptionError):
        Catalog(root).entry(entry.name)
    assert "deep/b" in labels(root)


def test_a_huge_manifest_is_not_read(root: Path):
    with (root / "a" / "manifest.json").open("wb") as file:
        file.truncate(1 << 40)
    assert only(root, "a").kind is None
    with (root / "a" / "ranking.json").open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DescriptionError, match="larger"):
        read_json(root / "a" / "ranking.json")


def test_pipes_and_unreadable_things_do_not_stop_it(root: Path):
    os.mkfifo(root / "deep" / "study.json")
    (root / "a" / "events.parquet").unlink()
    os.mkfifo(root / "a" / "events.parquet")
    catalog = Catalog(root)
    with pytest.raises(DescriptionError, match="regular file"):
        catalog.trace(catalog.entry(only(root, "a").name))


@pytest.mark.parametrize(
    "job",
    [None, 1, "x", [], {}, {"grid": "auto"}, {"grid": {"x": -1}}, {"model": 3, "grid": 7}, {"grid": {"x": 1e400}}],
)
def test_a_job_of_any_shape_is_listed(root: Path, job):
    path = root / "a" / "manifest.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "job": job, "figures": job}))
    from dashboards.run_rows import rows_of

    catalog = Catalog(root)
    entry = only(root, "a")
    assert rows_of(catalog, [entry], only(root, "deep/b"))[0]["label"] == "a"


def test_a_changed_run_is_read_anew(root: Path):
    catalog = Catalog(root)
    name = only(root, "a").name
    assert catalog.kept(catalog.entry(name), "x", lambda: 1) == 1
    assert catalog.kept(catalog.entry(name), "x", lambda: 2) == 1
    os.utime(root / "a" / "manifest.json", (1, 1))
    assert catalog.kept(catalog.entry(name), "x", lambda: 3) == 3


def test_it_keeps_a_few_opened_ones(root: Path):
    catalog, entry = Catalog(root), only(root, "a")
    for number in range(MAX_CACHED + 1):
        catalog.kept(entry, str(number), lambda: "old")
    assert catalog.kept(entry, "0", lambda: "new") == "new"
    assert catalog.kept(entry, str(MAX_CACHED), lambda: "new") == "old"


def test_entries_are_counted_in_words_for_one_and_for_more(root: Path):
    """It said 3 search, 6 study."""
    for name in ("s", "t"):
        (root / name).mkdir()
        (root / name / "study.json").write_text("{}")
    (root / "found").mkdir()
    (root / "found" / "ranking.json").write_text('{"a": 1}')
    assert counted(Catalog(root).entries()) == "5 entries: 1 predicted, 1 measured, 1 search, 2 studies"
    assert counted(Catalog(root / "a").entries()) == "1 entry: 1 predicted"
    (root / "s" / "study.json").write_text("no json")
    assert counted(Catalog(root).entries()) == "5 entries: 1 predicted, 1 measured, 1 search, 1 study, 1 damaged"
