"""Sharded data parallelism: what moves and is held, against published counts; when, against each flavour's rules."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.schedule.test_totals import both
from twin.cost.memory import memory_use
from twin.description.problems import DescriptionError
from twin.engine.simulate import simulate
from twin.schedule.kernels import Attention, Gemm, Memory
from twin.schedule.ops import Compute, Simple, Start, Wait
from twin.strategies import load_job, strategy_of
from twin.trace.metrics import hardware_flops, job_flops

MODEL: dict[str, Any] = {"layers": 3, "hidden": 512, "heads": 8, "sequence": 128, "vocabulary": 1024, "biases": False}
ZERO = {1: {"optimizer": 16}, 2: {"gradients": 16}, 3: {"weights": 16}}


def described(grid: dict[str, int], model: Any = MODEL, micro_steps: int = 1, **options: Any) -> Any:
    ranks = 1
    for size in grid.values():
        ranks *= size
    raw = {
        "strategy": "fsdp",
        "model": model,
        "machine": "dgx-h100",
        "ranks": ranks,
        "grid": grid,
        "batch": {"sequences": ranks * micro_steps, "micro_sequences": 1},
        **options,
    }
    return load_job(raw)


def ops(job: Any) -> list[tuple[str, Simple]]:
    strategy = strategy_of(job)
    return list(strategy.schedule(job, strategy.roles(job)[0]).named())


def moved(job: Any) -> Counter[tuple[str, str]]:
    """Bytes of large collectives by kind and communicator."""
    found: Counter[tuple[str, str]] = Counter()
    for _, op in ops(job):
        if isinstance(op, Start) and op.bytes > 64:
            found[op.kind, op.communicator] += round(op.bytes)
    return found


def wire(job: Any) -> float:
    """Elements that a rank's large collectives move, in the unit of the ZeRO paper: an all-reduce counts twice."""
    weights = {"all_reduce": 2.0, "all_gather": 1.0, "reduce_scatter": 1.0}
    return sum(weights[kind] * size for (kind, _), size in moved(job).items()) / job.element_bytes


@pytest.mark.parametrize("tied", [False, True])
@pytest.mark.parametrize("flavour", ["fsdp2", "fsdp1", "deepspeed"])
@pytest.mark.parametrize("stage", ZERO)
def test_volume_is_that_of_the_papers(stage: int, flavour: str, tied: bool) -> None:
    """arXiv 1910.02054: 2 for stages 1 and 2, 3 for stage 3; what stays gathered or is never cut is gathered less."""
    papers = {"all_reduce_buckets": False} if flavour == "deepspeed" else {}
    job = described(ZERO[stage], {**MODEL, "tied_embeddings": tied}, flavour=flavour, **papers)
    psi = job.model.parameters
    expected = 2.0 if stage < 3 else 3.0
    low = expected - (0.5 if stage == 3 else 0.0)  # a third of this small model is embedding and head
    again = job.model.vocabulary * job.model.hidden * tied  # fetched for the head too, where modules are gathered
    assert low * psi <= wire(job) <= expected * psi * 1.01 + again


def test_deepspeed_all_reduces_its_buckets_by_default() -> None:
    for stage in (1, 2):
        job = described(ZERO[stage], flavour="deepspeed")
        assert wire(job) == pytest.approx(3 * job.model.parameters, rel=0.01)


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("flavour", ["fsdp2", "deepspeed"])
def test_micro_steps_repeat_what_they_repeat(steps: int, flavour: str) -> None:
    """Stage 1 reduces once a step (DeepSpeed), stages 2 and 3 in every micro-step; `no_sync` once."""
    once = moved(described(ZERO[3], flavour=flavour))
    often = moved(described(ZERO[3], micro_steps=steps, flavour=flavour))
    assert often == Counter({key: steps * size for key, size in once.items()})
    whole = moved(described(ZERO[3], micro_steps=steps, flavour="fsdp2", accumulate="whole"))
    first = moved(described(ZERO[3], flavour="fsdp2"))
    scatter, gather = ("reduce_scatter", "weights_scatter"), ("all_gather", "weights_gather")
    assert (whole[scatter], whole[gather]) == (first[scatter], steps * first[gather])
    for stage, times, axis in ((1, 1, "optimizer"), (2, steps, "gradients")):
        everyone = f"{axis}_everyone"
        reduced = moved(described(ZERO[stage], micro_steps=steps, flavour="deepspeed"))["all_reduce", everyone]
        one = moved(described(ZERO[stage], flavour="deepspeed"))["all_reduce", everyone]
        assert reduced == times * one


