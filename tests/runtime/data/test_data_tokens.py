"""Opening a data set: what is sound opens without being read, what is not is named."""

import json
import resource

import numpy as np
import pytest

from runtime.data.tokens import open_dataset
from twin.description.problems import DescriptionError


def refused(folder, vocabulary: int = 256, sequence: int = 16) -> str:
    with pytest.raises(DescriptionError) as caught:
        open_dataset(folder, vocabulary=vocabulary, sequence=sequence)
    return str(caught.value)


def test_what_was_written_is_mapped(make_dataset):
    folder = make_dataset(range(100), range(40))
    data = open_dataset(folder, vocabulary=256, sequence=16)
    assert data.train.tokens.tolist() == list(range(100))
    assert data.validation.tokens.tolist() == list(range(40))
    assert data.train.path == folder / "train.bin"
    assert not data.train.tokens.flags.writeable
    assert data.manifest.separator == 0


def test_bytes_on_disk_are_little_endian(make_dataset):
    folder = make_dataset([0x0102, 3], [1, 1], changes={"vocabulary": 1000})
    assert (folder / "train.bin").read_bytes() == b"\x02\x01\x03\x00"
    assert open_dataset(folder, vocabulary=1000, sequence=1).train.tokens.tolist() == [0x0102, 3]


def test_opening_reads_nothing(make_dataset):
    """A file of 256 GiB (a hole) opens in next to no memory."""
    folder = make_dataset()
    tokens = 1 << 37
    with (folder / "train.bin").open("r+b") as file:
        file.truncate(2 * tokens)
    manifest = json.loads((folder / "dataset.json").read_text())
    manifest["train"]["tokens"] = tokens
    (folder / "dataset.json").write_text(json.dumps(manifest))
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    data = open_dataset(folder, vocabulary=256, sequence=16)
    assert len(data.train.tokens) == tokens
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 10_000  # KiB


def test_a_missing_directory_says_how_to_build_one(tmp_path):
    assert "no such data set; build one with `fourfold data" in refused(tmp_path / "none")
    assert "dataset.json is missing; build one" in refused(tmp_path)


@pytest.mark.parametrize("name", ["train.bin", "validation.bin"])
def test_missing_and_cut_files_are_named(make_dataset, name):
    folder = make_dataset()
    whole = (folder / name).read_bytes()
    for length in (0, 1, len(whole) - 1, len(whole) + 2):
        (folder / name).write_bytes((whole + b"\0\0")[:length])
        said = refused(folder)
        assert f"{name}: has {length} bytes" in said
        assert f"fourfold data {folder} --force" in said
    (folder / name).unlink()
    assert f"{name}: no such file" in refused(folder)
    (folder / name).mkdir()
    assert f"{name}: no such file" in refused(folder)


def test_a_small_vocabulary_is_refused(make_dataset):
    folder = make_dataset([5, 130, 7] * 9, [1, 2] * 9)
    said = refused(folder, vocabulary=130)
    assert "train.bin: holds token 130, but the model's vocabulary is 130" in said
    assert "at least 131" in said
    open_dataset(folder, vocabulary=131, sequence=16)


def test_too_few_tokens_are_refused(make_dataset):
    """One sequence of s takes s+1 tokens; both files are judged at once."""
    folder = make_dataset(range(17), range(11))
    assert open_dataset(folder, vocabulary=256, sequence=10).validation.tokens.size == 11
    said = refused(folder, sequence=17)
    assert "2 problems" in said
    assert "train.bin: holds 17 tokens" in said
    assert "at most 10" in said


@pytest.mark.parametrize("content", [b"", b"{", b"[" * 100_000, b"\xff\xfe", b"9" * 5000])
def test_broken_json_is_refused(make_dataset, content):
    folder = make_dataset()
    (folder / "dataset.json").write_bytes(content)
    assert "dataset.json: cannot be read" in refused(folder)


def test_huge_json_is_not_even_read(make_dataset):
    folder = make_dataset()
    with (folder / "dataset.json").open("r+b") as file:
        file.truncate(1 << 40)
    assert "dataset.json: too large" in refused(folder)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"schema_version": 2}, "schema_version is 2; this version reads 1"),
        ({"dtype": "float32"}, "dtype"),
        ({"vocabulary": 0}, "vocabulary"),
        ({"vocabulary": "256"}, "vocabulary"),
        ({"vocabulary": True}, "vocabulary"),
        ({"vocabulary": 99}, "beyond the tokenizer's vocabulary of 99"),
        ({"tokenizer": "../../etc/passwd"}, "tokenizer"),
        ({"separator": -1}, "separator"),
        ({"colour": "blue"}, "unknown key"),
        ({"train": None}, "train"),
        ({"train": {"tokens": 100, "documents": 1, "largest_token": 99}}, "train.sha256: missing"),
        ({"train": {"tokens": -100, "documents": 1, "largest_token": 99, "sha256": "0" * 64}}, "train.tokens"),
        ({"train": {"tokens": 1e2, "documents": 1, "largest_token": 99, "sha256": "0" * 64}}, "train.tokens"),
        ({"train": {"tokens": 100, "documents": 1, "largest_token": 99, "sha256": "x"}}, "train.sha256"),
    ],
)
def test_impossible_manifests_are_refused(make_dataset, changes, words):
    said = refused(make_dataset(changes=changes))
    assert words in said
    assert "set" in said
    assert "fourfold data" in said


@pytest.mark.parametrize("value", [[], 1, None, "x"])
def test_json_that_is_no_object_is_refused(make_dataset, value):
    folder = make_dataset()
    (folder / "dataset.json").write_text(json.dumps(value))
    assert "schema_version is None" in refused(folder)


def test_tokens_are_never_copied(make_dataset):
    tokens = open_dataset(make_dataset(), vocabulary=256, sequence=16).train.tokens
    assert isinstance(tokens.base, np.memmap)
