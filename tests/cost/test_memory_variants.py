"""Memory of SwiGLU, rotary positions and whole-block gathers against counts made by hand."""

import pytest

from twin.cost.memory import memory_use

SMALL = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 128, "vocabulary": 10}
LLAMA = {**SMALL, "activation": "swiglu", "positions": "rotary", "mlp_width": 176, "biases": False}
LAST_NORM = 64


def test_one_rank_that_keeps_everything(make_job) -> None:
    """Three sequences; MLP 176 wide after its activation, 352 before it."""
    use = memory_use(make_job(model=LLAMA, per_rank=3, micro_sequences=3, recompute=False))
    matrices = 64 * (192 + 64 + 352 + 176)
    elements = 2 * (matrices + 2 * 64) + 2 * 10 * 64 + LAST_NORM  # table and head, no positions
    m = 3 * 128
    block = 2 * m * (4 * 64 + 192 + 128 + 64 + 352 + 176) + 16 * m + 4 * 4 * m  # 128: queries and keys, turned
    gradients = 2 * m * (2 * 64 + 352 + 176)
    assert gradients > m * 10 * 8  # more than the loss needs
    assert use.by_category == {
        "weights": 2 * elements,
        "gradients": 4 * elements,
        "optimizer": 12 * elements,
        "activations": 2 * block + gradients,
        "gathered weights": 0,
        "buffers": 2 * 352 * 64,  # the widest linear's gradient
    }


def test_recomputation_keeps_residuals_and_one_block(make_job) -> None:
    """z 2 · y 2 · x 2: local widths 88 after and 176 before the activation."""
    use = memory_use(make_job({"z": 2, "y": 2, "x": 2}, model=LLAMA)).by_category
    qkv, projection, up, down = 96 * 32, 32 * 32, 176 * 32, 32 * 88
    gathered = qkv + projection + up + down
    elements = 2 * (gathered // 2 + 2 * 32) + 5 * 32 // 2 + 10 * 32 + 32
    m = 128
    block = 2 * m * (4 * 32 + 96 + 64 + 32 + 176 + 88) + 16 * m + 4 * 2 * m
    assert use["weights"] == 2 * elements
    # the input of the block at work is one of the two that are kept
    assert use["activations"] == 1 * (2 * m * 32) + block + 2 * m * (2 * 32 + 176 + 88)
    assert use["gathered weights"] == 2 * max(gathered, up + up)
    # eight in flight and one that starts: two blocks and the head (of 10 words)
    assert use["buffers"] == 2 * (2 * gathered + 5 * 32)


def test_biases_of_both_parts(make_job) -> None:
    plain, biased = (
        memory_use(make_job({"y": 2}, model={**LLAMA, "biases": given})).by_category["optimizer"]
        for given in (False, True)
    )
    biases = (192 + 352) // 2 + 64 + 64  # out-features; normal layers split theirs over y
    assert biased - plain == 12 * (2 * (2 * 64 + biases) + 64)


@pytest.mark.parametrize("x", [1, 2])
def test_rotary_saves_the_table_of_positions(make_job, x) -> None:
    """And keeps queries and keys turned and as they were, of the block at work."""
    learned, rotary = (
        memory_use(make_job({"x": x}, model={**SMALL, "positions": kind})).by_category for kind in ("learned", "rotary")
    )
    saved = {key: learned[key] - rotary[key] for key in learned}
    rows = 128 * 64 // x
    assert saved == {
        "weights": 2 * rows,
        "gradients": 4 * rows,
        "optimizer": 12 * rows,
        "activations": -2 * 128 * 2 * 64,
        "gathered weights": 0,
        "buffers": 0,
    }


LARGE = {**SMALL, "layers": 8, "vocabulary": 960}
BLOCK, HEAD = 12 * 64**2, 960 * 64  # the head is the larger
WIDEST = 4 * 64**2


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize(
    ("overlap", "linear", "block"),
    [
        # nothing ahead: a block, or the head; without recomputation one linear or the head
        ({"all_gather": False}, HEAD, HEAD),
        # one ahead: the head beside the last MLP's weight, or beside the last block
        ({"prefetch_depth": 1}, HEAD + WIDEST, HEAD + BLOCK),
        ({"prefetch_depth": 3}, HEAD + 3 * WIDEST, HEAD + 3 * BLOCK),
    ],
    ids=str,
)
def test_whole_blocks_are_gathered_ahead(make_job, recompute, overlap, linear, block) -> None:
    for unit, elements in (("linear", linear), ("block", block)):
        job = make_job({"z": 2}, model=LARGE, recompute=recompute, overlap=overlap, gather_unit=unit)
        assert memory_use(job).by_category["gathered weights"] == 2 * elements


@pytest.mark.parametrize("most", [1, 3, 6, 100])
def test_partial_gradients_in_flight(make_job, most) -> None:
    """As many as may be in flight and one more that starts, from the head backwards."""
    model = {**LARGE, "vocabulary": 10}
    h = 64**2
    order = [10 * 64] + 8 * [4 * h, 4 * h, h, 3 * h]
    largest = max(sum(order[i : i + most + 1]) for i in range(len(order)))
    job = make_job({"z": 2}, model=model, overlap={"scatters_in_flight": most})
    use = memory_use(job).by_category
    assert use["buffers"] == 2 * largest


def test_without_overlap_a_whole_blocks_gradient_waits_to_be_scattered(make_job) -> None:
    model = {**LARGE, "vocabulary": 10}
    # a block's four gradients, and the buffer that they are copied into
    for unit, elements in (("linear", WIDEST), ("block", 2 * BLOCK)):
        job = make_job({"z": 2}, model=model, gather_unit=unit, overlap={"reduce_scatter": False})
        assert memory_use(job).by_category["buffers"] == 2 * elements


def test_a_small_head_leaves_the_blocks_at_work(make_job) -> None:
    """Without recomputation: one linear and the next, or one block and the next."""
    model = {**LARGE, "vocabulary": 10}
    for unit, elements in (("linear", 2 * WIDEST), ("block", 2 * BLOCK)):
        job = make_job({"z": 2}, model=model, gather_unit=unit, recompute=False)
        assert memory_use(job).by_category["gathered weights"] == 2 * elements


HEADY = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 128, "vocabulary": 1000}
HEAD, WIDEST, BLOCK = 1000 * 64, 256 * 64, 12 * 64 * 64
"""Weights over y: of the head, of the MLP's larger linears, of a block."""