@pytest.mark.parametrize("data", [2, 8, 16])
def test_memory_is_that_of_the_papers(data: int) -> None:
    """Bytes an element in 2-byte precision: 4 + 12/N, 2 + 14/N, 16/N (arXiv 1910.02054)."""
    for key, bytes_ in (
        ("optimizer", 4 + 12 / data),
        ("gradients", 2 + 14 / data),
        ("weights", 16 / data),
        ("data", 16.0),
    ):
        job = described({key: data}, flavour="deepspeed")
        used = memory_use(job).by_category
        held = used["weights"] + used["gradients"] + used["optimizer"]
        assert held == pytest.approx(bytes_ * job.model.parameters, rel=1e-4)
    used = memory_use(described({"weights": data})).by_category
    assert used["weights"] + used["gradients"] + used["optimizer"] == pytest.approx(
        16 / data * job.model.parameters, rel=1e-4
    )


def test_three_levels_are_cut_each_over_its_own() -> None:
    job = described({"optimizer": 4, "gradients": 4, "weights": 2}, flavour="deepspeed")
    psi, used = job.model.parameters, memory_use(job).by_category
    assert used["weights"] == pytest.approx(2 * psi / 2, rel=1e-4)
    assert used["gradients"] == pytest.approx(2 * psi / 8, rel=1e-4)
    assert used["optimizer"] == pytest.approx(12 * psi / 32, rel=1e-4)
    found = moved(job)
    assert found["reduce_scatter", "optimizer_scatter"] == pytest.approx(2 * psi / 8, rel=0.01)
    assert found["all_gather", "optimizer_gather"] == pytest.approx(2 * psi / 2, rel=1e-4)


def test_zero_plus_plus_sends_a_quarter_between_nodes() -> None:
    """arXiv 2306.10209: 3 M between nodes become 0.5 (weights, 8 bits) + 0 (backward) + 0.25 (gradients, 4 bits)."""
    plus = {"secondary": 8, "quantized_weights": True, "quantized_gradients": True}
    job = described({"weights": 64}, flavour="deepspeed", **plus)
    found, psi = moved(job), job.model.parameters
    head = job.model.vocabulary * job.model.hidden  # still there when the backward pass begins
    assert found["all_gather", "weights"] == pytest.approx(psi, rel=0.01)
    assert found["all_gather", "weights_secondary"] == pytest.approx(2 * (psi - head), rel=0.01)
    assert found["all_to_all", "weights_inside"] == pytest.approx(0.5 * psi, rel=0.01)
    assert found["all_to_all", "weights_between"] == pytest.approx(0.5 * psi / 8, rel=0.01)


@both
@pytest.mark.parametrize("flavour", ["fsdp2", "fsdp1", "deepspeed"])
def test_every_rank_computes_the_whole_model(recompute: bool, flavour: str) -> None:
    job = described(ZERO[3], recompute=recompute, flavour=flavour, micro_steps=3)
    kernels = [op.kernel for _, op in ops(job) if isinstance(op, Compute)]
    counted = job.ranks * sum(k.flops for k in kernels if isinstance(k, Gemm | Attention))
    assert counted == pytest.approx(job_flops(job, recompute=recompute), rel=1e-12)


@pytest.mark.parametrize("flavour", ["fsdp2", "fsdp1", "deepspeed"])
@pytest.mark.parametrize("recompute", [True, False])
def test_weights_are_there_when_they_are_needed_and_not_long_before(flavour: str, recompute: bool) -> None:
    job = described(
        ZERO[3], flavour=flavour, recompute=recompute, prefetch_elements=1 if flavour == "deepspeed" else None
    )
    flying: set[str] = set()
    there: set[str] = set()
    for name, op in ops(job):
        if isinstance(op, Start) and op.kind == "all_gather":
            flying.add(name)
            assert len(flying) <= 2, "the one that is waited for, and the next"
        elif isinstance(op, Wait) and name in flying:
            flying.remove(name)
            there.add(name.removesuffix("/all_gather_weights"))
        elif isinstance(op, Compute) and isinstance(op.kernel, Gemm) and "/block" in name:
            micro, phase, block, linear, _ = name.split("/")
            phase = "bwd" if phase == "recompute" else phase
            unit = linear if flavour == "deepspeed" else "weights"
            assert f"{micro}/{phase}/{block}/{unit}" in there, name
    assert not flying


