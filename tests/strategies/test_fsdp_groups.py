"""Who gathers weights and who reduces their gradients: one communicator or two, and what that does to a step."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from tests.strategies.test_fsdp import MODEL, ZERO, described, moved, ops
from twin.engine.events import event_table
from twin.engine.report import report
from twin.engine.simulate import simulate
from twin.schedule.ops import Compute


def in_flight(job: Any) -> list[tuple[int, int]]:
    """When the collectives of rank 0's weights run, in order, nanoseconds."""
    events = event_table(simulate(job), [0]).to_pylist()
    found = [e for e in events if e["kind"] == "collective" and e["axis"] == "weights"]
    return sorted((e["start_ns"], e["end_ns"]) for e in found)


@pytest.mark.parametrize("flavour", ["fsdp2", "fsdp1", "deepspeed"])
@pytest.mark.parametrize("machine", ["dgx-h100", {"extends": "polaris", "library": "nccl-tcp"}])
def test_one_communicator_runs_one_collective_at_a_time(flavour: str, machine: Any) -> None:
    """Gathers and reductions of one group queue; reductions with a group of their own run beside gathers."""
    wide = {**MODEL, "layers": 6, "hidden": 2048, "sequence": 1024}
    options = {"bucket_elements": 10_000_000, "prefetch_elements": 1_000_000} if flavour == "deepspeed" else {}
    alone, beside = (
        described({"weights": 16}, wide, flavour=flavour, machine=machine, separate_reduction_group=own, **options)
        for own in (False, True)
    )
    assert all(end <= begin for (_, end), (begin, _) in pairwise(in_flight(alone)))
    assert any(end > begin for (_, end), (begin, _) in pairwise(in_flight(beside)))
    assert sum(moved(alone).values()) == sum(moved(beside).values())
    assert simulate(alone).step_seconds >= simulate(beside).step_seconds


@pytest.mark.parametrize(("flavour", "separate"), [("fsdp2", True), ("fsdp1", False), ("deepspeed", False)])
def test_what_a_flavour_does_by_itself(flavour: str, separate: bool) -> None:
    """PyTorch issue 65299: one process group runs a single NCCL stream; this runtime has two groups."""
    stated = described({"weights": 16}, flavour=flavour, separate_reduction_group=separate)
    assert ops(described({"weights": 16}, flavour=flavour)) == ops(stated)


def test_queueing_behind_own_collectives_is_no_wait_for_others() -> None:
    """All ranks come at once, wherever a group's collectives queue."""
    alike = {"variation": {"device_speed_spread": 0, "compute_jitter": 0}}
    job = described({"weights": 16}, flavour="fsdp1", machine={"extends": "polaris", "library": "nccl-tcp", **alike})
    found = report(simulate(job))
    assert found.exposed_by_axis["weights"] > 0.1 * found.step_seconds
    assert sum(found.peers_by_axis.values()) == pytest.approx(0.0, abs=1e-9)


GROUPS = {
    "hybrid": ({"data": 2, "weights": 8}, {"weights"}),
    "three levels": ({"gradients": 2, "weights": 8}, {"weights", "gradients_scatter"}),
    "two copies": ({"weights": 16}, {"weights", "weights_secondary"}),
    "gradients alone": ({"gradients": 16}, {"gradients_scatter"}),
}


@pytest.mark.parametrize("name", sorted(GROUPS))
def test_one_communicator_is_of_the_ranks_that_share_weights(name: str) -> None:
    """Where gradients are cut over more ranks than weights they keep a communicator of their own."""
    grid, expected = GROUPS[name]
    options = {"secondary": 8} if name == "two copies" else {}
    kinds = {("all_gather", "weights"), ("reduce_scatter", "weights")}
    found = moved(described(grid, flavour="deepspeed", all_reduce_buckets=False, **options))
    assert {c for _, c in found if c.startswith("weights") or c.endswith("_scatter")} == expected
    assert (kinds <= set(found)) == (name in ("hybrid", "two copies"))


@pytest.mark.parametrize("grid", [{"weights": 16}, {"data": 2, "weights": 8}])
def test_one_communicator_is_the_same_folded_and_not(grid: dict[str, int]) -> None:
    machine = {"extends": "polaris", "library": "nccl-tcp"}
    job = described(grid, flavour="fsdp1", machine=machine)
    folded, des = simulate(job), simulate(job, engine="des")
    assert folded.step_seconds == pytest.approx(des.step_seconds, rel=1e-9)


@pytest.mark.parametrize("flavour", ["fsdp2", "fsdp1"])
@pytest.mark.parametrize("reduced", ["compute", "fp32"])
def test_gradients_that_are_kept_whole_are_added_up_before_they_leave(flavour: str, reduced: str) -> None:
    """`no_sync`: each of the later micro-steps reads what is there and what it adds, of every element."""
    options: dict[str, Any] = {"flavour": flavour, "reduce_precision": reduced, "recompute": False}
    job, alone = (described(ZERO[3], micro_steps=steps, accumulate="whole", **options) for steps in (3, 1))
    found, of_one = (
        [(name, op.kernel.bytes) for name, op in ops(each) if isinstance(op, Compute) and name.endswith("accumulate")]
        for each in (job, alone)
    )
    # FSDP2 widens what it keeps, FSDP1 leaves it to autograd, in the weights' type
    wide, elements = 4 if (flavour, reduced) == ("fsdp2", "fp32") else 2, job.model.parameters
    by_step = [
        sum(size for name, size in found if name.startswith(f"micro{n}/") and "/bucket" not in name) for n in range(3)
    ]
    assert by_step == [elements * (2 + wide), elements * (2 + 2 * wide), elements * (2 + 2 * wide)]
    # what arrives is the only sum that the rank has: written, not added to
    assert [size for name, size in found if "/bucket" in name] == [size for _, size in of_one]
    packed = {
        n: sum(
            op.kernel.bytes
            for name, op in ops(each)
            if isinstance(op, Compute) and "/bucket" in name and name.endswith("/pack")
        )
        for n, each in ((3, job), (1, alone))
    }
    assert packed[3] - packed[1] == elements * (wide - 2)
