"""What collectives and messages cost the compute beside them, by where they go: published times, and rules."""

from __future__ import annotations

import pytest

from tests.strategies.pipelined import described
from twin.cost.collective import collective_cost
from twin.cost.gemm import gemm_seconds
from twin.cost.placement import Placement
from twin.description.load import load_machine
from twin.engine.all_ranks import simulate_ranks
from twin.engine.simulate import simulate
from twin.schedule.kernels import Gemm
from twin.strategies.megatron.job import MegatronJob

SEQUENTIAL_SECONDS, OVERLAPPED_SECONDS = 2.96e-3, 2.02e-3
"""A product of 8,192 in fp16 and an all-gather of 64 MiB from each of eight H100 (pytorch pull 172714)."""


def test_a_product_beside_an_all_gather_takes_as_long_as_pytorchs_benchmark_of_it() -> None:
    machine = load_machine("dgx-h100")
    cost = collective_cost(machine, machine.libraries["nccl"], "all_gather", 8 * 64 * 2**20, Placement.contiguous(8, 8))
    gather, product = cost.startup_seconds + cost.transfer_seconds, gemm_seconds(machine.device, Gemm(8192, 8192, 8192))
    slowdown = machine.variation.slowdown_on(1)
    covered = min(product, gather / (1 + slowdown))
    """Of the product, as it takes alone: what is done beside the gather."""
    assert product + gather == pytest.approx(SEQUENTIAL_SECONDS, rel=0.07)
    assert product + slowdown * covered == pytest.approx(OVERLAPPED_SECONDS, rel=0.04)


@pytest.mark.parametrize(("machine", "one", "several"), [("dgx-h100", 0.35, 0.217), ("frontier", 0.19, 0.19)])
def test_jobs_of_several_nodes_are_slowed_less_where_their_collectives_have_fewer_channels(
    make_job, machine: str, one: float, several: float
) -> None:
    def slowdown(z: int) -> float:
        return float(make_job({"z": z}, machine, per_rank=1).compute_slowdown)

    assert (slowdown(8), slowdown(16)) == (pytest.approx(one), pytest.approx(several))


def quiet(job: MegatronJob) -> frozenset[str]:
    return simulate(job).prices.quiet


def test_messages_between_nodes_slow_nothing_where_few_channels_carry_them() -> None:
    """A ring whose members are two on a node goes by all channels in part; one with a node for each does not."""
    over_nodes = described({"pipeline": 2, "context": 2, "tensor": 8}, batch={"sequences": 4, "micro_sequences": 1})
    names = quiet(over_nodes)
    assert any(name.startswith("context") for name in names)
    assert any(name.startswith("pipeline") for name in names)
    assert not any(name.startswith("tensor") for name in names)
    within = quiet(described({"context": 4, "tensor": 4}, batch={"sequences": 4, "micro_sequences": 1}))
    assert not within
    elsewhere = described(
        {"pipeline": 2, "context": 2, "tensor": 8}, machine="frontier", batch={"sequences": 4, "micro_sequences": 1}
    )
    assert not quiet(elsewhere)


def test_quiet_messages_are_the_same_to_every_engine() -> None:
    """With classes of ranks whole stretches of ops are known beforehand, with messages beside them or not."""
    long, batch = {"hidden": 2048, "heads": 16, "sequence": 8192}, {"sequences": 4, "micro_sequences": 1}
    job = described(
        {"pipeline": 2, "context": 2, "tensor": 8}, model=long, batch=batch, schedule="interleaved", chunks=2
    )
    assert {name.split("_")[0] for name in quiet(job)} >= {"context", "pipeline"}
    folded, one_by_one = simulate(job), simulate(job, engine="des")
    assert folded.step_seconds == pytest.approx(one_by_one.step_seconds, rel=1e-12)
    assert simulate_ranks(job, random=False).step_seconds == pytest.approx(folded.step_seconds, rel=1e-9)


def test_a_ring_between_nodes_slows_attention_beside_it_no_more() -> None:
    long = {"hidden": 8192, "heads": 64, "sequence": 32768}
    batch = {"sequences": 2, "micro_sequences": 1}
    job = described({"context": 2, "tensor": 8}, model=long, batch=batch, cuda_graphs=True)
    library = job.machine.libraries["nccl"].model_copy(update={"few_channel_messages": False})
    loud = job.model_copy(update={"machine": job.machine.model_copy(update={"libraries": {"nccl": library}})})
    assert simulate(job).step_seconds < simulate(loud).step_seconds
    still = job.machine.variation.slowed_by(0.0, "a floor")
    none = job.model_copy(update={"machine": job.machine.model_copy(update={"variation": still})})
    assert simulate(none).step_seconds <= simulate(job).step_seconds