@pytest.mark.parametrize("recompute", [True, False])
def test_gathers_of_2021_wait_and_are_copied_part_by_part(recompute: bool) -> None:
    """Nothing computes while a weight comes; its bytes are read and written twice; gradients are all-reduced."""
    job = described(ZERO[3], flavour="deepspeed", waits_for_gathers=True, recompute=recompute)
    later = described(ZERO[3], flavour="deepspeed", recompute=recompute)
    flying, gathered, copied = "", 0.0, 0.0
    for name, op in ops(job):
        if isinstance(op, Start) and op.kind == "all_gather":
            flying, gathered = name, gathered + op.bytes
        elif isinstance(op, Wait) and name == flying:
            flying = ""
        elif isinstance(op, Compute):
            assert not flying, name
            if name.endswith("/copy_parts"):
                assert isinstance(op.kernel, Memory)
                assert op.kernel.kernels == 16 + 1
                copied += op.kernel.bytes
    assert copied == 4 * gathered
    assert gathered == sum(op.bytes for _, op in ops(later) if isinstance(op, Start) and op.kind == "all_gather")
    assert wire(job) == pytest.approx(wire(later) + job.model.parameters, rel=0.01)
    assert simulate(job).step_seconds > simulate(later).step_seconds


@pytest.mark.parametrize("grid", [{"weights": 2}, {"data": 2}, {"optimizer": 2}, {"gradients": 2}], ids=str)
def test_micro_steps_are_added_up_once_each(grid: dict[str, int]) -> None:
    """Of each element that a rank keeps: widened, then written once, from then on read and written."""
    job = described(grid, micro_steps=3)
    kept = job.model.parameters / (2 if "weights" in grid or "gradients" in grid else 1)
    for micro, each in enumerate((2 + 4 + 4 + 4, 2 + 4 + 4 + 8, 2 + 4 + 4 + 8)):
        sums = [
            op.kernel.bytes
            for name, op in ops(job)
            if isinstance(op, Compute) and name.startswith(f"micro{micro}/") and name.endswith("/accumulate")
        ]
        assert sum(sums) == pytest.approx(each * kept, rel=0.01)


def test_weights_that_have_one_form_are_gathered_in_it() -> None:
    job = described({"optimizer": 2, "weights": 8})
    found = moved(job)["all_gather", "optimizer_gather"]
    assert found == pytest.approx(4 * job.model.parameters / 8, rel=1e-3)


def test_small_models_are_cut_by_nobody() -> None:
    small = {"layers": 2, "hidden": 64, "heads": 4, "sequence": 64, "vocabulary": 256}
    job = described({"weights": 8}, small, flavour="deepspeed")
    assert memory_use(job).per_rank_bytes > 0
    assert simulate(job).step_seconds > 0


def test_documents_have_their_mask() -> None:
    names = [name for name, _ in ops(described({"weights": 8}, document_mask=True))]
    assert "micro0/fwd/documents/mask" in names


def test_what_is_gathered_ahead_takes_memory() -> None:
    near, far = (
        memory_use(described({"weights": 8}, flavour="deepspeed", prefetch_elements=count)).by_category
        for count in (1, 10**9)
    )
    assert far["gathered weights"] > 1.5 * near["gathered weights"]
    early = memory_use(described({"weights": 8}, flavour="deepspeed", waits_for_gathers=True)).by_category
    assert early["gathered weights"] == near["gathered weights"]  # a list of parts, where the next one is else


def test_gradients_leave_one_unit_at_a_time() -> None:
    flying: set[str] = set()
    for name, op in ops(described({"data": 2, "weights": 8})):
        if isinstance(op, Start) and op.kind == "reduce_scatter":
            flying.add(name)
            assert len(flying) == 1
        elif isinstance(op, Wait):
            flying.discard(name)
    assert not flying


@pytest.mark.parametrize(
    "options",
    [
        {"grid": {"weights": 16}},
        {"grid": {"data": 2, "weights": 8}, "flavour": "fsdp1"},
        {"grid": {"optimizer": 2, "gradients": 4, "weights": 2}, "flavour": "deepspeed"},
        {"grid": {"gradients": 16}, "flavour": "deepspeed", "stragglers": [{"rank": 3, "slowdown": 1.3}]},
        {
            "grid": {"weights": 16},
            "flavour": "deepspeed",
            "secondary": 4,
            "quantized_weights": True,
            "quantized_gradients": True,
        },
    ],
    ids=lambda options: str(options.get("flavour", "fsdp2")) + str(options["grid"]),
)
def test_classes_of_ranks_are_as_good_as_every_rank(options: dict[str, Any]) -> None:
    grid = options.pop("grid")
    job = described(grid, micro_steps=2, **options)
    options["grid"] = grid
    folded, every = (simulate(job, engine=engine).step_seconds for engine in ("folded", "des"))
    assert folded == pytest.approx(every, rel=1e-9)


