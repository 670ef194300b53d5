"""Documents that share a sequence are computed as if each were alone: losses, gradients, parameters, on every grid."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn import functional

from runtime.data.batches import Batches
from runtime.data.goldfish import Goldfish
from runtime.data.mixture import Mixture
from runtime.data.tokens import TokenFile
from runtime.inference.loss import validation_loss
from runtime.parallel.mesh import Mesh
from runtime.step.feed import Feed
from tests.runtime import equal, parity, reference
from twin.cost.memory import memory_use
from twin.description.problems import DescriptionError
from twin.strategies import load_job
from twin.strategies.four_d.grid import AXES, Grid

ONE = dict.fromkeys(AXES, 1)
LLAMA = {
    "model": {**parity.MODEL, "activation": "swiglu", "positions": "rotary", "biases": False, "kv_heads": 4},
    "recompute": True,
}
CASES: list[tuple[dict[str, int], dict[str, Any]]] = [
    ({"z": 2, "y": 2}, {}),
    ({"z": 2, "x": 2}, LLAMA),
    ({"data": 2, "y": 2}, {**LLAMA, "attention": "plain", "recompute": False}),
    ({"y": 2, "x": 2}, {"attention": "fused_softmax", "recompute": True}),
    ({"data": 2, "z": 2}, {"data_reduction": {"mode": "sharded"}, "model": {**LLAMA["model"], "rotary_share": 0.5}}),
]


def alone(**options: Any) -> Any:
    return parity.build(parity.describe(ONE, document_mask=True, **options), Mesh.alone(Grid()), torch.float64)


@pytest.mark.parametrize(("grid", "options"), CASES, ids=lambda case: "x".join(map(str, case)))
def test_packed_sequences_equal_documents_one_by_one(pool, grid, options):
    equal.check(pool, ONE | grid, {**options, "document_mask": True}, "float64", steps=3)


def test_documents_make_a_difference():
    """Else the test above would say nothing."""
    packed = equal.serial_of({"document_mask": True}, "float64", 1)[0]
    assert packed != pytest.approx(equal.serial_of({}, "float64", 1)[0], rel=1e-4)


@pytest.mark.parametrize("attention", ["flash", "plain"])
@pytest.mark.parametrize("positions", ["learned", "rotary"])
def test_no_token_of_a_document_reaches_another(positions, attention):
    """Bit for bit: a score across is not small but absent. Within the document it does reach."""
    trainee = alone(model={**parity.MODEL, "positions": positions}, attention=attention)
    trainee.context.store.compute.mul_(5)
    tokens = parity.windows()[0][:2, :-1]
    begins = torch.tensor([[0, 0, 0, 3, 3, 3, 6, 6], [0] * 5 + [5] * 3])
    changed = tokens.clone()
    changed[:, 1] = (changed[:, 1] + 1) % parity.MODEL["vocabulary"]
    with torch.no_grad():
        before, after = (trainee.model(each, begins).view(2, 8, -1) for each in (tokens, changed))
    same = (before == after).all(-1)
    assert same.tolist() == [[True] + [False] * 2 + [True] * 5, [True] + [False] * 4 + [True] * 3]


def test_one_document_is_what_it_is_without_a_mask():
    trainee = alone()
    tokens = parity.windows()[0][:2, :-1]
    with torch.no_grad():
        plain, masked = trainee.model(tokens), trainee.model(tokens, torch.zeros_like(tokens))
    torch.testing.assert_close(masked, plain, rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("grid", [{"z": 2, "y": 2}, {"data": 2, "x": 2}], ids=str)
def test_dropout_is_the_same_on_every_grid(pool, grid):
    options = {"dropout": 0.2, "attention": "plain", "document_mask": True, "steps": 2, "dtype": "float64"}

    class Worker:
        def mesh(self, _grid: Grid) -> Mesh:
            return Mesh.alone(Grid())

    expected, _, _ = parity.run(Worker(), ONE, **options)
    for losses, _, _ in pool.run("tests.runtime.parity:run", 4, grid=ONE | grid, **options):
        np.testing.assert_allclose(losses, expected, rtol=1e-9)


def text(documents: list[list[int]], separator: int) -> TokenFile:
    """A file of text: each document, then the separator."""
    tokens = [token for document in documents for token in (*document, separator)]
    return TokenFile(Path("train.bin"), np.array(tokens, "<u2"), "", separator=separator)


def test_text_is_cut_at_its_separators_and_at_the_edges_of_sequences():
    """A document begins with the separator before it, from which its first token is predicted, as `eval` does."""
    file = text([[1, 2], [3, 4, 5, 6, 7], [8], [9, 10]], separator=0)
    # 1 2 0 3 | 4 5 6 7 | 0 8 0 9 | 10
    batches = Batches(file, 4, 0, 20, shuffle=False)
    assert batches.documents(0, 3).tolist() == [[0, 0, 2, 2], [0, 0, 0, 0], [0, 0, 2, 2]]
    marked = TokenFile(file.path, file.tokens, "", documents=np.array([1, 0, 0, 1, 0, 0, 1, 0, 1, 1, 0, 0, 0, 0], "u1"))
    assert Batches(marked, 4, 0, 20, shuffle=False).documents(0, 3).tolist() == [
        [0, 0, 0, 3],
        [0, 0, 2, 2],
        [0, 1, 1, 1],
    ]
    whole = Batches(TokenFile(file.path, file.tokens, ""), 4, 0, 20)
    assert whole.documents(0, 3) is None
    mixed = Mixture([whole, batches], (1, 1))
    assert mixed.documents(0, 4).tolist() == [[0] * 4, [0, 0, 2, 2], [0] * 4, [0, 0, 0, 0]]


def test_a_rank_is_fed_the_documents_of_its_samples():
    trainee = alone(micro_steps=4)
    file = text([[n % 30 + 1] * (n % 5) for n in range(300)], separator=0)
    batches = Batches(file, parity.MODEL["sequence"], 3, 40)
    for step in (0, 7):
        fed = Feed(trainee.context, batches, None).step(step)
        assert len(fed) == 4
        for micro in fed:
            count = len(micro.tokens)
            assert micro.documents.tolist() == batches.documents(micro.first_sequence, count).tolist()
            for row, begins in zip(micro.tokens.tolist(), micro.documents.tolist(), strict=True):
                assert begins == [max([0, *(i for i in range(at + 1) if row[i] == 0)]) for at in range(len(row))]


@pytest.mark.parametrize("mask", ["hash", "hash_table"])
@pytest.mark.parametrize("separated", [True, False], ids=["text", "packed"])
def test_a_document_drops_the_same_targets_wherever_it_stands(mask, separated):
    """Behind others in its sequence, at its begin, or there without the separator that the last sequence ended with."""
    draw, length, h = np.random.default_rng(4), 24, 3
    document = draw.integers(1, 30, 10)
    sizes = [3, 9, 1, 5, 0, 7, 12, 2, 20, 4] * 12
    tokens, begins, places = [], [], []
    for size in sizes:
        for part, kept in ((draw.integers(1, 30, size), False), (document, True)):
            begins += [True] + [False] * (len(part) - (not separated)) if separated or len(part) else []
            tokens += [0] if separated else []
            places += [len(tokens)] if kept else []
            tokens += part.tolist()
    marks = None if separated else np.array(begins, "u1")
    file = TokenFile(
        Path("train.bin"), np.array(tokens, "<u2"), "", documents=marks, separator=0 if separated else None
    )
    batches = Batches(file, length, 0, 40, shuffle=False)
    goldfish = Goldfish(2, h, mask, separator=0 if separated else None)
    windows = torch.from_numpy(batches.sequences(0, batches.windows))
    known = torch.from_numpy(batches.documents(0, batches.windows))
    apart, together = goldfish.keeps(windows, 0, known), goldfish.keeps(windows)
    found, across, offsets = set(), set(), set()
    for place in places:
        window, at = divmod(place, length)
        if window < batches.windows and at + len(document) <= length:  # whole: one that is cut begins at the edge
            inner = slice(at, at + len(document) - 1)  # inputs whose targets are of the document too
            assert windows[window, inner.start : inner.stop + 1].tolist() == document.tolist()
            found.add(tuple(apart[window, inner].tolist()))
            across.add(tuple(together[window, inner].tolist()))
            offsets.add(at)
    assert 0 in offsets
    assert len(offsets) > 10
    assert len(across) > 1  # it is not so without the mask
    (dropped,) = found
    alone = Goldfish(2, h, mask).keeps(torch.from_numpy(document)[None])[0]
    assert dropped == tuple(alone.tolist())
    assert not all(dropped)


def test_masks_that_look_at_no_tokens_do_not_heed_documents():
    window = torch.arange(1, 18)[None]
    begins = torch.tensor([[0] * 6 + [6] * 10])
    for mask in ("static", "random"):
        goldfish = Goldfish(2, 3, mask, seed=1)
        assert torch.equal(goldfish.keeps(window, 5, begins), goldfish.keeps(window, 5))


def test_a_rank_drops_by_documents_only_where_the_job_tells_them_apart():
    file = text([[n % 7 + 1] * (1 + n % 5) for n in range(300)], separator=0)
    batches = Batches(file, parity.MODEL["sequence"], 3, 40)
    for asked in (True, False):
        job = parity.describe(ONE, document_mask=asked, micro_steps=2)
        trainee = parity.build(job, Mesh.alone(Grid()), torch.float64)
        goldfish = Goldfish(2, 2, separator=0)
        for micro in Feed(trainee.context, batches, goldfish).step(3):
            window = torch.from_numpy(batches.sequences(micro.first_sequence, len(micro.tokens)))
            begins = torch.from_numpy(batches.documents(micro.first_sequence, len(micro.tokens))) if asked else None
            assert torch.equal(micro.weights > 0, goldfish.keeps(window, 0, begins))
            assert asked != torch.equal(micro.weights > 0, goldfish.keeps(window))


def test_validation_loss_is_that_of_documents_one_by_one():
    trainee = alone()
    file = text([[n % 30 + 1] * (1 + n % 5) for n in range(60)], separator=0)
    batches = Batches(file, parity.MODEL["sequence"], 3, 40, shuffle=False)
    serial = reference.SerialGPT(reference.Shape.of(trainee.context.job.model)).double()
    start = equal.assemble([parity.pieces(trainee)])
    serial.load_state_dict({name: torch.from_numpy(full) for name, full in start.items()})
    window = torch.from_numpy(batches.sequences(0, 7))
    logits = reference.one_by_one(serial, window[:, :-1], torch.from_numpy(batches.documents(0, 7)))
    expected = functional.cross_entropy(logits.flatten(0, 1), window[:, 1:].flatten()).item()
    assert validation_loss(trainee, batches, 7) == pytest.approx(expected, rel=1e-12)
    assert trainee.context.documents is None


def test_ddp_says_that_it_has_none():
    job = {"model": parity.MODEL, "machine": "laptop", "ranks": 2, "strategy": "ddp", "batch": {"sequences": 2}}
    with pytest.raises(
        DescriptionError, match=r"document_mask = True: ddp has none; set false, or use strategy: four_d"
    ):
        load_job({**job, "document_mask": True, "recompute": False})


def test_the_twin_counts_the_mask_once_for_all_layers():
    def needed(*, mask: bool) -> dict[str, float]:
        return memory_use(parity.describe(ONE | {"data": 2}, document_mask=mask)).by_category

    with_mask, without = needed(mask=True), needed(mask=False)
    micro, length = parity.SEQUENCES // 4, parity.MODEL["sequence"]
    assert with_mask.pop("activations") - without.pop("activations") == micro * length**2 * 4
    assert with_mask == without
