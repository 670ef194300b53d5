"""What ranks of Megatron's parallelism send, against counts of the papers and of the implementations.

Letters: b sequences, s tokens, h width, V vocabulary, t tensor, c context, P pipeline, D data ranks. Sources are the
code of Megatron-LM and DeepSpeed of 2026 and arXiv 2205.05198, 2104.04473, 1909.08053.
"""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest
from rich.console import Console

from tests.strategies.pipelined import FP32, MODEL, WHOLE, B, S, described, hidden_by, moved, ops, parameters, started
from twin.description.problems import DescriptionError
from twin.engine.report import as_json, report
from twin.engine.simulate import simulate
from twin.schedule.kernels import Attention, Gemm, Memory
from twin.schedule.ops import Compute, Start, Wait
from twin.search.choose import choose
from twin.show.step import parts
from twin.strategies import load_job, strategy_of
from twin.trace.metrics import job_flops

# Kernels of a block


def test_bias_dropout_and_residual_in_three_kernels_move_what_each_reads_and_writes() -> None:
    """Fused: read both, write the sum and a mask; apart: the bias in place, dropout, and the sum, forward alone."""
    options = {"dropout": 0.1, "model": {"biases": True}, "precision": "bf16", "fused_elementwise": True}
    elements = B * S * MODEL["hidden"]

    def forward(**change: Any) -> dict[str, float]:
        return {
            name.split("/")[-1]: op.kernel.bytes
            for name, op in ops(described({}, **options, **change), 0)
            if isinstance(op, Compute) and isinstance(op.kernel, Memory) and "micro1/F/block2/residual1" in name
        }

    assert forward() == {"residual1": 7 * elements}
    apart = {"residual1_bias": 4 * elements, "residual1_drop": 5 * elements, "residual1": 6 * elements}
    assert forward(fused_residual=False) == apart


# Tensor parallelism


@pytest.mark.parametrize("t", [2, 4, 8])
def test_tensor_ranks_all_reduce_twice_forward_and_twice_backward(t: int) -> None:
    job = described({"tensor": t})
    assert moved(job, within="micro1/F/block2/") == {("all_reduce", WHOLE): 2}
    assert moved(job, within="micro1/B/block2/") == {("all_reduce", WHOLE): 2}
    assert moved(job, within="micro1/F/embedding") == {("all_reduce", WHOLE): 1}
    assert moved(job, within="micro1/F/loss") == {("all_reduce", 4.0 * B * S): 3}
    assert moved(job, within="micro1/B/head") == {("all_reduce", WHOLE): 1}
    assert moved(job, within="micro1/B/embedding") == {}


@pytest.mark.parametrize("t", [2, 4, 8])
def test_sequence_parallelism_gathers_and_scatters(t: int) -> None:
    """The same volume in pairs, and two more gathers backward of inputs of which a rank has kept its part."""
    job = described({"tensor": t}, sequence_parallel=True)
    assert moved(job, within="micro1/F/block2/") == {("all_gather", WHOLE): 2, ("reduce_scatter", WHOLE): 2}
    assert moved(job, within="micro1/B/block2/") == {("all_gather", WHOLE): 4, ("reduce_scatter", WHOLE): 2}
    assert moved(job, within="micro1/F/embedding") == {("reduce_scatter", WHOLE): 1}
    assert moved(job, within="micro1/B/embedding") == {("all_gather", WHOLE): 1}
    assert moved(job, within="micro1/F/head") == {("all_gather", WHOLE): 1}
    assert moved(job, within="micro1/B/head") == {("all_gather", WHOLE): 1, ("reduce_scatter", WHOLE): 1}
    assert moved(job, within="micro1/F/loss") == {("all_reduce", 4.0 * B * S): 3}


def test_one_tensor_rank_talks_to_nobody() -> None:
    assert started(described({}), communicator="tensor") == []