BAD: dict[str, tuple[dict[str, Any], str]] = {
    "of DeepSpeed": ({"bucket_elements": 10}, "bucket_elements"),
    "keeps weights": ({"flavour": "deepspeed", "reshard_after_forward": False}, "ZeRO-2"),
    "gathers of 2021, of PyTorch": ({"waits_for_gathers": True}, "set flavour: deepspeed"),
    "gathers of 2021 and qwZ": (
        {"flavour": "deepspeed", "waits_for_gathers": True, "quantized_weights": True},
        "before ZeRO",
    ),
    "gathers of 2021 ahead": (
        {"flavour": "deepspeed", "waits_for_gathers": True, "prefetch_elements": 10},
        "nothing is gathered ahead",
    ),
    "no divisor": ({"flavour": "deepspeed", "secondary": 3}, "must divide the 16 ranks"),
    "one node": ({"flavour": "deepspeed", "quantized_gradients": True, "machine": "frontier"}, "whole nodes"),
    "stops nothing": ({"recompute": False, "recompute_stops_early": True}, "needs recompute: true"),
    "stops before a mask": (
        {"recompute": True, "recompute_stops_early": True, "dropout": 0.1},
        "recompute_stops_early = True: with dropout",
    ),
    "adapters": ({"lora": {}}, "trains every weight"),
    "unknown": ({"flavour": "fsdp3"}, "flavour"),
}


@pytest.mark.parametrize("case", BAD)
def test_what_does_not_go_together_is_refused(case: str) -> None:
    options, match = BAD[case]
    grid = {"optimizer": 2, "weights": 8} if case == "one node" else {"weights": 16}
    with pytest.raises(DescriptionError, match=match):
        described(grid, **options)


def test_weights_that_are_whole_are_not_quantized() -> None:
    with pytest.raises(DescriptionError, match="of ZeRO-3"):
        described({"gradients": 16}, flavour="deepspeed", quantized_weights=True)
    with pytest.raises(DescriptionError, match="of ZeRO-3"):
        described({"gradients": 16}, flavour="deepspeed", waits_for_gathers=True)


@pytest.mark.parametrize("flavour", ["fsdp2", "fsdp1", "deepspeed"])
def test_a_block_that_stops_early_leaves_out_its_last_product(flavour: str) -> None:
    """And what is added to it: nothing else of the step, and FLOPs count what is done."""
    whole, early = (
        described({"weights": 16}, flavour=flavour, recompute=True, recompute_stops_early=stops)
        for stops in (False, True)
    )
    left_out = Counter(name for name, _ in ops(whole)) - Counter(name for name, _ in ops(early))
    blocks = [f"micro0/recompute/block{layer}/" for layer in range(3)]
    assert set(left_out) == {block + name for block in blocks for name in ("mlp_down/gemm", "residual2")}
    assert not Counter(name for name, _ in ops(early)) - Counter(name for name, _ in ops(whole))
    products = [op.kernel.flops for name, op in ops(whole) if name in left_out and isinstance(op.kernel, Gemm)]
    assert hardware_flops(whole) - hardware_flops(early) == pytest.approx(16 * sum(products), rel=1e-12)
    assert moved(whole) == moved(early)


def test_it_is_then_as_quick_as_the_pieces_that_torchtitan_composes() -> None:
    """Written apart: strategy megatron, flavour torch."""
    wide = {**MODEL, "layers": 6, "hidden": 4096, "heads": 32, "sequence": 2048}
    early = described({"weights": 16}, wide, recompute=True, recompute_stops_early=True, reduce_precision="fp32")
    keys = {"strategy": "megatron", "flavour": "torch", "grid": {"data": 16}, "recompute": True}
    batch = {"sequences": 16, "micro_sequences": 1}
    composed = load_job({"model": wide, "machine": "dgx-h100", "ranks": 16, "batch": batch, **keys})
    assert simulate(early).step_seconds == pytest.approx(simulate(composed).step_seconds, rel=2e-3)
