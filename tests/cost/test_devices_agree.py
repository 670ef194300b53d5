"""What the files of devices and machines say of one another: constants that were taken from elsewhere must fit."""

from __future__ import annotations

from itertools import product
from math import inf

import pytest

from twin.cost.gemm import gemm_seconds
from twin.description.load import load_device, load_machine, names
from twin.schedule.kernels import Gemm

GPUS = [name for name in names("devices") if load_device(name).gemm.core is None and load_device(name).type != "cpu"]
UNMEASURED = ("mi210",)
"""Of which nobody measured what large products sustain: the file says their peak."""
LIKE_HOPPER, LIKE_AMPERE = ("gh200-96gb", "h200", "b200", "gb200"), ("l40s", "rtx-4090", "a40")


@pytest.mark.parametrize("name", [name for name in GPUS if name not in UNMEASURED])
def test_the_largest_products_reach_what_they_are_said_to_sustain(name: str) -> None:
    device = load_device(name)
    large = product((8192, 16384, 32768), (8192, 16384), (8192, 32768))
    best = max(2.0 * m * n * k / gemm_seconds(device, Gemm(m, n, k)) for m, n, k in large)
    assert best >= 0.98 * device.gemm.sustained_share * device.peak_flops_per_second


@pytest.mark.parametrize("name", GPUS)
def test_attention_is_not_faster_than_the_products_that_it_is_made_of(name: str) -> None:
    device = load_device(name)
    for kernel, model in device.attention.items():
        fastest = max(float(model.forward_share), float(model.backward_share))
        assert fastest <= 1.1 * device.gemm.sustained_share, kernel


@pytest.mark.parametrize(
    ("name", "like"), [*((n, "h100-sxm") for n in LIKE_HOPPER), *((n, "a100-sxm4-80gb") for n in LIKE_AMPERE)]
)
def test_kernels_of_a_family_are_known_of_all_of_it(name: str, like: str) -> None:
    """Where nothing was measured it keeps the share of the device that others are taken from."""
    own = load_device(name).memory_shares
    of_models = {key for key in load_device(like).memory_shares if "swiglu" in key or "rotary" in key or "norm" in key}
    assert of_models <= set(own)


def test_what_fails_is_told_by_devices() -> None:
    """Nobody but one fleet published by part: others are taken to be alike, whatever a node has of devices."""
    by_device = {}
    for name in names():
        machine = load_machine(name)
        if machine.reliability is not None:
            parts = machine.reliability.node, machine.reliability.job
            by_device[name] = [float(part.between_seconds) * machine.devices_per_node for part in parts]
    least, most = [inf, inf], [0.0, 0.0]
    for found in by_device.values():
        least, most = list(map(min, least, found)), list(map(max, most, found))
    assert len(by_device) > 10
    assert most == pytest.approx(least, rel=0.01), by_device
