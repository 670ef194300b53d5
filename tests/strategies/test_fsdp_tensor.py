"""ZeRO beside ranks that share layers: what moves and is held, by counts of Megatron-LM's cut; where it is refused."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from tests.strategies.test_fsdp import ops
from twin.cost.memory import memory_use
from twin.description.problems import DescriptionError
from twin.engine.simulate import simulate
from twin.schedule.kernels import Gemm
from twin.schedule.ops import Compute, Start
from twin.strategies import load_job, named, strategy_of
from twin.strategies.fsdp.job import FsdpJob

LAYERS, HIDDEN, VOCABULARY, SEQUENCE, WIDE = 3, 1024, 2048, 256, 4096
MODEL: dict[str, Any] = {
    "layers": LAYERS,
    "hidden": HIDDEN,
    "heads": 16,
    "kv_heads": 4,
    "mlp_width": WIDE,
    "sequence": SEQUENCE,
    "vocabulary": VOCABULARY,
    "activation": "swiglu",
    "norm": "rms",
    "positions": "rotary",
    "biases": False,
}
MATRICES = LAYERS * (HIDDEN * (HIDDEN + 2 * 256) + HIDDEN * HIDDEN + 3 * HIDDEN * WIDE) + 2 * VOCABULARY * HIDDEN
VECTORS = LAYERS * 2 * HIDDEN + HIDDEN


def described(grid: dict[str, int], model: Any = MODEL, machine: Any = "dgx-h100", **options: Any) -> FsdpJob:
    ranks = 1
    for size in grid.values():
        ranks *= size
    replicas = ranks // grid.get("tensor", 1)
    raw = {
        "strategy": "fsdp",
        "flavour": "deepspeed",
        "model": model,
        "machine": machine,
        "ranks": ranks,
        "grid": grid,
        "batch": {"sequences": 2 * replicas, "micro_sequences": 2},
        "recompute": False,
        **options,
    }
    job = load_job(raw)
    assert isinstance(job, FsdpJob)
    return job


def moved(job: FsdpJob, axis: str) -> Counter[str]:
    """Bytes of an axis' collectives by kind."""
    found: Counter[str] = Counter()
    for _, op in ops(job):
        if isinstance(op, Start) and op.axis == axis:
            found[op.kind] += round(op.bytes)
    return found


@pytest.mark.parametrize("tensor", [1, 2, 4])
def test_a_rank_has_its_share_of_matrices_and_all_vectors(tensor: int) -> None:
    """2 + 2 + 12 bytes an element, over the ranks that it is cut over."""
    job = described({"weights": 2, "tensor": tensor})
    memory = memory_use(job).by_category
    states = memory["weights"] + memory["gradients"] + memory["optimizer"]
    assert states == pytest.approx(16 * (MATRICES / tensor + VECTORS) / 2, rel=1e-6)


@pytest.mark.parametrize("tensor", [2, 4])
def test_products_are_divided_and_so_are_gathers(tensor: int) -> None:
    whole, shared = described({"weights": 4}), described({"weights": 4, "tensor": tensor})
    work = [
        sum(op.kernel.flops for _, op in ops(job) if isinstance(op, Compute) and isinstance(op.kernel, Gemm))
        for job in (whole, shared)
    ]
    assert work[1] == pytest.approx(work[0] / tensor, rel=1e-12)
    # what is below DeepSpeed's threshold of 100,000 elements is on every rank
    gathered = [moved(job, "weights")["all_gather"] for job in (whole, shared)]
    assert gathered[1] == gathered[0] // tensor


@pytest.mark.parametrize(("recompute", "of_a_block"), [(False, 4), (True, 6)])
def test_what_tensor_ranks_send_each_other(recompute: bool, of_a_block: int) -> None:
    """Two all-reduces of the residual stream in each pass over a block (arXiv 1909.08053, figure 4), one behind the
    table of tokens, one of the head's input gradient, three numbers of each token for the loss, one for the norm."""
    job = described({"weights": 2, "tensor": 4}, recompute=recompute)
    tokens = 2 * SEQUENCE
    stream = tokens * HIDDEN * job.element_bytes
    expected = (LAYERS * of_a_block + 2) * stream + 3 * tokens * 4 + 4
    assert moved(job, "tensor") == {"all_reduce": expected}


