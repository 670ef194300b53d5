"""Tokenizers that put a token before a text, and those that mark where words begin: as their own library encodes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from runtime.data.build import build_dataset
from runtime.data.chat import Message, chatml
from runtime.data.tokenizer import JsonTokenizer, begun, load_tokenizer
from runtime.data.tokens import open_dataset
from runtime.inference.prompts import one_prompt
from twin.strategies import load_job

tokenizers = pytest.importorskip("tokenizers")
WORDS = ["<unk>", "<s>", "</s>", "<|im_start|>", "<|im_end|>", "▁", *"abcdefghijklmnopqrstuvwxyzIA.\n"]


def made(folder: Path, *, begins: bool = False, scheme: str = "first") -> Path:
    """Write a tokenizer of letters with a mark for each space, as SentencePiece has; Llama's puts <s> first."""
    known = {word: number for number, word in enumerate(WORDS)}
    letters = tokenizers.Tokenizer(tokenizers.models.BPE(vocab=known, merges=[], unk_token="<unk>"))
    letters.pre_tokenizer = tokenizers.pre_tokenizers.Metaspace(prepend_scheme=scheme)
    letters.add_special_tokens(["<s>", "</s>", "<|im_start|>", "<|im_end|>"])
    if begins:
        put = tokenizers.processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
        letters.post_processor = put
    path = folder / "tokenizer.json"
    letters.save(str(path))
    return path


def library(path: Path) -> Any:
    return tokenizers.Tokenizer.from_file(str(path))


def test_what_begins_a_text_is_what_the_library_puts_there(tmp_path: Path) -> None:
    path = made(tmp_path, begins=True)
    ours, theirs = JsonTokenizer(path), library(path)
    for text in ("a bad cab", " a", "x"):
        assert begun(ours, ours.encode(text)).tolist() == theirs.encode(text).ids
    assert (ours.begin, JsonTokenizer(made(tmp_path)).begin) == (1, None)


@pytest.mark.parametrize("processor", ["ends", "both", "two"])
def test_what_is_put_elsewhere_begins_nothing_or_is_left_out(tmp_path: Path, processor: str) -> None:
    template, expected = {"ends": ("$A </s>", None), "both": ("<s> $A </s>", 1), "two": ("<s> <s> $A", None)}[processor]
    path = made(tmp_path)
    changed = library(path)
    special = [("<s>", 1), ("</s>", 2)]
    changed.post_processor = tokenizers.processors.TemplateProcessing(single=template, special_tokens=special)
    changed.save(str(path))
    assert JsonTokenizer(path).begin == expected


@pytest.mark.parametrize("begins", [False, True])
def test_documents_and_prompts_begin_as_the_library_lets_them(tmp_path: Path, begins: bool) -> None:
    path = made(tmp_path, begins=begins)
    texts = ["a cab", "bad", "fed a", "dead", "bead", "cafe a", "deaf", "face", "fade", "ace"]
    build_dataset(tmp_path / "data", texts, JsonTokenizer(path), 0.3)
    opened = open_dataset(tmp_path / "data", vocabulary=len(WORDS), sequence=2)
    assert opened.manifest.begin == (1 if begins else None)
    assert ("begin" in json.loads((tmp_path / "data" / "dataset.json").read_text())) is begins
    found = [list(map(int, tokens)) for part in ("train", "validation") for tokens in _documents(tmp_path, part)]
    assert sorted(found) == sorted([*library(path).encode(text).ids, 2] for text in texts)
    model = load_job({"model": "gpt-5b", "machine": "laptop", "ranks": 1, "batch": {"sequences": 1}}).model
    tokenizer = load_tokenizer(tmp_path / "data")
    assert list(one_prompt("a cab", tokenizer, model, "--prompt").tokens) == library(path).encode("a cab").ids


def _documents(folder: Path, part: str) -> list[np.ndarray[Any, Any]]:
    tokens = np.fromfile(folder / "data" / f"{part}.bin", np.uint16)
    return np.split(tokens, np.flatnonzero(tokens == 2)[:-1] + 1)


@pytest.mark.parametrize("scheme", ["first", "always", "never"])
def test_a_conversation_is_encoded_as_one_text(tmp_path: Path, scheme: str) -> None:
    """Whoever asks a model encodes the whole of a chat at once: no mark of a word stands before an answer by itself."""
    path = made(tmp_path, scheme=scheme)
    marked = chatml([Message("user", "a cab."), Message("assistant", "It fed a.")])
    ids, counts = JsonTokenizer(path).encode_pieces(marked.pieces)
    assert ids.tolist() == library(path).encode(marked.text, add_special_tokens=False).ids
    assert "".join(WORDS[i] for i in ids[counts]) == "It▁fed▁a.<|im_end|>"


def test_a_turn_that_quotes_a_special_token_does_not_end_there(tmp_path: Path) -> None:
    marked = chatml([Message("user", "a"), Message("assistant", "b <|im_end|> c")])
    ids, counts = JsonTokenizer(made(tmp_path)).encode_pieces(marked.pieces)
    assert ids[counts].tolist().count(WORDS.index("<|im_end|>")) == 1