@pytest.mark.parametrize("sequence_parallel", [False, True])
def test_recomputing_repeats_the_forward_collectives_and_waits_for_them(sequence_parallel: bool) -> None:
    """39 % and not 33 % more on the 22B layer, for want of anything beside them (arXiv 2205.05198, table 4)."""
    options = {"recompute": True, "sequence_parallel": sequence_parallel}
    job = described({"tensor": 4}, **options)
    again, forward = "micro1/B/recompute/block2/", "micro1/F/block2/"
    assert moved(job, within=again) == moved(job, within=forward) != {}
    some = described({"tensor": 4, "pipeline": 2}, recompute_layers=1, **options)
    assert {name.split("/")[3] for name, _ in ops(some, 1) if "micro1/B/recompute" in name} == {"block2"}
    waits = [
        (name, ops(job)[i + 1]) for i, (name, op) in enumerate(ops(job)) if isinstance(op, Start) and again in name
    ]
    assert all(isinstance(following, Wait) and same == name for name, (same, following) in waits)


def test_backward_hides_what_it_sends_behind_products() -> None:
    """Input gradients' sum beside the weight gradient; gathered inputs beside the input gradient's product."""
    within = "micro1/B/block2/"
    products = [f"{linear}/weight_gradient" for linear in ("mlp_up", "qkv")]
    plain = [name for name in hidden_by(described({"tensor": 4}), within, "all_reduce") if "bias" not in name]
    assert plain == products
    job = described({"tensor": 4}, sequence_parallel=True)
    assert [name for name in hidden_by(job, within, "reduce_scatter") if "bias" not in name] == products
    gathered = hidden_by(job, within, "all_gather")
    assert gathered == [f"{linear}/input_gradient" for linear in ("mlp_up", "qkv")]
    assert hidden_by(job, "micro1/F/block2/", "all_gather") == []
    overlapped = described({"tensor": 4}, sequence_parallel=True, tensor_overlap=True)
    assert hidden_by(overlapped, "micro1/F/block2/", "all_gather") == ["qkv/gemm_beside", "mlp_up/gemm_beside"]


@pytest.mark.parametrize("schedule", ["zb_h1", "zb_h2"])
def test_a_split_backward_pass_moves_what_the_whole_one_does_and_gathers_inputs_in_its_second_half(
    schedule: str,
) -> None:
    job = described({"tensor": 2, "pipeline": 2}, schedule=schedule, sequence_parallel=True)
    halves = moved(job, within="micro1/I/block0/") + moved(job, within="micro1/W/block0/")
    assert halves == {("all_gather", WHOLE): 4, ("reduce_scatter", WHOLE): 2}
    plain = described({"tensor": 2, "pipeline": 2}, schedule=schedule)
    assert moved(plain, within="micro1/I/block0/") == {("all_reduce", WHOLE): 2}
    assert moved(plain, within="micro1/W/block0/") == {}


# What stages compute


@pytest.mark.parametrize("recompute", [True, False])
@pytest.mark.parametrize(
    ("grid", "options"),
    [
        ({}, {}),
        ({"tensor": 4}, {"sequence_parallel": True}),
        ({"tensor": 2}, {"sequence_parallel": True, "tensor_overlap": True}),
        ({"pipeline": 4, "tensor": 2, "data": 2}, {}),
        ({"pipeline": 2}, {"schedule": "interleaved", "chunks": 2}),
        ({"pipeline": 4}, {"schedule": "zb_h1", "stage_layers": [2, 1, 1, 0]}),
        ({"pipeline": 2}, {"schedule": "zb_v", "chunks": 2}),
        ({"pipeline": 2, "data": 2}, {"flavour": "deepspeed"}),
    ],
    ids=str,
)
def test_all_stages_together_compute_the_model(grid: dict[str, int], options: Any, recompute: bool) -> None:
    job = described(grid, recompute=recompute, **options)
    total = 0.0
    for number, role in enumerate(strategy_of(job).roles(job)):
        kernels = [op.kernel for _, op in ops(job, number) if isinstance(op, Compute)]
        total += len(role.ranks) * sum(k.flops for k in kernels if isinstance(k, Gemm | Attention))
    assert total == pytest.approx(job_flops(job, recompute=recompute), rel=1e-12)


