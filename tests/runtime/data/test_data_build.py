"""Building: the files hold the documents, in two disjoint parts, whole or not at all."""

import hashlib
import json
import os
import re
import signal
import subprocess
import sys
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data import build
from runtime.data.build import build_dataset, default_dataset
from runtime.data.tokens import open_dataset
from tests.profiles import examples
from twin.description.problems import DescriptionError

DOCUMENTS = [f"document {i}: " + "words and more " * (i % 7) for i in range(400)]


def stored(folder: Path, split: str) -> list[str]:
    """Documents of a byte-level split, read without the code under test."""
    raw = np.fromfile(folder / f"{split}.bin", dtype="<u2").astype(np.uint8).tobytes()
    assert raw.endswith(b"\0")
    return raw[:-1].decode("utf-8").split("\0")


def test_every_document_is_in_one_of_two_files(tmp_path):
    seen: list[tuple[int, int]] = []
    build_dataset(tmp_path / "set", DOCUMENTS, progress=lambda *now: seen.append(now))
    train, validation = (stored(tmp_path / "set", name) for name in ("train", "validation"))
    assert sorted(train + validation) == sorted(DOCUMENTS)
    assert train == [d for d in DOCUMENTS if d in set(train)]
    assert not set(train) & set(validation)
    assert 1 <= len(validation) <= 20  # 8 expected
    assert seen[-1] == (400, sum(len(d) + 1 for d in DOCUMENTS))
    assert [documents for documents, _ in seen] == list(range(1, 401))


def test_the_manifest_is_true(tmp_path):
    returned = build_dataset(tmp_path / "set", [*DOCUMENTS, "höhe", ""])
    written = json.loads((tmp_path / "set" / "dataset.json").read_text())
    assert written == returned.model_dump()
    assert written["dtype"] == "uint16"
    assert (written["vocabulary"], written["tokenizer"], written["separator"]) == (256, "bytes", 0)
    for name in ("train", "validation"):
        raw = (tmp_path / "set" / f"{name}.bin").read_bytes()
        tokens = np.frombuffer(raw, dtype="<u2")
        assert written[name] == {
            "tokens": len(tokens),
            "documents": int((tokens == 0).sum()),
            "largest_token": tokens.max(),
            "sha256": hashlib.sha256(raw).hexdigest(),
        }
    assert written["train"]["documents"] + written["validation"]["documents"] == 401
    data = open_dataset(tmp_path / "set", vocabulary=256, sequence=8)
    assert len(data.train.tokens) == written["train"]["tokens"]


@given(st.permutations(DOCUMENTS[:40]), st.lists(st.sampled_from(DOCUMENTS[:40]), max_size=9))
@examples(0.25)
def test_the_split_depends_on_the_text_alone(tmp_path_factory, order, copies):
    """Not on order, copies or tokens; a copy never tells validation what training has seen."""
    folder = tmp_path_factory.mktemp("sets")
    build_dataset(folder / "plain", DOCUMENTS[:40], validation_fraction=0.3)
    build_dataset(folder / "other", [*order, *copies], validation_fraction=0.3)
    for split in ("train", "validation"):
        assert set(stored(folder / "plain", split)) == set(stored(folder / "other", split))


@pytest.mark.parametrize("fraction", [0.01, 0.1, 0.5, 0.9])
def test_the_fraction_is_kept(tmp_path, fraction):
    """Four standard deviations of a binomial."""
    documents = [str(i) for i in range(10_000)]
    manifest = build_dataset(tmp_path / "set", documents, validation_fraction=fraction)
    spread = 4 * (10_000 * fraction * (1 - fraction)) ** 0.5
    assert abs(manifest.validation.documents - 10_000 * fraction) < spread


