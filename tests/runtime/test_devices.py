"""What ranks compute on, with hosts of any number of GPUs made up: there need be none here."""

from __future__ import annotations

import threading

import pytest
import torch
from torch.distributed import HashStore

from runtime.launch import devices
from runtime.launch.board import Board
from runtime.launch.devices import agree_on_type, mixture, place_name
from runtime.launch.disagreement import DisagreementError
from runtime.launch.environment import Process
from runtime.launch.meeting import choose_device
from runtime.records.metrics import is_described
from twin.description.problems import DescriptionError
from twin.strategies import load_job

CPU = torch.device("cpu")


@pytest.fixture
def gpus(monkeypatch):
    """Let this host have so many GPUs."""

    def have(count: int) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: count > 0)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)

    return have


def rank(local: int, of: int, launcher: str = "torchrun") -> Process:
    return Process(rank=local, ranks=of, local_rank=local, local_ranks=of, launcher=launcher)


@pytest.mark.parametrize("wanted", ["auto", "cuda"])
@pytest.mark.parametrize("launcher", ["torchrun", "fourfold", "srun"])
@pytest.mark.parametrize(("count", "ranks"), [(4, 8), (7, 8), (2, 3)])
def test_fewer_gpus_than_ranks_are_an_error(gpus, wanted, launcher, count, ranks):
    gpus(count)
    for local in range(ranks):
        with pytest.raises(DescriptionError, match=f"shows {count} devices to {ranks} ranks") as refused:
            choose_device(wanted, rank(local, ranks, launcher))
        assert f"train.device = '{wanted}'" in str(refused.value)
        assert "train.device: cpu" in str(refused.value)


def test_one_gpu_is_not_shared_by_ranks_unless_srun_shows_each_its_own(gpus):
    gpus(1)
    with pytest.raises(DescriptionError, match="shows 1 device to 2 ranks"):
        choose_device("auto", rank(1, 2))
    assert choose_device("auto", rank(1, 2, "srun")) == torch.device("cuda", 0)
    assert choose_device("auto", Process()) == torch.device("cuda", 0)


@pytest.mark.parametrize("count", [0, 4, 8, 9])
def test_cpus_are_used_where_they_are_wanted_or_all_there_is(gpus, count):
    gpus(count)
    assert choose_device("cpu", rank(5, 8)) == CPU
    if count == 0:
        assert choose_device("auto", rank(5, 8)) == CPU
    elif count >= 8:
        assert choose_device("auto", rank(5, 8)) == torch.device("cuda", 5)


def test_a_host_without_gpus_among_others_is_named_with_its_ranks():
    found = [["cuda", "a"]] * 4 + [["cpu", "b"]] * 2 + [["cpu", "c"]] + [["cuda", "d"]]
    text = mixture(found)
    for needle in ("train.device = 'auto'", "ranks 4, 5 on host b", "rank 6 on host c", "5 others", "leave out"):
        assert needle in text
    assert mixture([["cpu", "a"]] * 3) == mixture([["cuda", "a"]] * 3) == ""
    assert "…" in mixture([["cuda", "a"], *[["cpu", "b"]] * 9])


def test_all_ranks_are_told_before_there_is_any_process_group(monkeypatch):
    """Each rank of two is a thread with its own side of one store."""
    monkeypatch.setattr(devices, "host_name", lambda: "there")
    store, told = HashStore(), {}

    def be(number: int, device: torch.device) -> None:
        try:
            agree_on_type(Board(store, Process(rank=number, ranks=2)), device)
            told[number] = ""
        except DisagreementError as error:
            told[number] = str(error)

    ranks = [threading.Thread(target=be, args=each) for each in ((0, torch.device("cuda", 0)), (1, CPU))]
    for each in ranks:
        each.start()
    for each in ranks:
        each.join(timeout=30)
    assert told[0] == told[1]
    assert "rank 1 on host there" in told[0]
    assert not torch.distributed.is_initialized()


def test_the_start_names_the_device(monkeypatch):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda _: "NVIDIA H100 80GB HBM3")
    assert place_name(CPU, 1) == "1 rank on the CPU"
    assert place_name(CPU, 4) == "4 ranks on CPUs (gloo)"
    assert place_name(torch.device("cuda", 0), 8).startswith("8 ranks on NVIDIA H100 80GB HBM3 (")
    assert place_name(torch.device("cuda", 0), 1) == "1 rank on NVIDIA H100 80GB HBM3"


@pytest.mark.parametrize(
    ("machine", "found", "same"),
    [
        ("dgx-h100", "NVIDIA H100 80GB HBM3", True),
        ("dgx-h100", "NVIDIA H100 PCIe", False),
        ("dgx-h100", "NVIDIA H100 NVL", False),
        ("dgx-h100", "NVIDIA H200", False),
        ("hgx-h200", "NVIDIA H200", True),
        ("dgx-a100", "NVIDIA A100-SXM4-80GB", True),
        ("perlmutter", "NVIDIA A100-SXM4-40GB", True),
        ("frontier", "AMD Instinct MI250X", True),
        ("hgx-mi300x", "AMD Instinct MI300X", True),
        ("4x4090", "NVIDIA GeForce RTX 4090", True),
        ("alps", "NVIDIA GH200 120GB", True),
        ("dgx-b200", "NVIDIA B200", True),
        ("gb200-nvl72", "NVIDIA B200", False),
        ("l40s-8", "NVIDIA L40S", True),
    ],
)
def test_a_device_is_known_by_the_name_that_its_driver_gives(machine: str, found: str, same: bool) -> None:
    """Else utilisation would be against the peak of another."""
    job = load_job(
        {
            "model": {"layers": 1, "hidden": 64, "heads": 4, "sequence": 16, "vocabulary": 64},
            "machine": machine,
            "ranks": 1,
            "grid": {"data": 1},
            "batch": {"sequences": 1, "micro_sequences": 1},
        }
    )
    assert is_described(job, found) is same
