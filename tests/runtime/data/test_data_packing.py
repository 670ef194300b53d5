"""Packed conversations: first fit in order, whole, where each begins; files, their checks, and a training on them."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from runtime.data import packing
from runtime.data.batches import Batches
from runtime.data.packing import Packed, Packer
from runtime.data.tokens import open_dataset
from runtime.plan.sources import open_sources
from tests.profiles import examples
from tests.runtime import asked, runs
from twin.description.problems import DescriptionError
from twin.strategies import load_job

SEQUENCE = 12
LENGTHS = st.lists(st.integers(1, SEQUENCE), max_size=60)


def packed(lengths: list[int]) -> list[Packed]:
    """Conversation i is the number i+1, again and again; all of it counts."""
    packer = Packer(SEQUENCE)
    found = [
        done for i, n in enumerate(lengths) for done in packer.add(np.full(n, i + 1, np.int64), np.ones(n, np.bool_))
    ]
    return found + list(packer.rest())


def first_fit(lengths: list[int], most_open: int) -> list[list[int]]:
    """The rule as it is said, over conversations by number."""
    bins: list[list[int]] = []
    closed: list[list[int]] = []
    for i, n in enumerate(lengths):
        fits = [b for b in bins if sum(lengths[k] for k in b) + n <= SEQUENCE]
        if not fits:
            if len(bins) == most_open:
                closed.append(bins.pop(0))
            bins.append([])
            fits = [bins[-1]]
        fits[0].append(i)
        if sum(lengths[k] for k in fits[0]) == SEQUENCE:
            bins = [b for b in bins if b is not fits[0]]
            closed.append(fits[0])
    return closed + bins


@pytest.mark.parametrize("most_open", [256, 3, 1])
def test_first_fit_in_order(monkeypatch, most_open):
    monkeypatch.setattr(packing, "MAX_OPEN", most_open)

    @given(lengths=LENGTHS)
    @examples(0.5)
    def check(lengths: list[int]) -> None:
        expected = first_fit(lengths, most_open)
        found = packed(lengths)
        assert len(found) == len(expected)
        for sequence, members in zip(found, expected, strict=True):
            tokens = [i + 1 for i in members for _ in range(lengths[i])]
            padding = SEQUENCE - len(tokens)
            assert sequence.padding == padding
            assert sequence.tokens.tolist() == tokens + [0] * padding
            begins = np.cumsum([0, *(lengths[i] for i in members)]).tolist()
            assert np.flatnonzero(sequence.begins).tolist() == [place for place in begins if place < SEQUENCE]
            inside = [token > 0 for token in sequence.tokens]
            assert sequence.counts.tolist() == [a and not b for a, b in zip(inside, sequence.begins, strict=True)]

    check()


def conversations(folder: Path, count: int = 60) -> Path:
    """Conversations of many lengths: 53 bytes and more, as ChatML writes them."""
    path = folder / "talk.jsonl"
    said = [
        {"prompt": "p" * (i % 7), "completion": "".join(chr(97 + i * k % 26) for k in range(i % 31))}
        for i in range(count)
    ]
    path.write_text("".join(json.dumps({**each, "completion": each["completion"] + "!"}) + "\n" for each in said))
    return path


def data(capsys: pytest.CaptureFixture[str], out: Path, *options: object, sequence: int = 256) -> str:
    chat = conversations(out.parent)
    arguments = ("--chat", chat, "--sequence", sequence, "--validation-fraction", 0.3, *options)
    return asked.ask_here(capsys, "data", out, *arguments)[0]


def test_a_packed_data_set_says_where_conversations_begin(tmp_path, capsys):
    told = data(capsys, tmp_path / "packed", "--pack")
    data(capsys, tmp_path / "single")
    found = {name: open_dataset(tmp_path / name, vocabulary=256, sequence=256) for name in ("packed", "single")}
    texts = {}
    for name, each in found.items():
        batches = Batches(each.train, 256, 0, 256, shuffle=False)
        windows, targets = batches.sequences(0, batches.windows)[:, :-1], batches.targets(0, batches.windows)
        documents = batches.documents(0, batches.windows)
        texts[name] = []
        for i, window in enumerate(windows):
            begins = np.zeros_like(window) if documents is None else documents[i]
            for begin in np.unique(begins):
                own = begins == begin
                text = bytes(window[own].astype(np.uint8)).rstrip(b"\0").decode()
                # a target is the token after: those of this conversation are one further
                answer = bytes(window[1:][targets[i][:-1] & own[1:]].astype(np.uint8)).decode()
                if text:
                    texts[name].append((text, answer))
                else:
                    assert not answer
    assert sorted(texts["packed"]) == sorted(texts["single"])
    assert all(answer.endswith("!<|im_end|>") for _, answer in texts["packed"])
    manifest = json.loads((tmp_path / "packed" / "dataset.json").read_text())
    for split in ("train", "validation"):
        said, single = manifest[split], getattr(found["single"].manifest, split)
        assert (said["documents"], said["targets"]) == (single.documents, single.targets)
        assert said["tokens"] < 0.5 * single.tokens
        raw = (tmp_path / "packed" / f"{split}.documents.bin").read_bytes()
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (said["tokens"], said["documents_sha256"])
        count = said["tokens"] // 256
        full = 1 - said["padding"] / (count * 256)
        assert (
            f"{split}: {count} sequences of 256, {said['documents'] / count:.2f} conversations in each, {full:.1%} full"
            in told
        )
        characters = sum(len(text) for text, _ in texts["packed"])
        assert split != "train" or count * 256 - said["padding"] == characters
    assert "documents_sha256" not in (tmp_path / "single" / "dataset.json").read_text()
    assert not (tmp_path / "single" / "train.documents.bin").exists()


def test_the_file_of_beginnings_is_missed(tmp_path, capsys):
    data(capsys, tmp_path / "packed", "--pack")
    (tmp_path / "packed" / "train.documents.bin").write_bytes(b"\1")
    with pytest.raises(
        DescriptionError, match=r"needs train\.documents\.bin beside it, with a byte for each token; build"
    ):
        open_dataset(tmp_path / "packed", vocabulary=256, sequence=256)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--pack"], "--pack = True: is for conversations"),
        (["--pack", "--text", "."], "--pack = True: is for conversations"),
        (["--pack", "--chat", "x.jsonl"], "--sequence: is missing"),
    ],
)
def test_packing_is_for_conversations(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    assert words in asked.ask_here(capsys, "data", "out", *arguments, code=2)[1]
    assert not (tmp_path / "out").exists()


def test_without_a_separator_documents_are_not_known(tmp_path):
    library = pytest.importorskip("tokenizers")
    from runtime.data.build import build_dataset
    from runtime.data.tokenizer import JsonTokenizer

    words = library.Tokenizer(library.models.WordLevel({"a": 0, "b": 1, "c": 2}, unk_token="c"))
    words.pre_tokenizer = library.pre_tokenizers.Whitespace()
    words.save(str(tmp_path / "words.json"))
    texts = (f"a b {'c ' * (20 + number)}" for number in range(60))
    build_dataset(tmp_path / "words", texts, JsonTokenizer(tmp_path / "words.json"), 0.3)
    job = load_job(runs.write_job(tmp_path, train={"data": str(tmp_path / "words")}, document_mask=True))
    with pytest.raises(DescriptionError, match=r"train\.data = .*: its tokenizer has no token between documents"):
        open_sources(job, job.train)


def trained(folder: Path, name: str, *arguments: str) -> tuple[str, list[float]]:
    train = {"steps": 2, "evaluation": {"sequences": 1000}, "sample": {"tokens": 0}, "data": name}
    model = {"layers": 2, "hidden": 32, "heads": 4, "sequence": 256, "vocabulary": 256}
    job = runs.write_job(folder, model=model, train=train)
    done = runs.train(job, "--ranks", "2", *arguments)
    assert done.returncode == 0, done.stderr
    out = folder / arguments[arguments.index("--out") + 1]
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    return done.stdout, [line["validation_loss"] for line in lines if "validation_loss" in line]


@pytest.mark.process
def test_a_packed_conversation_is_scored_as_if_it_were_alone(tmp_path, capsys):
    """Before the first step the loss on packed conversations is the one on sequences of their own."""
    data(capsys, tmp_path / "packed", "--pack")
    data(capsys, tmp_path / "single")
    mask = ("--set", "document_mask=true")
    _, single = trained(tmp_path, "single", "--out", str(tmp_path / "1"))
    said, apart = trained(tmp_path, "packed", *mask, "--out", str(tmp_path / "2"))
    warned, together = trained(tmp_path, "packed", "--out", str(tmp_path / "3"))
    assert apart[0] == pytest.approx(single[0], rel=1e-6)
    assert together[0] != pytest.approx(single[0], rel=1e-6)
    note = "conversations that share a sequence see those before them there: document_mask is false"
    assert note in warned
    assert note not in said
    found, _ = asked.ask_here(capsys, "eval", tmp_path / "2", "--json")
    assert json.loads(found)["loss"] == pytest.approx(apart[-1], rel=1e-6)
    job = tmp_path / "job.yaml"
    refused = runs.train(job, "--ranks", "2", "--out", str(tmp_path / "2"))
    assert (refused.returncode, "holds a run with another document_mask" in refused.stderr) == (2, True)
