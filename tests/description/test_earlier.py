"""Devices as earlier versions wrote them are read as what they were."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from twin.cost.gemm import gemm_seconds
from twin.cost.kernels import kernel_seconds
from twin.description.device import Device
from twin.description.earlier import device_of_today
from twin.schedule.kernels import Attention, Gemm

WRITTEN = Path(__file__).with_name("earlier_device.json")
"""The device in the manifest of a run of 2026-11-20: a GCD of Frontier."""
EARLIER: dict[str, Any] = json.loads(WRITTEN.read_text(encoding="utf-8"))


def value(raw: Any) -> float:
    return float(raw["value"] if isinstance(raw, dict) else raw)


def test_the_device_is_of_an_earlier_version():
    assert "sustained" in EARLIER["gemm"]
    assert "forward_share" in EARLIER["attention"]


def test_rates_are_the_same_numbers():
    device = Device.model_validate(EARLIER)
    peak, units = value(EARLIER["peak"]), value(EARLIER["gemm"]["units"])
    assert device.gemm.sustained_share * peak == pytest.approx(min(value(EARLIER["gemm"]["sustained"]), peak))
    assert device.gemm.feed_bytes_per_flop * peak / units == pytest.approx(value(EARLIER["gemm"]["feed"]))
    assert device.gemm.write_bytes_per_flop * peak / units == pytest.approx(value(EARLIER["gemm"]["write"]))
    assert device.gemm.sustained_share.source == EARLIER["gemm"]["sustained"]["source"]
    assert gemm_seconds(device, Gemm(4096, 4096, 4096)) > 2 * 4096**3 / peak


@pytest.mark.parametrize("size", [64, 128])
@pytest.mark.parametrize("backward", [False, True])
def test_attention_takes_what_it_took(size, backward):
    """Long sequences, 16 bits: share · d/(d + half) of the peak, two blocks of columns lost for one of rows."""
    device, raw = Device.model_validate(EARLIER), EARLIER["attention"]
    attention = Attention(64, 4096, 64, size, backward=backward)
    share = value(raw["backward_share" if backward else "forward_share"]) * size / (size + value(raw["half_head_size"]))
    unmasked = (1 + 2 * value(raw["block_rows"]) / 4096) / 2
    computed = attention.flops * (1.25 if backward else 1.0) * unmasked
    expected = computed / (share * value(EARLIER["peak"])) + attention.kernels * device.kernel_latency_seconds
    assert kernel_seconds(device, attention) == pytest.approx(expected, rel=1e-6)


def test_what_is_of_today_is_left_as_it_is():
    today = Device.model_validate(EARLIER).model_dump(by_alias=True)
    before = copy.deepcopy(today)
    assert device_of_today(today) == before == today


def test_nonsense_is_refused():
    broken = copy.deepcopy(EARLIER)
    broken["gemm"]["units"] = {"value": 0, "kind": "assumed", "source": "x"}
    with pytest.raises(ValueError, match="units: 0 must be more than 0"):
        Device.model_validate(broken)
