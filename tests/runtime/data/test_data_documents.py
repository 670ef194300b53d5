"""Readers: every text once, in a fixed order, and errors that name file and line."""

import json
import os
import sysconfig
import tracemalloc
from pathlib import Path

import pytest

from runtime.data.documents import jsonl_documents, standard_library_documents, text_documents
from twin.description.problems import DescriptionError


def written(folder: Path, name: str, content: str | bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content.encode() if isinstance(content, str) else content)
    return path


def test_files_are_read_in_the_order_given_and_directories_in_that_of_names(tmp_path):
    for name in ("b.txt", "a/z.txt", "a/é.txt", "c"):
        written(tmp_path / "texts", name, name)
    last, first = written(tmp_path, "last", "last"), written(tmp_path, "first", "first")
    found = list(text_documents([first, tmp_path / "texts", last]))
    assert found == ["first", "a/z.txt", "a/é.txt", "b.txt", "c", "last"]


def test_text_is_kept_as_it_is(tmp_path):
    """Line ends too; only a byte order mark goes, and what is no UTF-8 is marked."""
    path = written(tmp_path, "text", b"\xef\xbb\xbfone\r\ntwo\rthree\n\xff\xc3four")
    assert list(text_documents([path])) == ["one\r\ntwo\rthree\n\ufffd\ufffdfour"]


def test_hidden_and_binary_files_of_a_directory_are_passed_over(tmp_path):
    written(tmp_path, "texts/text", "text")
    written(tmp_path, "texts/.git/config", "hidden")
    written(tmp_path, "texts/.hidden", "hidden")
    binary = written(tmp_path, "texts/picture", b"PNG\0\1")
    assert list(text_documents([tmp_path / "texts"])) == ["text"]
    assert list(text_documents([binary])) == ["PNG\0\1"]


@pytest.mark.parametrize(
    "content",
    ["line of text\n" * 200_000, "x" * 2_000_000, "é" * 999 + "\n" + "y" * 1_500_000 + "\nend"],
    ids=["lines", "one line", "long lines"],
)
def test_a_long_file_is_several_documents(tmp_path, content):
    path = written(tmp_path, "corpus.txt", content)
    found = list(text_documents([path]))
    assert "".join(found) == content
    assert len(found) > 10
    assert max(map(len, found)) <= 2 * 65_536
    if content.startswith("line"):
        assert all(piece.endswith("\n") for piece in found)


def test_a_long_file_is_never_in_memory(tmp_path):
    path = written(tmp_path, "corpus.txt", "line of text\n" * 2_000_000)
    tracemalloc.start()
    total = sum(map(len, text_documents([path])))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert total == 26_000_000
    assert peak < 3e6


def test_what_is_not_there_is_named(tmp_path):
    with pytest.raises(DescriptionError, match=r"none\.txt: no such file or directory"):
        list(text_documents([tmp_path / "none.txt"]))
    (tmp_path / "empty").mkdir()
    with pytest.raises(DescriptionError, match="empty: holds no files"):
        list(text_documents([tmp_path / "empty"]))
    with pytest.raises(DescriptionError, match=r"empty: holds no files \*\.jsonl"):
        list(jsonl_documents([tmp_path / "empty"], "text"))


def test_json_lines_are_read(tmp_path):
    texts = ["plain", 'quotes " and \n lines', "höhe \u2028", ""]
    lines = "\n\n".join(json.dumps({"id": i, "text": t}, ensure_ascii=False) for i, t in enumerate(texts))
    path = written(tmp_path, "lines/a.jsonl", lines)
    written(tmp_path, "lines/readme.md", "not JSON")
    assert list(jsonl_documents([path], "text")) == texts
    assert list(jsonl_documents([tmp_path / "lines"], "text")) == texts


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("{", "is not JSON"),
        ("text", "is not JSON"),
        ("[" * 100_000, "is not JSON"),
        ('{"text": 1' + "0" * 5000 + "}", "is not JSON"),
        ('["text"]', "expected an object"),
        ("{}", "has no key 'text' (--key); the object is empty"),
        ('{"txet": "a", "id": 3}', "did you mean 'txet'?"),
        ('{"text": 3}', "text = 3: expected text"),
        ('{"text": null}', "text: expected text"),
    ],
)
def test_wrong_lines_are_named(tmp_path, line, words):
    path = written(tmp_path, "a.jsonl", f'{{"text": "good"}}\n\n{line}\n')
    documents = jsonl_documents([path], "text")
    assert next(documents) == "good"
    with pytest.raises(DescriptionError) as caught:
        next(documents)
    assert f"{path}:3" in str(caught.value)
    assert words in str(caught.value)


@pytest.mark.full
def test_the_standard_library_is_what_is_on_the_machine():
    """Against a walk of the directory: only modules, no tests, none of what others installed."""
    root = Path(sysconfig.get_path("stdlib"))
    walked = set()
    for folder, names, files in os.walk(root):
        names[:] = [
            n
            for n in names
            if n not in {"site-packages", "dist-packages", "idle_test"}
            and not n.startswith("test")
            and n != "__pycache__"
        ]
        walked |= {Path(folder, f) for f in files if f.endswith(".py")}
    texts = {p.read_bytes().removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace") for p in walked}
    found = list(standard_library_documents())
    assert set(found) <= texts
    assert len(found) > 0.95 * len(walked)
    assert found == list(standard_library_documents())
    for name in ("os.py", "json/decoder.py", "collections/__init__.py"):
        assert (root / name).read_text(encoding="utf-8") in found
    for unwanted in ("unittest/test", "lib2to3/tests", "test"):
        for path in sorted((root / unwanted).glob("test_*.py"))[:5]:
            assert path.read_text(encoding="utf-8", errors="replace") not in found


def test_a_python_without_library_files_says_so(tmp_path, monkeypatch):
    monkeypatch.setattr(sysconfig, "get_path", lambda _: str(tmp_path))
    with pytest.raises(DescriptionError, match="holds no Python files; give text with --text"):
        list(standard_library_documents())
