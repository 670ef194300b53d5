"""Text to tokens and back, for bytes and for a tokenizer trained here."""

import json
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data.build import build_dataset
from runtime.data.tokenizer import ByteTokenizer, JsonTokenizer, load_tokenizer
from twin.description.problems import DescriptionError

TEXT = "the quick brown fox jumps over the lazy dog; der schnelle Fuchs höhe "


@pytest.fixture(scope="module")
def tokenizer_file(tmp_path_factory) -> Path:
    """Byte-level BPE of 300 tokens, saved with everything that would spoil a data set."""
    library = pytest.importorskip("tokenizers")
    tokenizer = library.Tokenizer(library.models.BPE())
    tokenizer.pre_tokenizer = library.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = library.decoders.ByteLevel()
    trainer = library.trainers.BpeTrainer(
        vocab_size=300,
        show_progress=False,
        special_tokens=["<pad>", "<|endoftext|>"],
        initial_alphabet=library.pre_tokenizers.ByteLevel.alphabet(),
    )
    tokenizer.train_from_iterator([TEXT] * 20, trainer)
    tokenizer.post_processor = library.processors.TemplateProcessing(
        single="$A <|endoftext|>", special_tokens=[("<|endoftext|>", 1)]
    )
    tokenizer.enable_truncation(5)
    tokenizer.enable_padding(length=5)
    path = tmp_path_factory.mktemp("tokenizer") / "bpe.json"
    tokenizer.save(str(path))
    return path


@given(st.text())
def test_bytes_are_utf_8(text):
    tokens = ByteTokenizer().encode(text)
    assert bytes(tokens.tolist()) == text.encode("utf-8")
    assert ByteTokenizer().decode(tokens.tolist()) == text


@given(st.lists(st.integers(-10, 70_000)))
def test_any_tokens_can_be_shown(tokens):
    """A model says what it likes, and its vocabulary may be padded."""
    shown = ByteTokenizer().decode(tokens)
    assert shown == b"".join(bytes([t]) if 0 <= t < 256 else b"\xff" for t in tokens).decode("utf-8", "replace")
    assert ByteTokenizer().decode(np.array(tokens, dtype=np.int64)) == shown


def test_half_a_surrogate_pair_is_a_question_mark(tokenizer_file):
    assert ByteTokenizer().encode("a\ud800b").tolist() == list(b"a?b")
    tokenizer = JsonTokenizer(tokenizer_file)
    assert tokenizer.decode(tokenizer.encode("a\ud800b")) == "a?b"


def test_a_tokenizer_file_encodes_all_of_the_text_and_nothing_else(tokenizer_file):
    """Truncation, padding and added tokens of the file are for other uses."""
    tokenizer = JsonTokenizer(tokenizer_file)
    assert tokenizer.separator == 1
    assert tokenizer.vocabulary == 1 + max(json.loads(tokenizer_file.read_text())["model"]["vocab"].values())
    for text in (TEXT * 3, "a", "written <|endoftext|> by an author", "\0 \U0001f600"):
        tokens = tokenizer.encode(text)
        assert not {0, 1} & set(tokens.tolist())
        assert tokenizer.decode(tokens) == text
    assert len(tokenizer.encode("")) == 0
    assert len(tokenizer.encode(TEXT)) < len(TEXT.encode())
    assert tokenizer.decode([1]) == "<|endoftext|>"
    assert tokenizer.decode([-1, 99_999, *tokenizer.encode("ok")]) == "ok"


@pytest.mark.parametrize("name", ["<|endoftext|>", "</s>", "<eos>", "<|end_of_text|>", "<stop>"])
def test_the_end_of_a_text_has_many_names(tmp_path, tokenizer_file, name):
    path = tmp_path / "named.json"
    path.write_text(tokenizer_file.read_text().replace("<|endoftext|>", name))
    assert JsonTokenizer(path).separator == (None if name == "<stop>" else 1)


def test_a_data_set_carries_its_tokenizer(tmp_path, tokenizer_file):
    documents = [f"{i} {TEXT}" for i in range(50)]
    own = tmp_path / "own.json"
    shutil.copy(tokenizer_file, own)
    manifest = build_dataset(tmp_path / "set", documents, JsonTokenizer(own), 0.2)
    own.unlink()
    assert manifest.tokenizer == "tokenizer.json"
    tokenizer = load_tokenizer(tmp_path / "set")
    texts = []
    for split in ("train", "validation"):
        tokens = np.fromfile(tmp_path / "set" / f"{split}.bin", dtype="<u2").tolist()
        assert tokens.count(1) == getattr(manifest, split).documents
        texts += tokenizer.decode(tokens).split("<|endoftext|>")[:-1]
    assert sorted(texts) == sorted(documents)


def test_a_tokenizer_exchanged_later_is_refused(tmp_path, tokenizer_file):
    build_dataset(tmp_path / "set", ["a", "b", "c d"], JsonTokenizer(tokenizer_file), 0.5)
    copy = tmp_path / "set" / "tokenizer.json"
    raw = json.loads(copy.read_text())
    raw["added_tokens"].append({**raw["added_tokens"][0], "id": 300, "content": "<new>"})
    copy.write_text(json.dumps(raw))
    with pytest.raises(DescriptionError, match=r"a vocabulary of 301, but the data .* 300"):
        load_tokenizer(tmp_path / "set")
    copy.unlink()
    with pytest.raises(DescriptionError, match=r"tokenizer\.json: cannot be read: No such file"):
        load_tokenizer(tmp_path / "set")


def test_bytes_need_no_file(make_dataset):
    assert isinstance(load_tokenizer(make_dataset()), ByteTokenizer)


@pytest.mark.parametrize("content", [b"", b"{", b"[1]", b"{}", b"\xff\xfe"])
def test_what_is_no_tokenizer_is_refused(tmp_path, content):
    pytest.importorskip("tokenizers")
    path = tmp_path / "bad.json"
    path.write_bytes(content)
    with pytest.raises(DescriptionError, match=r"bad\.json: is not a file of the tokenizers library"):
        JsonTokenizer(path)


def test_a_tokenizer_file_must_be_a_small_file(tmp_path):
    pytest.importorskip("tokenizers")
    with pytest.raises(DescriptionError, match="No such file"):
        JsonTokenizer(tmp_path / "none.json")
    with pytest.raises(DescriptionError, match="Is a directory"):
        JsonTokenizer(tmp_path)
    huge = tmp_path / "huge.json"
    with huge.open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(DescriptionError, match="too large for a tokenizer"):
        JsonTokenizer(huge)


def test_without_the_library_the_remedy_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "tokenizers", None)
    with pytest.raises(DescriptionError, match="pip install tokenizers"):
        JsonTokenizer(tmp_path / "any.json")