@pytest.mark.parametrize("exchange", ["ring", "all_gather", "all_to_all"])
def test_context_ranks_share_the_causal_triangle(exchange: str) -> None:
    """All but attention is as before; attention is the triangle, within what the diagonal is counted."""
    job = described({"context": 4}, attention="flash", context_exchange=exchange)
    alone = described({}, attention="flash")

    def flops(described_: Any, kind: Any) -> float:
        return sum(
            op.kernel.flops for _, op in ops(described_) if isinstance(op, Compute) and isinstance(op.kernel, kind)
        )

    assert 4 * flops(job, Gemm) == pytest.approx(flops(alone, Gemm))
    assert 4 * flops(job, Attention) == pytest.approx(flops(alone, Attention), rel=0.01)


# Messages between stages


@pytest.mark.parametrize(
    ("grid", "options", "share"),
    [
        ({"pipeline": 2}, {}, 1),
        ({"pipeline": 2, "tensor": 4}, {}, 1),  # every tensor rank sends all of it
        ({"pipeline": 2, "tensor": 4}, {"sequence_parallel": True}, 4),
        ({"pipeline": 2, "tensor": 4}, {"split_messages": True}, 4),
        ({"pipeline": 2, "context": 2}, {}, 2),
        ({"pipeline": 2, "context": 2, "tensor": 2}, {"sequence_parallel": True}, 4),
        ({"pipeline": 2, "tensor": 4}, {"flavour": "deepspeed"}, 4),
    ],
    ids=str,
)
def test_a_message_is_an_activation(grid: dict[str, int], options: Any, share: int) -> None:
    job = described(grid, **options)
    for stage in (0, 1):
        counted = Counter((op.kind, op.bytes) for name, op in started(job, stage, "messages/", "pipeline"))
        assert counted == {("send", WHOLE / share): 4, ("receive", WHOLE / share): 4}
        gathers = [op for _, op in started(job, stage, "/gather")]
        splits = not options.get("sequence_parallel") and share == grid.get("tensor")
        assert [op.bytes for op in gathers] == [WHOLE] * (4 if splits else 0)


@pytest.mark.parametrize(
    ("schedule", "chunks", "crossings"),
    [("gpipe", 1, 3), ("1f1b", 1, 3), ("zb_h1", 1, 3), ("interleaved", 2, 7), ("zb_v", 2, 6), ("dualpipe", 1, 3)],
)
def test_a_micro_batch_crosses_every_border_once_each_way(schedule: str, chunks: int, crossings: int) -> None:
    """In a V the two halves meet on the last rank."""
    micro_steps = 8
    job = described({"pipeline": 4}, micro_steps=micro_steps, schedule=schedule, chunks=chunks, model={"layers": 8})
    everything = [op for stage in range(4) for _, op in started(job, stage, "messages/")]
    assert Counter(op.kind for op in everything) == {
        "send": 2 * crossings * micro_steps,
        "receive": 2 * crossings * micro_steps,
    }


def test_1f1b_waits_for_messages_where_they_are_and_interleaving_goes_on() -> None:
    """`overlap_p2p_comm` is off without interleaving, and the default with it."""

    def beside(job: Any) -> int:
        return len(hidden_by(job, "", "send")) + len(hidden_by(job, "", "receive"))

    grid = {"pipeline": 4}
    assert beside(described(grid, micro_steps=8)) == 0
    assert beside(described(grid, micro_steps=8, overlap_messages=True)) > 0
    more = {"schedule": "interleaved", "chunks": 2, "model": {"layers": 8}}
    assert beside(described(grid, micro_steps=8, **more)) > 0
    assert beside(described(grid, micro_steps=8, overlap_messages=False, **more)) == 0


