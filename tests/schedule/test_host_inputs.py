"""Inputs of recomputed blocks in the host's memory: what is copied, how long it takes, what it saves."""

from __future__ import annotations

import pytest

from twin.description.problems import DescriptionError
from twin.engine.simulate import simulate
from twin.schedule.ops import Start
from twin.strategies.four_d.memory import memory_by_category
from twin.strategies.jobs import generated

FREE_HOST = ("machine.device.host=0 us", "machine.device.collective_host=0 us")


@pytest.mark.parametrize("grid", [{"data": 8}, {"z": 4, "x": 2}])
def test_every_block_s_input_goes_and_comes_back(make_job, grid) -> None:
    """m · h / G_x numbers of two bytes for every block and micro-step, once each way."""
    job = make_job(grid, machine="perlmutter", recompute_inputs="host")
    size = 2.0 * job.model.sequence * job.model.hidden / job.concrete_grid.x
    copies = [op for op, _ in generated(job).flat() if isinstance(op, Start) and op.communicator == "host"]
    expected = job.model.layers * job.micro_steps
    assert [c.bytes for c in copies] == [size] * 2 * expected
    assert [c.kind for c in copies].count("to_host") == expected


def test_the_device_waits_for_both_copies(make_job) -> None:
    """Without other collectives and with a host that needs no time, a step is longer by bytes over the rate."""
    job, other = (
        make_job({"data": 1}, machine="perlmutter", recompute_inputs=where, overrides=FREE_HOST)
        for where in ("device", "host")
    )
    device, host = simulate(job), simulate(other)
    size = 2.0 * job.model.sequence * job.model.hidden
    seconds = 2 * job.model.layers * job.micro_steps * size / 25e9
    assert host.step_seconds - device.step_seconds == pytest.approx(seconds, rel=1e-9)


def test_one_input_stays_on_the_device(make_job) -> None:
    on_device, on_host = (
        memory_by_category(make_job({"data": 8}, machine="perlmutter", recompute_inputs=where))
        for where in ("device", "host")
    )
    job = make_job({"data": 8}, machine="perlmutter")
    size = 2.0 * job.model.sequence * job.model.hidden
    assert on_device["activations"] - on_host["activations"] == (job.model.layers - 1) * size


@pytest.mark.parametrize(
    ("machine", "others", "reason"),
    [
        ("perlmutter", {"recompute": False}, "is for recomputation"),
        ("laptop", {}, "is a CPU, whose memory is the host's"),
        ({"extends": "perlmutter", "reliability": None}, {}, "does not say how fast copies to the host are"),
    ],
)
def test_where_it_means_nothing_it_is_refused(make_job, machine, others, reason) -> None:
    with pytest.raises(DescriptionError, match=rf"recompute_inputs = 'host': .*{reason}"):
        make_job({"x": 2}, machine, recompute_inputs="host", **others)