class Wide:
    """A tokenizer of more than 65,536 tokens and no separator: characters."""

    vocabulary, separator, begin, json = 0x110000, None, None, None

    def encode(self, text: str) -> np.ndarray:
        return np.array([ord(c) for c in text], dtype=np.int64)

    def decode(self, tokens) -> str:
        return "".join(map(chr, tokens))


def test_large_vocabularies_take_four_bytes(tmp_path):
    manifest = build_dataset(tmp_path / "set", ["\U0001f600é", *DOCUMENTS], Wide(), 0.5)
    assert manifest.dtype == "uint32"
    text = "".join(
        np.fromfile(tmp_path / "set" / f"{name}.bin", dtype="<u4").tobytes().decode("utf-32-le")
        for name in ("train", "validation")
    )
    assert sorted(text) == sorted("\U0001f600é" + "".join(DOCUMENTS))
    assert max(manifest.train.largest_token, manifest.validation.largest_token) == 0x1F600


def test_a_tokenizer_that_lies_is_caught(tmp_path):
    liar = Wide()
    liar.vocabulary = 100
    with pytest.raises(DescriptionError, match="outside its vocabulary of 100"):
        build_dataset(tmp_path / "set", DOCUMENTS, liar)
    assert list(tmp_path.iterdir()) == []


def test_the_corpus_is_never_in_memory(tmp_path):
    documents = (f"{i} " * 200_000 for i in range(100))  # some 60 MB in all
    tracemalloc.start()
    build_dataset(tmp_path / "set", documents, validation_fraction=0.2)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 20e6
    assert sum(p.stat().st_size for p in (tmp_path / "set").iterdir()) > 100e6


@pytest.mark.parametrize("fraction", [0.0, 1.0, -1, 2, float("nan")])
def test_impossible_fractions_are_refused(tmp_path, fraction):
    with pytest.raises(DescriptionError, match="above 0 and below 1"):
        build_dataset(tmp_path / "set", DOCUMENTS, validation_fraction=fraction)


@pytest.mark.parametrize("fraction", [0.0001, 0.9999])
@pytest.mark.parametrize("count", [2, 3, 10])
def test_the_remedy_for_an_empty_split_works(tmp_path, fraction, count):
    with pytest.raises(DescriptionError) as caught:
        build_dataset(tmp_path / "set", DOCUMENTS[:count], validation_fraction=fraction)
    assert list(tmp_path.iterdir()) == []
    said = re.search(r"none of (\d+) documents for (\w+); set it to at \w+ ([0-9.]+)", str(caught.value))
    assert said, caught.value
    assert said[1] == str(count)
    assert said[2] == ("validation" if fraction < 0.5 else "training")
    manifest = build_dataset(tmp_path / "set", DOCUMENTS[:count], validation_fraction=float(said[3]))
    few = manifest.validation if fraction < 0.5 else manifest.train
    assert few.documents == 1


@pytest.mark.parametrize(
    ("documents", "words"),
    [([], "hold no text"), (["", ""], "hold no text"), (["a"], "all the same one"), (["a"] * 9, "all the same one")],
)
def test_too_few_documents_are_refused(tmp_path, documents, words):
    with pytest.raises(DescriptionError, match=words):
        build_dataset(tmp_path / "set", documents)
    assert list(tmp_path.iterdir()) == []


def test_existing_directories_are_kept(tmp_path):
    target = tmp_path / "set"
    target.mkdir()
    (target / "holiday.jpg").write_bytes(b"sun")
    with pytest.raises(DescriptionError, match="exists already"):
        build_dataset(target, DOCUMENTS)
    with pytest.raises(DescriptionError, match=r"has no dataset\.json"):
        build_dataset(target, DOCUMENTS, overwrite=True)
    assert (target / "holiday.jpg").read_bytes() == b"sun"
    (target / "holiday.jpg").unlink()
    build_dataset(target, DOCUMENTS, overwrite=True)
    before = (target / "train.bin").read_bytes()

    def failing() -> Iterator[str]:
        yield from DOCUMENTS[:9]
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        build_dataset(target, failing(), overwrite=True)
    assert (target / "train.bin").read_bytes() == before
    build_dataset(target, DOCUMENTS[::2], overwrite=True)
    assert len((target / "train.bin").read_bytes()) < len(before)
    assert [p.name for p in tmp_path.iterdir()] == ["set"]


