"""Text whose documents begin sequences: where each token stands, which targets count, what a training makes of it."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data.batches import Batches
from runtime.data.build import _Writer, build_dataset
from runtime.data.tokenizer import ByteTokenizer
from runtime.data.tokens import open_dataset
from runtime.plan.sources import open_sources
from tests.profiles import examples
from tests.runtime import asked, runs
from twin.description.problems import DescriptionError
from twin.strategies import load_job

SEQUENCE = 8
DOCUMENTS = [chr(97 + i % 26) * (1 + i * 7 % 23) + str(i) for i in range(120)]
"""Of 2 to 26 bytes, and a separator each."""


def laid_out(documents: list[str]) -> tuple[list[list[int]], list[list[bool]]]:
    """The rule as it is said: each window's inputs and the token after them, and which of its targets count."""
    pieces = []
    for document in documents:
        tokens = [*document.encode(), 0]
        if len(tokens) % SEQUENCE == 1:
            tokens.pop()  # a sequence of one token predicts nothing
        if tokens:
            pieces += [tokens[at : at + SEQUENCE] for at in range(0, len(tokens), SEQUENCE)]
    begins = [True] * len(pieces)
    at = 0
    for document in documents:
        count = -(-(len(document.encode()) + ((len(document.encode()) + 1) % SEQUENCE != 1)) // SEQUENCE)
        begins[at + 1 : at + count] = [False] * (count - 1)
        at += count
    windows, targets = [], []
    for number, piece in enumerate(pieces):
        goes_on = number + 1 < len(pieces) and not begins[number + 1]
        after = [*pieces[number + 1], *[0] * SEQUENCE][0] if number + 1 < len(pieces) else 0
        windows.append([*piece, *[0] * (SEQUENCE - len(piece)), after])
        targets.append([i + 1 < len(piece) or (i + 1 == SEQUENCE and goes_on) for i in range(SEQUENCE)])
    return windows, targets


def built(folder: Path, documents: list[str]) -> Path:
    build_dataset(folder / "set", documents, validation_fraction=0.3, sequence=SEQUENCE)
    return folder / "set"


@examples(0.5)
@given(st.lists(st.integers(1, 3 * SEQUENCE), min_size=1, max_size=12))
def test_where_tokens_stand_and_which_count(tmp_path_factory, lengths):
    """Of one split, read as the training reads it."""
    documents = [chr(97 + i) * n for i, n in enumerate(lengths)]
    path = tmp_path_factory.mktemp("split") / "train.bin"
    with _Writer(path, "uint16", ByteTokenizer(), SEQUENCE) as writer:
        for document in documents:
            writer.add(document, 0.5)
    tokens, counts = np.fromfile(path, "<u2"), np.fromfile(path.with_suffix(".targets.bin"), "u1")
    windows, targets = laid_out(documents)
    assert len(tokens) == len(counts) == len(windows) * SEQUENCE + 1
    for number, (window, target) in enumerate(zip(windows, targets, strict=True)):
        at = number * SEQUENCE
        assert tokens[at : at + SEQUENCE + 1].tolist() == window
        assert counts[at + 1 : at + SEQUENCE + 1].astype(bool).tolist() == target
    summary = writer.summary()
    assert summary.targets == sum(map(sum, targets))
    assert summary.padding == len(windows) * SEQUENCE - sum(n + ((n + 1) % SEQUENCE != 1) for n in lengths)
    assert summary.left_out is None


def test_a_data_set_says_how_it_is_laid_out(tmp_path):
    out = built(tmp_path, DOCUMENTS)
    manifest = json.loads((out / "dataset.json").read_text())
    assert manifest["sequence"] == SEQUENCE
    assert manifest["separator"] == 0
    data = open_dataset(out, vocabulary=256, sequence=SEQUENCE)
    found = []
    for file, split in ((data.train, manifest["train"]), (data.validation, manifest["validation"])):
        assert set(split) == {"tokens", "documents", "largest_token", "sha256", "targets", "targets_sha256", "padding"}
        batches = Batches(file, SEQUENCE, 3, 256, shuffle=False)
        assert batches.documents(0, 2) is None  # each sample is of one document, whatever bytes it has
        targets = batches.targets(0, batches.windows)
        assert targets is not None
        assert int(targets.sum()) == split["targets"]
        windows = batches.sequences(0, batches.windows)
        text = bytes(windows[:, :-1].flatten().astype(np.uint8)).decode()
        found += [part for part in text.split("\0") if part]
    whole = "".join(found)
    assert sorted(whole) == sorted("".join(DOCUMENTS))
    with pytest.raises(DescriptionError, match=r"laid out for sequences of 8; set model\.sequence to that"):
        open_dataset(out, vocabulary=256, sequence=16)


def test_what_has_nothing_to_predict_is_no_document(tmp_path):
    """Without a separator, a token alone."""
    silent = ByteTokenizer(separator=None)
    manifest = build_dataset(tmp_path / "set", ["a", *DOCUMENTS], silent, 0.3, sequence=SEQUENCE)
    assert manifest.train.documents + manifest.validation.documents == len(DOCUMENTS)
    with pytest.raises(DescriptionError, match="hold no text"):
        build_dataset(tmp_path / "other", ["a", "b", "c"], silent, 0.3, sequence=SEQUENCE)


def test_the_command_says_how_full_sequences_are(tmp_path, capsys):
    (tmp_path / "texts").mkdir()
    for i, document in enumerate(DOCUMENTS):
        (tmp_path / "texts" / f"{i:03}.txt").write_text(document)
    arguments = ("--text", tmp_path / "texts", "--sequence", SEQUENCE, "--validation-fraction", 0.3)
    said, _ = asked.ask_here(capsys, "data", tmp_path / "set", *arguments)
    data = open_dataset(tmp_path / "set", vocabulary=256, sequence=SEQUENCE)
    count = data.manifest.train.tokens // SEQUENCE
    full = 1 - (data.manifest.train.padding or 0) / (count * SEQUENCE)
    assert f"train: {count} sequences of {SEQUENCE}, {full:.1%} full\n" in said
    assert "left out" not in said
    for unfit in (1, 10**12, 10**20):
        _, told = asked.ask_here(capsys, "data", tmp_path / "other", "--sequence", unfit, code=2)
        assert "--sequence" in told


def test_a_mask_of_documents_needs_no_separator_here(tmp_path):
    """Each sequence is of one document."""
    out = tmp_path / "set"
    build_dataset(out, DOCUMENTS, ByteTokenizer(separator=None), 0.3, sequence=SEQUENCE)
    model = {"layers": 1, "hidden": 16, "heads": 2, "sequence": SEQUENCE, "vocabulary": 256}
    job = load_job(runs.write_job(tmp_path, model=model, train={"data": str(out)}, document_mask=True))
    assert open_sources(job, job.train).parts[0].manifest.separator is None


@pytest.mark.process
def test_padding_is_not_learnt(tmp_path):
    """Documents of noise, most of a sequence padding: a model that learnt the padding would fall far below ln 26."""
    noise = np.random.default_rng(1).integers(97, 123, (200, 8))
    documents = [bytes(row.astype(np.uint8)).decode() for row in noise]
    build_dataset(tmp_path / "set", documents, ByteTokenizer(separator=None), 0.3, sequence=64)
    model = {"layers": 1, "hidden": 32, "heads": 2, "sequence": 64, "vocabulary": 256}
    train = {"steps": 40, "learning_rate": {"peak": 1e-2}, "sample": {"tokens": 0}, "data": str(tmp_path / "set")}
    job = runs.write_job(tmp_path, model=model, train=train)
    done = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "run"))
    assert done.returncode == 0, done.stderr
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    validation = [line["validation_loss"] for line in lines if "validation_loss" in line]
    assert validation[0] > 5
    assert np.log(26) * 0.97 < validation[-1] < 4.2