def test_ranks_that_share_layers_are_neighbours() -> None:
    job = described({"data": 2, "gradients": 2, "weights": 2, "tensor": 2})
    members = {each.name: each.members.tolist() for each in strategy_of(job).communicators(job)}
    assert members["tensor"] == [[2 * i, 2 * i + 1] for i in range(8)]
    assert members["weights"] == [[0, 2], [1, 3], [4, 6], [5, 7], [8, 10], [9, 11], [12, 14], [13, 15]]
    assert members["gradients_scatter"] == [[0, 2, 4, 6], [1, 3, 5, 7], [8, 10, 12, 14], [9, 11, 13, 15]]
    assert members["data"] == [[i, i + 8] for i in range(8)]


def test_a_grid_of_one_tensor_rank_is_the_grid_without() -> None:
    plain, said = described({"weights": 4}), described({"weights": 4, "tensor": 1})
    assert plain == said
    assert ops(plain) == ops(said)
    assert "tensor" not in plain.concrete_grid.axes


def test_it_is_the_same_step_as_of_the_4d_algorithm_over_y_where_nothing_is_sharded() -> None:
    """But for the table of tokens, which Megatron divides and 4D repeats, and for how gradients become updates."""
    ours = described({"tensor": 4})
    theirs = load_job(
        {
            **{key: getattr(ours, key) for key in ("ranks", "recompute")},
            "model": MODEL,
            "machine": "dgx-h100",
            "grid": {"y": 4},
            "batch": {"sequences": 2, "micro_sequences": 2},
        }
    )
    block = [op.kernel for name, op in ops(ours) if isinstance(op, Compute) and "block1/" in name and op.phase == "fwd"]
    other = strategy_of(theirs).schedule(theirs, strategy_of(theirs).roles(theirs)[0])
    assert block == [
        op.kernel for name, op in other.named() if isinstance(op, Compute) and "block1/" in name and op.phase == "fwd"
    ]


@pytest.mark.parametrize("machine", ["polaris", "4xh100"])
def test_an_offloaded_update_of_a_node_takes_as_long_however_it_is_cut(machine: str) -> None:
    """Its ranks update the same matrices, each a share, out of one memory."""
    options: dict[str, Any] = {
        "offload": {"optimizer": {"sub_group_elements": 1_000_000}},
        "recompute": True,
        "machine": machine,
    }
    alike = {"variation": {"device_speed_spread": 0, "compute_jitter": 0}}
    options["machine"] = {"extends": machine, **alike}
    updates = []
    for grid in ({"weights": 4}, {"weights": 2, "tensor": 2}, {"tensor": 4}):
        simulation = simulate(described(grid, **options))
        ends = zip(simulation.timeline.end[0], simulation.program.ops, strict=True)
        spent = [(end, op.phase) for end, (op, _) in ends]
        updates.append(simulation.step_seconds - max(end for end, phase in spent if phase == "bwd"))
    # vectors are updated by every rank that shares layers
    assert updates[1] == pytest.approx(updates[0], rel=0.02)
    assert updates[2] == pytest.approx(updates[0], rel=0.02)


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "FSDP2": ({"flavour": "fsdp2"}, "strategy megatron, flavour torch"),
    "FSDP1": ({"flavour": "fsdp1"}, "strategy megatron, flavour torch"),
    "heads": ({"grid": {"weights": 1, "tensor": 8}, "ranks": 8}, "must divide heads 16, those of keys 4"),
    "hpZ": ({"grid": {"weights": 4, "tensor": 2}, "ranks": 8, "secondary": 2}, "groups neighbouring ranks"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_does_not_go_with(case: str) -> None:
    options, words = REFUSED[case]
    base = {"strategy": "fsdp", "flavour": "deepspeed", "model": MODEL, "machine": "dgx-h100", "ranks": 8}
    batch = {"grid": {"weights": 4, "tensor": 2}, "batch": {"sequences": 8, "micro_sequences": 1}}
    with pytest.raises(DescriptionError, match=words):
        load_job({**base, **batch, **options})


def test_a_search_tries_ranks_of_a_node() -> None:
    job = described({"weights": 8})
    found = {grid.tensor for grid in named("fsdp").candidates(job)}  # type: ignore[attr-defined]  # its own grids
    assert found == {1, 2, 4, 8}
    small = described({"weights": 8}, machine="polaris")
    assert {grid.tensor for grid in named("fsdp").candidates(small)} == {1, 2, 4}  # type: ignore[attr-defined]  # as above