@pytest.mark.parametrize(
    ("options", "gathered", "buffers"),
    [
        # the head is at work while the first of the backward pass is on its way; in flight: head and a block's four,
        # then two blocks' eight and the next, whichever is more
        ({}, 2 * (HEAD + WIDEST), 2 * (HEAD + 2 * BLOCK)),
        # the head's weight is rounded: it is there in four bytes and in two
        ({"gathers": "fp32"}, 6 * HEAD, 2 * (HEAD + 2 * BLOCK)),
        # all in flight are wide, and the last of them is there in two bytes as well: MLP down is the widest in front
        ({"scatters": "fp32"}, 2 * (HEAD + WIDEST), 4 * (HEAD + 2 * BLOCK) + 2 * 3 * 64 * 64),
    ],
)
def test_what_travels_in_fp32_is_there_in_both_types(make_job, options, gathered, buffers) -> None:
    job = make_job({"z": 2}, model=HEADY, communication_precision=options)
    use = memory_use(job).by_category
    assert use["gathered weights"] == gathered
    assert use["buffers"] == buffers


def test_a_block_of_gradients_is_copied_into_one_buffer(make_job) -> None:
    """In flight two blocks; the second's four gradients are copied, and widened where they travel in fp32."""
    small = HEADY | {"vocabulary": 10}
    for options, each in (({}, 2 * 2 + 2), ({"scatters": "fp32"}, 2 * 4 + 2 * 2)):
        job = make_job({"z": 2}, model=small, gather_unit="block", communication_precision=options)
        head = 10 * 64 * (2 if not options else 4)
        assert memory_use(job).by_category["buffers"] == head + each * BLOCK
