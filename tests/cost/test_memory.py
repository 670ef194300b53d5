"""Memory of a rank against counts written out by hand from section 3 of the algorithm."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from twin.cost.memory import advice, largest_micro_sequences, memory_use, with_micro_sequences
from twin.description.job import Job
from twin.description.problems import DescriptionError
from twin.strategies import load_job

SMALL = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 128, "vocabulary": 1000}


def test_one_rank_that_keeps_everything(make_job) -> None:
    """No axis, bf16, flash attention, no recomputation, three sequences at a time."""
    job = make_job(model=SMALL, per_rank=3, micro_sequences=3, recompute=False)
    use = memory_use(job)

    block_matrices = 64 * (192 + 64 + 256 + 256)  # qkv, projection, MLP up, MLP down
    assert block_matrices == 49_152
    block_vectors = 2 * 2 * 64 + (192 + 64 + 256 + 64)  # two norms, four biases
    assert block_vectors == 832
    outside = 1000 * 64 + 128 * 64 + 1000 * 64 + 2 * 64  # table, positions, head, last norm
    elements = 2 * (49_152 + 832) + outside
    assert elements == 236_288

    m = 3 * 128
    # per token and in units of h: inputs and outputs of two norms 4, qkv 3, attention's result 1,
    # MLP before and after GELU 2 · 4
    block = 2 * m * 64 * (4 + 3 + 1 + 8)
    block += 2 * 2 * 4 * m  # mean and deviation of two norms, fp32
    block += 4 * 4 * m  # the logarithm of each head's softmax sum, fp32
    logits = m * 1000 * (2 + 4 + 2)  # bf16, a copy in fp32 that becomes the gradient, and that in bf16
    gradients = 2 * m * (2 * 64 + 2 * 256)
    assert logits > gradients

    assert use.by_category == {
        "weights": 2 * elements,
        "gradients": 4 * elements,
        "optimizer": 12 * elements,
        "activations": 2 * block + logits,
        "gathered weights": 0,
        "buffers": 2 * 1000 * 64,  # the head's gradient in bf16, before it is added to the sum
    }
    assert use.per_rank_bytes == sum(use.by_category.values())


@pytest.mark.parametrize("strategy", ["four_d", "fsdp", "megatron"])
def test_masks_of_dropout_are_kept(strategy) -> None:
    """Of each of two residual sums of a block a byte an element; where a block is computed again of that one alone."""
    found = {}
    for recompute in (False, True):
        uses = []
        for dropout in (0.0, 0.1):
            raw = {
                "model": {**SMALL, "layers": 5},
                "machine": "dgx-h100",
                "ranks": 1,
                "strategy": strategy,
                "grid": {},
                "batch": {"sequences": 3, "micro_sequences": 3},
            }
            uses.append(memory_use(load_job({**raw, "recompute": recompute, "dropout": dropout, "loss_rows": 1})))
        found[recompute] = uses[1].per_rank_bytes - uses[0].per_rank_bytes
    masks, after_embedding = 2 * 3 * 128 * 64, (3 * 128 * 64 if strategy == "megatron" else 0)
    assert found == {False: 5 * masks + after_embedding, True: masks + after_embedding}


def test_all_four_axes_with_recomputation_and_caching(make_job) -> None:
    """data 2 · z 3 · y 2 · x 4; y does not divide the vocabulary; one cached block; prefetch 2."""
    model = {"layers": 3, "hidden": 96, "heads": 6, "sequence": 64, "vocabulary": 1001}
    job = make_job(
        {"data": 2, "z": 3, "y": 2, "x": 4},
        model=model,
        per_rank=4,
        micro_sequences=2,
        cache_gathered_layers=1,
        overlap={"prefetch_depth": 2},
    )
    use = memory_use(job)

    qkv, projection = 288 // 2 * 96 // 4, 96 // 4 * 96 // 2  # gathered over z: n/G_o · k/G_c
    up, down = 384 // 2 * 96 // 4, 96 // 4 * 384 // 2
    assert (qkv, projection, up, down) == (3456, 1152, 4608, 4608)
    head = 501 * 24  # ceil(1001 / 2) rows of 96 / 4
    stored = 3 * (3456 + 1152 + 4608 + 4608) // 3 + head // 3
    assert head % 3 == 0
    vectors = 3 * (2 * 2 * 24 + 144 + 24 + 192 + 24) + 1001 * 24 + 64 * 24 + 2 * 24
    elements = stored + vectors

    m = 2 * 64
    residual = 2 * m * 24
    block = 2 * m * (4 * 24 + 3 * 48 + 48 + 2 * 192) + 16 * m + 4 * m * 3
    working = block - residual + 2 * m * (2 * 24 + 2 * 192)
    logits = m * 501 * 8
    assert logits > working

    assert use.by_category == {
        "weights": 2 * elements,
        "gradients": 4 * elements,
        "optimizer": 12 * elements,
        "activations": 3 * residual + logits,
        # the cached block, and at worst a whole block, or the weight in use and two more
        "gathered weights": 2 * (13_824 + max(13_824, 3 * 4608, head + 2 * 4608)),
        # in flight: the head's, two blocks' but for one, and that one's starting
        "buffers": 2 * (head + 2 * 13_824),
    }


def test_sharded_optimizer_plain_attention_and_fp32(make_job) -> None:
    """data 3 · z 2, fp32, no biases, nothing overlaps, attention writes its scores."""
    model = {**SMALL, "vocabulary": 500, "biases": False}
    job = make_job(
        {"data": 3, "z": 2},
        model=model,
        per_rank=2,
        micro_sequences=2,
        precision="fp32",
        recompute=False,
        attention="plain",
        data_reduction={"mode": "sharded"},
        overlap={"reduce_scatter": False, "all_gather": False},
    )
    use = memory_use(job)

    stored = (2 * 49_152 + 500 * 64) // 2
    vectors = 2 * 2 * 64 + 500 * 64 + 128 * 64 + 64
    elements = stored + vectors
    own = -(-elements // 3)  # a third, rounded up

    m = 2 * 128
    block = 4 * m * 64 * (4 + 3 + 1 + 8) + 16 * m
    block += 4 * (2 * 4 * 128 * 128) + 4 * m * 3 * 64  # scores after the softmax; q, k and v in order for the products
    logits = m * 500 * 4  # in fp32 they are exponentials and gradients themselves
    # gradients of the scores after and before the softmax; those of the MLP, and what it kept, are gone by then
    gradients = 4 * m * 2 * 64 + 2 * 4 * (2 * 4 * 128 * 128) - 4 * m * 2 * 256
    assert gradients >= max(logits, 4 * m * (2 * 64 + 2 * 256))

    assert use.by_category == {
        "weights": 4 * elements,  # of which the own third are the master weights
        "gradients": 4 * elements,
        "optimizer": 8 * own,
        "activations": 2 * block + gradients,
        "gathered weights": 4 * max(256 * 64, 500 * 64),
        "buffers": max(4 * 500 * 64, 4 * own),  # the head's partial gradient, or the own third of all that arrives
    }


def test_block_at_work_when_it_is_larger_than_the_loss(make_job) -> None:
    """A small vocabulary: the recomputed block and its gradients decide, not the logits."""
    job = make_job({"y": 2}, model={**SMALL, "vocabulary": 10})
    m, block = 128, 0
    block += 2 * m * (4 * 64 + (192 + 64 + 2 * 256) // 2) + 16 * m + 4 * m * 2
    gradients = 2 * m * (2 * 64 + 2 * 128)
    found = memory_use(job).by_category["activations"]
    assert found == 1 * (2 * m * 64) + block + gradients  # that block's input is one of the two kept


def test_capacity_is_what_the_device_leaves(make_job) -> None:
    overrides = ("machine.device.memory=40 GB", "machine.device.reserved_memory=1.5 GB")
    use = memory_use(make_job(model=SMALL, overrides=overrides))
    assert use.capacity_bytes == 38.5e9
    assert use.fits
    assert use.largest_category in use.by_category


@pytest.mark.parametrize("axis", ["z", "y", "x"])
def test_splitting_divides_the_matrices(make_job, axis) -> None:
    """Weights, gradients and optimizer states: 18 bytes for each element, matrices divided."""
    model = {**SMALL, "biases": False}
    matrices = 2 * 49_152 + 64_000
    rest = (1000 + 128) * 64 + (2 * 2 + 1) * 64
    for size in (1, 2, 4):
        use = memory_use(make_job({axis: size}, model=model)).by_category
        states = use["weights"] + use["gradients"] + use["optimizer"]
        assert states == 18 * (matrices / size + rest / (size if axis == "x" else 1))


@given(local=st.integers(1, 48), gigabytes=st.floats(1.62, 1.75))
@examples(0.6, derandomize=True)
def test_largest_micro_batch_is_the_largest_that_fits(make_job, local, gigabytes) -> None:
    overrides = (f"machine.device.memory={gigabytes} GB", "machine.device.reserved_memory=1.6 GB")
    job = make_job({"data": 2}, model=SMALL, per_rank=local, micro_sequences="auto", overrides=overrides)
    fitting = [m for m in range(1, local + 1) if local % m == 0 and memory_use(with_micro_sequences(job, m)).fits]
    assert largest_micro_sequences(job) == max(fitting, default=None)


def reserve(capacity: float) -> tuple[str, str]:
    """Overrides that leave so many bytes to tensors."""
    return f"machine.device.memory={1e9 + capacity} B", "machine.device.reserved_memory=1 GB"


def test_advice_names_a_smaller_micro_batch(make_job) -> None:
    """16 sequences need some 38 MB, most of it activations, and one 7 MB."""
    job = make_job(model=SMALL, per_rank=16, micro_sequences=16, recompute=False, overrides=reserve(2e7))
    use = memory_use(job)
    assert not use.fits
    assert use.largest_category == "activations"
    micro = largest_micro_sequences(job)
    assert micro in {2, 4, 8}
    assert f"micro_sequences {micro} would fit" in advice(job, use)
    assert "activations" in advice(job, use)


def test_advice_names_recomputation(make_job) -> None:
    """Twelve blocks keep 12 × 266 kB, or 12 × 16 kB if they are recomputed."""
    model = {**SMALL, "layers": 12, "vocabulary": 100}
    kept = make_job(model=model, recompute=False)
    use = memory_use(kept)
    again = memory_use(kept.model_copy(update={"recompute": True}))
    between = (use.per_rank_bytes + again.per_rank_bytes) / 2
    job = make_job(model=model, recompute=False, overrides=reserve(between))
    assert "recompute: true with micro_sequences 1 would fit" in advice(job, memory_use(job))


def test_advice_names_more_z(make_job) -> None:
    """18 bytes for each of 121,088 elements exceed 2.5 MB; half of the matrices are not."""
    model = {**SMALL, "vocabulary": 100}
    job = make_job({"data": 4}, model=model, overrides=reserve(2.5e6))
    assert "z 2 with data 2 would fit" in advice(job, memory_use(job))
    assert memory_use(make_job({"data": 2, "z": 2}, model=model, overrides=reserve(2.5e6))).fits
    hopeless = make_job({"data": 4}, model=model, overrides=reserve(1e5))
    assert "split the model over more than z·y·x = 1 devices" in advice(hopeless, memory_use(hopeless))


def test_advice_says_the_micro_batch_that_it_needs(make_job) -> None:
    """With z 32 two sequences at a time need 43.2 GB of a device's 40.95, one needs 40.53."""
    grid = {"data": 4096, "z": 1, "y": 1, "x": 1}
    job = make_job(grid, model="gpt-40b", per_rank=2, micro_sequences=2, published=True)
    assert "z 32 with data 128 and micro_sequences 1 would fit" in advice(job, memory_use(job))


