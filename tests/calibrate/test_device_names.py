"""Names that drivers give devices: taken for what is described, or for nothing."""

from __future__ import annotations

from typing import Any

import pytest

from twin.calibrate.machine import _base_device
from twin.description.calibrated import check_alone
from twin.description.device_names import alike
from twin.description.load import load_device, names
from twin.description.problems import DescriptionError

KNOWN = {
    "NVIDIA H100 80GB HBM3": (85.0e9, "h100-sxm"),
    "NVIDIA H200": (150109880320, "h200"),
    "NVIDIA A100-SXM4-80GB": (85.1e9, "a100-sxm4-80gb"),
    "NVIDIA A100-SXM4-40GB": (42.3e9, "a100-sxm4-40gb"),
    "NVIDIA GH200 480GB": (102e9, "gh200-96gb"),
    "NVIDIA B200": (191e9, "b200"),
    "NVIDIA GB200": (198e9, "gb200"),
    "NVIDIA L40S": (47.7e9, "l40s"),
    "NVIDIA A40": (47.7e9, "a40"),
    "NVIDIA GeForce RTX 4090": (25.3e9, "rtx-4090"),
    "Tesla V100-SXM2-32GB": (34e9, "v100-sxm2-32gb"),
    "Tesla P100-SXM2-16GB": (17e9, "p100-sxm2-16gb"),
    "AMD Instinct MI300X": (206e9, "mi300x"),
    "AMD Instinct MI250X": (68.7e9, "mi250x-gcd"),
    "AMD Instinct MI210": (68.7e9, "mi210"),
}
UNKNOWN = {
    "NVIDIA GeForce RTX 3090": 25.3e9,
    "NVIDIA RTX A5000": 25.3e9,
    "NVIDIA H100 PCIe": 85.0e9,
    "NVIDIA H100 NVL": 100e9,
    "NVIDIA A100-PCIE-40GB": 42.3e9,
    "NVIDIA L40": 47.7e9,
    "NVIDIA GeForce RTX 4090 Laptop GPU": 25.3e9,
    "AMD Instinct MI325X": 274e9,
}


def base(name: str, memory: float) -> Any:
    return _base_device({"device_type": "cuda", "device": name, "device_memory_bytes": memory})


@pytest.mark.parametrize("name", KNOWN)
def test_a_device_is_taken_for_what_it_is(name: str) -> None:
    memory, described = KNOWN[name]
    assert base(name, memory).name == described
    assert alike(described, name)


@pytest.mark.parametrize("name", UNKNOWN)
def test_what_is_not_described_is_not_taken_for_another(name: str) -> None:
    with pytest.raises(DescriptionError, match="is none that is described here"):
        base(name, UNKNOWN[name])


def test_every_gpu_that_is_described_is_among_them() -> None:
    gpus = {name for name in names("devices") if load_device(name).type == "gpu"}
    assert gpus - {described for _, described in KNOWN.values()} <= {"a100-sxm"}  # the same as that of 80 GB


def test_gpus_that_were_measured_together_are_refused() -> None:
    check_alone("cuda", 1)
    check_alone("cpu", 8)
    with pytest.raises(DescriptionError, match="Measure one GPU with one rank"):
        check_alone("cuda", 8)
