"""What a study trains on, in which order, and what wrong input is told."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from runtime.memorize.cells import cells_of
from runtime.memorize.order import order_of
from runtime.memorize.study import load_study
from runtime.memorize.texts import read_pool
from runtime.memorize.train import never_counted
from tests.runtime import asked
from tests.runtime.memorize.studies import write_study
from tests.tiers import full
from twin.description.train import GoldfishLoss

EXAMPLES = sorted((Path(__file__).parents[3] / "examples/memorize").glob("*.yaml"))


def test_every_training_once_and_without_drops_once_for_all_masks(tmp_path):
    path = write_study(tmp_path, masks={"hash": [2, "inf"], "static": [2, "inf"]}, seeds=2)
    cells = cells_of(load_study(path))
    found = [(cell.setting.mask, cell.setting.k, cell.seed) for cell in cells]
    assert sorted(found, key=str) == sorted(
        [(mask, k, seed) for mask, k in (("hash", 2), (None, None), ("static", 2)) for seed in (0, 1)], key=str
    )
    assert [cell.number for cell in cells] == list(range(6))


@pytest.mark.parametrize("source", full(["random", "standard-library"], "standard-library"))
def test_texts_are_distinct_and_each_is_in_one_bucket(tmp_path, source):
    path = write_study(tmp_path, texts={"source": source}, job={"model": {"vocabulary": 256}})
    loaded = load_study(path)
    pool = read_pool(loaded)
    assert pool.digest == read_pool(loaded).digest
    assert len(np.unique(pool.texts, axis=0)) == 12
    dealt = [pool.deal(loaded.study.texts.repeats, seed) for seed in range(20)]
    for buckets in dealt:
        assert {times: len(texts) for times, texts in buckets.items()} == {0: 4, 10: 8}
        assert sorted(text for texts in buckets.values() for text in texts) == list(range(12))
    assert len({tuple(buckets[0]) for buckets in dealt}) > 1


def test_texts_come_as_often_as_asked_spread_over_the_steps(tmp_path):
    repeats = {0: 2, 3: 2, 6: 1}
    path = write_study(
        tmp_path, texts={"repeats": repeats, "background_steps": 2, "shift": 1}, job={"train": {"steps": 5}}
    )
    loaded = load_study(path)
    pool = read_pool(loaded)
    buckets = pool.deal(repeats, 7)
    order = order_of(pool, buckets, 40, 16, 7, 1)
    counts = Counter(order.text.tolist())
    assert counts.pop(-1) == 40 - 12
    assert counts == {int(text): times for times, texts in buckets.items() if times for text in texts}
    assert (order.text[:16] == -1).all()
    often = buckets[6][0]
    at = np.flatnonzero(order.text == often)
    assert order.times[at].tolist() == list(range(6))
    samples = order.sequences(0, 40)
    assert samples.shape == (40, 25)
    for j, sample in enumerate(at):
        assert samples[sample].tolist() == pool.texts[often, j % 2 : j % 2 + 25].tolist()
    others = samples[order.text == -1]
    assert len(np.unique(others, axis=0)) == len(others)


def test_texts_that_come_equally_often_alone_come_once_an_epoch(tmp_path):
    loaded = load_study(write_study(tmp_path))
    pool = read_pool(loaded)
    order = order_of(pool, pool.deal({0: 4, 10: 8}, 1), 80, 0, 1, 0)
    epochs = order.text.reshape(10, 8)
    assert all(len(set(epoch)) == 8 for epoch in epochs.tolist())
    assert len({tuple(epoch) for epoch in epochs.tolist()}) > 1


@pytest.mark.parametrize(("mask", "left"), [("static", 0.0), ("hash", 0.25), (None, 0.0)])
def test_a_shift_leaves_nothing_dropped_for_good_but_by_the_hash(tmp_path, mask, left):
    """Static drops other targets of a text that moved; what a hash of the tokens before drops moves with them."""
    loaded = load_study(write_study(tmp_path, texts={"repeats": {0: 400, 1: 8}, "shift": 1}))
    loss = None if mask is None else GoldfishLoss(k=4, h=3, mask=mask)
    job = loaded.jobs[""]
    job = job.model_copy(update={"train": job.train.model_copy(update={"goldfish": loss})})
    windows = torch.from_numpy(read_pool(loaded).texts)
    never = never_counted(job, windows, 25, 1)
    assert never is not None
    inner = never[:, 4:-1].double()  # beyond the h tokens that both beginnings need
    assert inner.mean().item() == pytest.approx(left, abs=5 * (0.25 * 0.75 / inner.numel()) ** 0.5 if left else 0)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_every_ready_study_reads(path):
    """The published one asks for text that nobody but the user has, and says so."""
    assert path.read_text(encoding="utf-8").startswith("# ")
    if path.stem == "published":
        with pytest.raises(ValueError, match=r"texts\.source") as refused:
            load_study(path)
        assert "texts.tokenizer" in str(refused.value)
        assert "train.initial_weights" in str(refused.value)
        given = ["texts.source=random", "texts.tokenizer=bytes", "job.train.initial_weights=null"]
        loaded = load_study(path, given)
        assert loaded.study.texts.repeats == {0: 200, 1: 200, 4: 200, 6: 200}
    else:
        assert cells_of(load_study(path))


MANY_TEXTS: tuple[dict[str, Any], list[str]] = (
    {"texts": {"source": "standard-library", "repeats": {0: 100_000, 10: 8}}},
    ["texts.source"],
)
WRONG = [
    ({"texts": {"repeats": {10: 8}}}, ["texts.repeats", "no control"]),
    ({"texts": {"repeats": {0: 8}}}, ["texts.repeats", "trains on no text"]),
    ({"texts": {"repeats": {0: 4, 11: 8}}}, ["texts.repeats", "88 sequences", "train.steps to at least 11"]),
    ({"texts": {"repeats": {-1: 4}}}, ["texts.repeats"]),
    ({"texts": {"repeats": {}}}, ["texts.repeats"]),
    ({"texts": {"suffix": 25}}, ["texts.suffix = 25", "model.sequence"]),
    ({"texts": {"prefix": 20}}, ["texts.suffix = 8", "28 tokens"]),
    ({"texts": {"sufix": 3}}, ["texts.sufix", "did you mean 'suffix'?"]),
    ({"texts": {"background_steps": 10}}, ["texts.background_steps = 10", "leaves none"]),
    ({"texts": {"source": "nowhere.jsonl"}}, ["texts.source = 'nowhere.jsonl'", "there is no", "standard-library"]),
    ({"texts": {"tokenizer": "nowhere.json"}}, ["texts.tokenizer = 'nowhere.json'", "bytes"]),
    ({"texts": {"source": "standard-library"}}, ["texts.source", "model.vocabulary to at least 256"]),
    MANY_TEXTS,
    ({"texts": {"source": "text.txt"}, "job": {"model": {"vocabulary": 256}}}, ["texts.source", "asks for 12"]),
    ({"masks": {}}, ["masks"]),
    ({"masks": {"hashed": [2]}}, ["masks.hashed"]),
    ({"masks": {"hash": [1]}}, ["masks.hash.0 = 1", "whole number from 2 on, or inf"]),
    ({"masks": {"hash": [2, 2]}}, ["masks.hash", "twice"]),
    ({"masks": {"hash": []}}, ["masks.hash"]),
    ({"h": 0}, ["h = 0"]),
    ({"seeds": 0}, ["seeds = 0"]),
    ({"seeds": 1000, "masks": {"hash": list(range(2, 20))}}, ["masks", "18,000 trainings"]),
    ({"job": {"train": {"goldfish": {"k": 4}}}}, ["job.train.goldfish", "masks of the study"]),
    ({"job": {"train": {"steps": 0}}}, ["job.train.steps = 0"]),
    ({"job": {"model": {"layerz": 1}}}, ["job.model.layerz", "did you mean 'layers'?"]),
    ({"job": {"precision": "fp16"}}, ["precision = 'fp16'"]),
    ({"job": "nowhere.yaml"}, ["nowhere.yaml"]),
    ({"job": {"train": {"initial_weights": "w.safetensors"}}}, ["train.initial_weights", "no such file"]),
    ({"models": {"wide": {}}}, ["models.wide", "is empty"]),
    ({"models": {"wide": {"model.hiden": 64}}}, ["models.wide.model.hiden", "did you mean 'hidden'?"]),
    ({"models": {"a": {"model.sequence": 30}, "b": {"model.sequence": 40}}}, ["models", "model.sequence"]),
    ({"title": 3}, ["title = 3"]),
]


@pytest.mark.parametrize(
    ("changes", "words"),
    full(WRONG, MANY_TEXTS),
    ids=lambda value: None if isinstance(value, list) else str(value)[:50],
)
def test_wrong_studies_are_refused_and_nothing_is_written(tmp_path, capsys, changes, words):
    path = write_study(tmp_path, **changes)
    (tmp_path / "text.txt").write_text("some text that is long enough for one text, but for no more than one of them")
    before = asked.files(tmp_path)
    out, err = asked.ask_here(capsys, "memorize", path, "--out", tmp_path / "out", code=2)
    assert out == ""
    assert "Traceback" not in err
    assert not [word for word in words if word not in err], err
    assert asked.files(tmp_path) == before
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--set", "nonsense"], ["--set = 'nonsense'"]),
        (["--set", "texts.sufix=3"], ["texts.sufix", "suffix"]),
        (["--ranks", "3"], ["--ranks = 3", "the job has 1 ranks"]),
        (["--set", "job.ranks=2", "--set", "job.grid={data: 2}"], ["job.ranks = 2", "--ranks 2"]),
    ],
    ids=lambda value: " ".join(value) if value[0].startswith("--") else "",
)
def test_wrong_options_are_named(tmp_path, capsys, options, words):
    path = write_study(tmp_path)
    out, err = asked.ask_here(capsys, "memorize", path, "--out", tmp_path / "out", *options, code=2)
    assert out == ""
    assert not [word for word in words if word not in err], err
    assert not (tmp_path / "out").exists()


def test_no_study_and_no_place(tmp_path, capsys):
    assert "nowhere.yaml" in asked.ask_here(capsys, "memorize", tmp_path / "nowhere.yaml", code=2)[1]
    path = write_study(tmp_path)
    taken = tmp_path / "taken"
    taken.mkdir()
    (taken / "thesis.txt").write_text("mine")
    assert "holds other files" in asked.ask_here(capsys, "memorize", path, "--out", taken, "--force", code=2)[1]
    assert "is not a directory" in asked.ask_here(capsys, "memorize", path, "--out", path, code=2)[1]
    assert [file.name for file in taken.iterdir()] == ["thesis.txt"]
