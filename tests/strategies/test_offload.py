"""State beyond the device: what moves, how long it takes, what it leaves, and that all engines agree."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.profiles import examples
from tests.strategies.moved import moved
from twin.cost.memory import memory_use
from twin.cost.tiers import CAST_TRAFFIC
from twin.description.offload import OptimizerOffload
from twin.description.problems import DescriptionError
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.schedule.ops import Wait
from twin.strategies import load_job
from twin.strategies.held import held_groups
from twin.strategies.offload import STATES_BYTES, UPDATE_BYTES
from twin.strategies.sub_groups import sub_groups, updated_by_host, updated_on_device

MODEL: dict[str, Any] = {"layers": 4, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 1024, "biases": False}
FREE_HOST = ("machine.device.host=0 us", "machine.device.collective_host=0 us")


def described(offload: Any, ranks: int = 1, machine: Any = "polaris", overrides: Any = (), **options: Any) -> Any:
    raw = {
        "strategy": "fsdp",
        "flavour": "deepspeed",
        "model": MODEL,
        "machine": machine,
        "ranks": ranks,
        "grid": {"weights": ranks},
        "batch": {"sequences": ranks * options.pop("micro_steps", 1), "micro_sequences": 1},
        "offload": offload,
        **options,
    }
    return load_job(raw, overrides)


def test_deepspeed_s_blocking_optimizer_moves_what_its_blog_says() -> None:
    """2 bytes of a gradient down and 2 of a new weight up for each parameter, and the host updates all of them."""
    job = described({"optimizer": {"sub_group_elements": 1_000_000}})
    own, found = job.model.parameters, moved(job)
    assert found["cast_to_host"] == found["cast_to_device"] == 2 * own
    assert found["host_update"] == UPDATE_BYTES * own


@pytest.mark.parametrize("stride", [2, 3, 5])
def test_interleaving_moves_the_states_of_every_stride_th_sub_group(stride: int) -> None:
    size = 1_000_000
    job = described({"optimizer": {"sub_group_elements": size, "stride": stride, "overlapped_gradients": True}})
    groups, found = sub_groups(job.offload.optimizer, job.model.parameters), moved(job)
    device = sum(group.elements for group in groups if group.on_device)
    assert [group.number for group in groups if group.on_device] == list(range(stride - 1, len(groups), stride))
    assert found["to_device"] == STATES_BYTES * device
    assert found["host_update"] == UPDATE_BYTES * (job.model.parameters - device)


@pytest.mark.parametrize(("stride", "size"), [(1, 10**9), (2, 10**9), (1, 10**7), (2, 10**7), (3, 2**22), (4, 10**6)])
def test_device_has_room_for_the_sub_groups_that_pass_through_it_and_no_more(stride: int, size: int) -> None:
    """Up to three at once: one that is updated, one that comes, one that goes. The host updates all others."""
    job = described({"optimizer": {"sub_group_elements": size, "stride": stride, "overlapped_gradients": True}})
    groups = [g.elements for g in sub_groups(job.offload.optimizer, job.model.parameters) if g.on_device]
    use, found, device = memory_use(job).by_category, moved(job), sum(groups)
    assert use["passing states"] == STATES_BYTES * min(device, 3 * max(groups, default=0))
    assert use["gradients"] == 4.0 * device
    gradients = found["to_host"] - STATES_BYTES * device
    assert gradients == pytest.approx(4 * (job.model.parameters - device), abs=4 * 100)  # each part's is rounded


@pytest.mark.parametrize(("stride", "size"), [(1, 10**9), (2, 10**9), (2, 10**6), (3, 2**20), (5, 10**6)])
@pytest.mark.parametrize("strategy", ["four_d", "fsdp"])
@pytest.mark.parametrize(("precision", "states_bytes"), [("bf16", 12), ("fp32", 8)])
def test_so_it_does_where_gradients_stay(
    strategy: str, precision: str, states_bytes: int, stride: int, size: int
) -> None:
    """Matrices, which decay, and vectors are cut apart: of one sub-group each stride 2 updates the vectors alone.

    In fp32 there is no master weight beside the one that layers compute with: the moments alone pass.
    """
    raw = {
        "model": MODEL | {"biases": True},
        "machine": "polaris",
        "ranks": 1,
        "strategy": strategy,
        "precision": precision,
        "batch": {"sequences": 1, "micro_sequences": 1},
        "offload": {"optimizer": {"sub_group_elements": size, "stride": stride}},
    }
    job = load_job(raw | {"grid": {"data": 1} if strategy == "four_d" else {"weights": 1}})
    own, hidden = job.model.parameters, job.model.hidden
    vectors = job.model.layers * (4 * hidden + 3 * hidden + hidden + 4 * hidden + hidden) + 2 * hidden
    spans = [(0, own - vectors), (own - vectors, own)]
    groups = [g.elements for g in held_groups(job.offload.optimizer, spans) if g.on_device]
    # two buffers of fp32, each with room for weights and moments whether weights pass or not
    assert memory_use(job).by_category["passing states"] == 12 * max(groups) * min(2, len(groups))
    # and what layers compute with comes back from the host, which had the gradients
    found, by_host = moved(job), own - sum(groups)
    assert found["to_device"] == states_bytes * sum(groups) + {"bf16": 2, "fp32": 4}[precision] * by_host
    weights = 0 if precision == "bf16" else 4 * by_host
    assert found["to_host"] == states_bytes * sum(groups) + 4 * by_host + weights
    assert found["host_update"] == (28 + (6 if precision == "bf16" else 0)) * by_host


def test_micro_steps_send_sums_and_only_the_last_widens_them() -> None:
    job = described({"optimizer": {}}, micro_steps=3)
    own, found = job.model.parameters, moved(job)
    assert found["to_host"] == 3 * 2 * own  # sums of each, in two bytes
    assert found["to_device"] == 2 * 2 * own
    assert found["cast_to_host"] == 2 * own


def test_update_on_drives_reads_and_writes_all_states_once() -> None:
    offload = {"optimizer": {"to": "disk", "update": "consumed"}, "parameters": "disk", "activations": "disk"}
    job = described(offload, machine="rtx-4090-ssd", clip_gradients=False)
    own, found = job.model.parameters, moved(job)
    tokens = job.model.sequence
    inputs = 2 * tokens * job.model.hidden * (job.model.layers - 1)
    assert found["disk_read"] == STATES_BYTES * own
    assert found["disk_write"] == (STATES_BYTES + 2) * own  # new weights beside them
    assert found["device_to_disk"] == inputs
    small = found["disk_to_device"] - inputs  # weights twice, but what is never dropped, and the head once
    assert 2 * (2 * own) * 0.75 < small <= 2 * (2 * own)


def test_one_update_takes_what_the_narrowest_part_does() -> None:
    """A rank alone: its gradients, the update at the memory's rate, its weights; nothing beside."""
    plain, job = (described(o, overrides=FREE_HOST) for o in (None, {"optimizer": {}}))
    host, own = job.machine.host, job.model.parameters
    memory = host.memory_bandwidth_bytes_per_second * host.memory_share
    rate = min(memory, 32 / 4 * host.core_bandwidth_bytes_per_second)
    casts = 2 * own / host.converting_down_bytes_per_second + 2 * own / host.converting_up_bytes_per_second
    spans = {op.name: i for i, (op, _) in enumerate(simulate(job).program.ops) if isinstance(op, Wait)}
    timeline = simulate(job).timeline
    update = next(i for name, i in spans.items() if name.endswith("group0/update"))
    waited = float(timeline.end[0, update] - timeline.start[0, update])
    assert waited == pytest.approx(own * UPDATE_BYTES / rate, rel=1e-9)
    assert simulate(job).step_seconds > simulate(plain).step_seconds + casts