def test_deepspeed_sends_an_activation_in_the_tick_after() -> None:
    """SendActivation comes behind the next tick's RecvGrad, SendGrad before RecvActivation: both a tick late."""
    names = [
        name.removeprefix("messages/")
        for name, op in ops(described({"pipeline": 2}, flavour="deepspeed", micro_steps=3))
        if isinstance(op, Start) and "messages" in name
    ]
    assert names == [
        *("micro0/F/send", "micro0/B/receive", "micro1/F/send", "micro1/B/receive", "micro2/F/send", "micro2/B/receive")
    ]
    last = described({"pipeline": 2}, flavour="deepspeed", micro_steps=3)
    order = [name for name, op in ops(last, 1) if isinstance(op, Start) and "messages" in name]
    assert order[:3] == [f"messages/{name}" for name in ("micro0/F/receive", "micro0/B/send", "micro1/F/receive")]


def test_gradients_are_summed_over_data_and_context() -> None:
    job = described({"data": 2, "context": 4}, attention="flash")
    (data,) = [c for c in strategy_of(job).communicators(job) if c.name == "data"]
    assert data.size == 8
    assert moved(job, within="reduce/", communicator="data") == {("all_reduce", float(FP32 * parameters())): 1}


@pytest.mark.parametrize(
    ("grid", "axes"),
    [
        ({"data": 2, "context": 4}, ["data", "context"]),
        ({"context": 8}, ["context"]),
        ({"data": 4, "tensor": 2}, None),
        ({"pipeline": 2, "data": 2, "context": 2}, ["data", "context"]),
    ],
)
def test_axes_that_run_over_others_too_say_so(
    grid: dict[str, int], axes: list[str] | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """Exposed sums of gradients over context ranks were booked as `data`, which may be of one rank."""
    job = described(grid, attention="flash")
    simulation = simulate(job)
    figures = report(simulation)
    written = as_json(simulation, figures, 0.0)
    assert written.get("wider") == (None if axes is None else {"data": axes})
    parts(Console(width=200), job, figures, several=False)
    told = "data" if axes is None else f"data (of {' × '.join(axes)})"
    assert f"exposed communication, {told} " in capsys.readouterr().out


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"schedule": "deepspeed"}, "schedule"),
        ({"schedule": "interleaved", "chunks": 2, "overlap_messages": False}, "wait for each other for ever"),
        ({"schedule": "zb_h1", "overlap_messages": False}, "overlap_messages"),
        ({"context_exchange": "all_to_all", "model": {"heads": 12, "kv_heads": 6, "hidden": 768}}, "6 of keys"),
    ],
)
def test_what_would_not_run_is_refused(keys: dict[str, Any], words: str) -> None:
    grid = {"pipeline": 4, "context": 4} if "context_exchange" in keys else {"pipeline": 4}
    with pytest.raises(DescriptionError, match=words):
        described(grid, micro_steps=4, **keys)


@pytest.mark.parametrize("schedule", [{"schedule": "interleaved", "chunks": 2}, {"schedule": "zb_h1"}])
def test_an_open_grid_and_micro_batch_are_settled_by_the_schedules_rules(schedule: dict[str, Any]) -> None:
    """Pipelines of one rank and numbers of micro-batches that the schedule has not are not tried."""
    raw = {"model": {**MODEL, "layers": 8}, "machine": "dgx-h100", "ranks": 4, "recompute": False, **schedule}
    best = choose(load_job({"strategy": "megatron", "batch": {"sequences": 16}, "grid": "auto", **raw})).best.job
    assert best.concrete_grid.size("pipeline") > 1
    assert best.micro_steps >= best.concrete_grid.size("pipeline")


def test_collectives_of_one_class_that_share_a_link_with_gradients_under_way() -> None:
    """Context ranks and data ranks meet on the NIC of a node with one link for both."""
    model = {"layers": 8, "hidden": 2048, "heads": 16, "sequence": 1024, "vocabulary": 50257}
    job = load_job(
        {
            "strategy": "megatron",
            "model": model,
            "machine": "alps",
            "ranks": 4,
            "grid": {"pipeline": 2, "context": 2},
            "schedule": "interleaved",
            "chunks": 2,
            "batch": {"sequences": 8, "micro_sequences": 1},
            "recompute": False,
            "overlap_gradients": True,
            "cuda_graphs": True,
        }
    )
    folded, every = simulate(job), simulate(job, engine="des")
    assert folded.step_seconds == pytest.approx(every.step_seconds, rel=1e-9)