def followed(job: Job, said: str) -> Job | None:
    """Load the job with what an advice says, word by word; None if it says nothing that would fit."""
    if not said.endswith(" would fit"):
        return None
    words = re.split(r" with | and ", said.rpartition("; ")[2].removesuffix(" would fit"))
    keys = {"z": "grid.z", "data": "grid.data", "micro_sequences": "batch.micro_sequences"}
    changes = [word.replace(":", "").split(" ") for word in words]
    raw = job.model_dump(mode="json", by_alias=True)
    return load_job(raw, [f"{keys.get(key, key)}={value}" for key, value in changes])


@given(
    sizes=st.tuples(*[st.sampled_from((1, 2, 4, 8))] * 2, *[st.sampled_from((1, 2))] * 2),
    per_rank=st.sampled_from((1, 2, 6, 8)),
    micro=st.integers(0, 3),
    share=st.floats(0.02, 0.98),
    options=st.sampled_from(
        (
            {},
            {"recompute": False},
            {"recompute_keeps": "products"},
            {"recompute_keeps": "attention"},
            {"overlap": {"halves": True}},
            {"divide": {"attention": True, "mlp": True}},
            {"data_reduction": {"mode": "sharded"}},
        )
    ),
)
@examples(2, derandomize=True)
def test_every_advice_that_is_followed_to_the_letter_fits(make_job, sizes, per_rank, micro, share, options) -> None:
    grid = dict(zip(("data", "z", "y", "x"), sizes, strict=True))
    described = {"model": {**SMALL, "layers": 4}, "per_rank": per_rank, **options}
    allowed = [m for m in (1, 2, 3, 4, 6, 8) if per_rank % m == 0]
    described["micro_sequences"] = allowed[micro % len(allowed)]
    try:
        job = make_job(grid, **described)
    except DescriptionError:
        return  # halves of one sequence, or of no axis
    room = share * memory_use(job).per_rank_bytes
    job = make_job(grid, **described, overrides=reserve(room))
    use = memory_use(job)
    other = followed(job, advice(job, use))
    assert not use.fits
    assert other is None or memory_use(other).fits


@pytest.mark.parametrize("strategy", ["fsdp", "megatron"])
@given(micro=st.sampled_from((1, 2, 4, 8)), share=st.floats(0.02, 0.98), recompute=st.booleans())
@examples(0.5, derandomize=True)
def test_advice_of_other_strategies_fits_too(strategy, micro, share, recompute) -> None:
    grid = {"fsdp": {"weights": 4}, "megatron": {"data": 1, "pipeline": 2, "tensor": 2}}[strategy]
    raw = {
        "model": {**SMALL, "layers": 4},
        "machine": "perlmutter",
        "ranks": 4,
        "strategy": strategy,
        "grid": grid,
        "batch": {"sequences": 32, "micro_sequences": micro},
        "recompute": recompute,
    }
    job = load_job(raw, reserve(share * memory_use(load_job(raw)).per_rank_bytes))
    other = followed(job, advice(job, memory_use(job)))
    assert other is None or memory_use(other).fits