def test_ranks_of_a_socket_share_its_memory() -> None:
    """Four ranks update a quarter each in the time of one that updates everything, where memory binds both."""
    four = described({"optimizer": {}}, ranks=4)
    host, own = four.machine.host, -(-four.model.parameters // 4)
    waits = [
        (simulation.timeline.end - simulation.timeline.start)[0, i]
        for simulation in [simulate(four)]
        for i, (op, _) in enumerate(simulation.program.ops)
        if isinstance(op, Wait) and op.name.endswith("group0/update")
    ]
    expected = 4 * own * UPDATE_BYTES / (host.memory_bandwidth_bytes_per_second * host.memory_share)
    assert waits[0] == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("optimizer", [{}, {"stride": 2, "sub_group_elements": 1_000_000}])
def test_updates_of_ranks_without_cores_of_their_own_take_longer(optimizer: dict[str, Any]) -> None:
    """By what DeepSpeed measured (pull request 7474), where several share a node; nothing else changes."""
    unbound = {"optimizer": {**optimizer, "bound_cores": False}}
    bound = {"optimizer": optimizer}
    factor = described(bound).machine.host.unbound_update
    slow, quick = (moved(described(each, ranks=4)) for each in (unbound, bound))
    assert slow.pop("host_update") == pytest.approx(factor * quick.pop("host_update"), abs=1)
    assert slow == quick
    assert moved(described(unbound)) == moved(described(bound))  # a rank alone has the node's cores


def test_a_host_must_say_what_unbound_ranks_cost() -> None:
    unbound = {"optimizer": {"bound_cores": False}}
    with pytest.raises(DescriptionError, match="does not say what that costs"):
        described(unbound, machine="rtx-4090-ssd")
    with pytest.raises(DescriptionError, match="must be at least 1"):
        described(unbound, overrides=("machine.host.unbound_update=0.9",))


def test_casts_are_bound_by_the_thread_not_by_the_memory() -> None:
    host = described({"optimizer": {}}).machine.host
    assert 4 * CAST_TRAFFIC * host.converting_down_bytes_per_second < (
        host.memory_bandwidth_bytes_per_second * host.memory_share
    )


OFFLOADS = st.fixed_dictionaries(
    {
        "optimizer": st.fixed_dictionaries(
            {
                "ratio": st.sampled_from([0.5, 1.0]),
                "sub_group_elements": st.sampled_from([300_000, 2_000_000]),
                "stride": st.sampled_from([None, 2, 3]),
                "overlapped_gradients": st.booleans(),
            }
        ),
        "activations": st.sampled_from([None, "host", "disk"]),
    }
)


@examples(0.4)
@given(OFFLOADS, st.sampled_from([1, 2, 3, 4]), st.sampled_from([1, 2, 3]), st.booleans())
def test_engines_agree(offload: Any, ranks: int, micro_steps: int, straggler: bool) -> None:
    """Folded, in one loop or with several classes, and SimPy on every rank."""
    options = {"stragglers": [{"rank": 0, "slowdown": 1.3}]} if straggler else {}
    job = described(offload, ranks=ranks, machine="rtx-4090-ssd", micro_steps=micro_steps, **options)
    folded, every = simulate(job), simulate(job, engine="des")
    of_rank = folded.partition.rank_class
    np.testing.assert_allclose(folded.timeline.end[of_rank], every.timeline.end, rtol=1e-9, atol=1e-12)


def test_copies_beside_compute_slow_nothing() -> None:
    """Activations that leave and come back in time cost nothing, on a link that is fast enough."""
    overrides = (*FREE_HOST, "machine.host_link.bandwidth=1000 TB/s", "machine.host_link.latency=0 us")
    overrides += ("machine.host.memory_bandwidth=1000000 TB/s",)
    plain, job = (described(o, overrides=overrides) for o in (None, {"activations": "host"}))
    assert simulate(job).step_seconds == pytest.approx(simulate(plain).step_seconds, rel=1e-5)


def test_memory_lies_where_it_is_said_to() -> None:
    """All that AdamW keeps is on the host; the device has weights and what passes through."""
    plain, job = described(None), described({"optimizer": {}})
    device, beyond = memory_use(plain), memory_use(job)
    own = job.model.parameters
    assert beyond.tiers["host"].by_category == {"optimizer": 12.0 * own, "gradients": 6.0 * own}
    assert (
        device.per_rank_bytes - beyond.per_rank_bytes
        == device.by_category["optimizer"] + (device.by_category["gradients"])
    )
    assert "tiers" not in str(device.by_category)
    assert not device.tiers


def test_blocks_that_are_swapped_whole_are_on_the_device_a_few_at_a_time() -> None:
    """Of eight blocks every fourth: of four at once one has all instead of its input. Of all: none is recomputed."""
    model = MODEL | {"layers": 8}
    kept, beyond = [], []
    for recompute, share in ((True, 0.0), (True, 0.25), (True, 1.0), (False, 0.0)):
        job = described({"activations": "host", "swap_share": share}, model=model, recompute=recompute)
        use = memory_use(job)
        kept.append(use.by_category["activations"])
        beyond.append(use.tiers["host"].by_category["activations"])
    inputs = 2 * 256 * 512
    assert beyond[0] == 7 * inputs  # the last block's is wanted at once
    whole = beyond[3] / 7
    assert beyond[1] == pytest.approx(6 * inputs + whole)
    assert kept[1] - kept[0] == pytest.approx(whole - inputs)
    assert (kept[2], beyond[2]) == (kept[3], beyond[3])


@pytest.mark.parametrize("share", [0.25, 0.5, 1.0])
def test_weights_come_for_every_block_whether_it_is_swapped_or_computed_again(share: float) -> None:
    """As many as where all are computed again: a backward pass needs each once."""
    jobs = (
        described({"activations": "host", "swap_share": each}, ranks=4, model=MODEL | {"layers": 8}, recompute=True)
        for each in (0.0, share)
    )
    again, swapped = (moved(job)["all_gather"] for job in jobs)
    assert swapped == again > 0


def test_updates_of_gradients_as_they_come_run_beside_the_backward_pass() -> None:
    """On a host that is quick enough only the last of them are waited for."""
    offload = {"optimizer": {"to": "host", "update": "consumed"}}
    options = {"model": MODEL | {"layers": 32, "sequence": 8192}, "clip_gradients": False, "bucket_elements": 1_000_000}
    job = described(offload, overrides=FREE_HOST, **options)
    figures = report(simulate(job))
    assert 0.0 < figures.exposed_by_axis["cpu"] < 0.2 * figures.communication_by_axis["cpu"]


def test_what_does_not_fit_says_which_tier_is_full() -> None:
    job = described({"optimizer": {}}, overrides=("machine.host.memory=10 MB",))
    use = memory_use(job)
    assert not use.fits
    assert use.full == "host"
    from twin.cost.memory import advice

    assert "more than a node's host has, most of it for optimizer; lay it on disk" in advice(job, use)


@pytest.mark.parametrize(
    ("offload", "options", "message"),
    [
        ({"optimizer": {"stride": 0}}, {}, "offload.optimizer.stride = 0"),
        ({"optimizer": {"ratio": 0}}, {}, "offload.optimizer.ratio = 0"),
        ({"optimizer": {"to": "disk"}}, {}, "does not describe drives of its nodes"),
        ({"optimizer": {"update": "consumed"}}, {}, "is over before the norm of all gradients is known"),
        ({"parameters": "host"}, {}, "give offload.optimizer too"),
        ({"optimizer": {"stride": 2}, "parameters": "host"}, {}, "does not go with a stride"),
        ({"optimizer": {"ratio": 0.5}, "parameters": "host"}, {}, "must be 1 where weights lie beyond"),
        ({"swap_share": 0.3}, {}, "is of jobs with recompute: true and offload.activations"),
        ({"optimizer": {}}, {"machine": "perlmutter"}, "does not describe the host of its nodes"),
        ({"optimizer": {"ratio": 0.5}}, {"flavour": "fsdp2"}, "is of strategy fsdp with flavour: deepspeed"),
        ({"activations": "host"}, {"flavour": "fsdp2", "recompute": False}, "set recompute: true"),
        ({"optimiser": {}}, {}, "offload.optimiser"),
    ],
)
def test_what_makes_no_sense_is_refused(offload: Any, options: Any, message: str) -> None:
    with pytest.raises(DescriptionError, match=message.replace(".", r"\.")):
        described(offload, **options)


def test_sub_groups_cover_everything() -> None:
    offload = OptimizerOffload(stride=3, sub_group_elements=7)
    assert sum(group.elements for group in sub_groups(offload, 100)) == 100


@given(st.none() | st.integers(1, 5), st.integers(1, 4), st.lists(st.integers(0, 9000), max_size=4))
def test_what_each_side_updates_is_what_the_sub_groups_say(stride: int | None, kilos: int, lengths: list[int]) -> None:
    """Brute force: the sub-groups one by one, of which the largest and their sum are counted without them."""
    offload = OptimizerOffload(stride=stride, sub_group_elements=1024 * kilos)
    ends = list(itertools.accumulate(lengths))
    groups = list(held_groups(offload, list(zip([0, *ends], ends, strict=False))))
    device, host = ([g.elements for g in groups if g.on_device is here] for here in (True, False))
    assert updated_on_device(stride, 1024 * kilos, lengths) == (sum(device), max(device, default=0))
    assert updated_by_host(stride, 1024 * kilos, lengths) == (len(host), max(host, default=0))