def test_where_nothing_can_be_written_says_so(tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(DescriptionError, match=r"cannot be written: .* is a file; choose another place"):
        build_dataset(tmp_path / "file" / "set", DOCUMENTS)
    with pytest.raises(DescriptionError, match="cannot be written: File exists"):
        default_dataset(tmp_path / "file")


def python(code: str, *arguments: object) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.mark.process
@pytest.mark.quick
def test_a_full_disk_leaves_nothing_behind(tmp_path):
    """Here a limit on the size of files, which fails where a full disk would."""
    code = """
import resource, sys
from pathlib import Path
from runtime.data.build import build_dataset
resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, resource.RLIM_INFINITY))
build_dataset(Path(sys.argv[1]), (str(i) * 9 for i in range(100_000)))
"""
    with python(code, tmp_path / "set") as process:
        _, errors = process.communicate()
    assert "cannot be written: File too large" in errors
    assert list(tmp_path.iterdir()) == []


@pytest.mark.process
@pytest.mark.quick
def test_a_kill_leaves_no_data_set(tmp_path):
    code = """
import os, signal, sys
from pathlib import Path
from runtime.data.build import build_dataset
def documents():
    yield from map(str, range(5000))
    os.kill(os.getpid(), signal.SIGKILL)
build_dataset(Path(sys.argv[1]), documents())
"""
    with python(code, tmp_path / "set") as process:
        process.communicate()
    assert process.returncode == -signal.SIGKILL
    assert not (tmp_path / "set").exists()
    build_dataset(tmp_path / "set", DOCUMENTS)
    open_dataset(tmp_path / "set", vocabulary=256, sequence=8)


@pytest.mark.process
def test_the_default_data_set_is_built_once_by_many(tmp_path):
    """Four processes at once: one builds, all get the same directory."""
    code = """
import sys
from pathlib import Path
from runtime.data import build
inner = build.build_dataset
def counted(*given, **named):
    print("building")
    return inner(*given, **named)
build.build_dataset = counted
print(build.default_dataset(Path(sys.argv[1])))
"""
    processes = [python(code, tmp_path / "cache") for _ in range(4)]
    printed = [process.communicate()[0].split() for process in processes]
    assert all(process.returncode == 0 for process in processes)
    assert sum("building" in lines for lines in printed) == 1
    assert len({lines[-1] for lines in printed}) == 1
    folder = Path(printed[0][-1])
    assert folder.parent == tmp_path / "cache"
    assert folder.name.endswith(f"{sys.version_info.major}.{sys.version_info.minor}.{sys.version_info.micro}")
    assert {p.name for p in folder.parent.iterdir()} == {folder.name, f".{folder.name}.lock"}
    data = open_dataset(folder, vocabulary=256, sequence=512)
    assert len(data.train.tokens) > 1e6
    assert len(data.validation.tokens) > 1e4


def test_without_locks_the_first_to_finish_is_believed(tmp_path, monkeypatch):
    """A file system that knows no locks, and another rank that is done a moment earlier."""

    def no_locks(*_: object) -> None:
        raise OSError(38, os.strerror(38))

    def overtaken(out: Path, _: object) -> None:
        build_dataset(out, DOCUMENTS)
        build_dataset(out, DOCUMENTS)

    monkeypatch.setattr(build.fcntl, "flock", no_locks)
    monkeypatch.setattr(build, "build_dataset", overtaken)
    folder = default_dataset(tmp_path)
    assert sorted(p.name for p in folder.iterdir()) == ["dataset.json", "train.bin", "validation.bin"]
