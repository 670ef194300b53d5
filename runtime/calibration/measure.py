"""All microbenchmarks within a budget of time; data out, nothing interpreted."""

from __future__ import annotations

import os
import platform
import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import torch

from runtime.calibration.attention import measure_attention
from runtime.calibration.copies import measure_copies
from runtime.calibration.gemms import measure_gemms
from runtime.calibration.groups import measure_groups
from runtime.calibration.host import measure_host
from runtime.calibration.kernels import measure_kernels
from runtime.calibration.messages import measure_messages
from runtime.calibration.overlap import measure_overlap
from runtime.calibration.sharing import measure_sharing
from runtime.calibration.software import measure_software
from runtime.calibration.sustained import measure_sustained
from runtime.calibration.team import Team
from runtime.calibration.tiers import measure_tiers
from runtime.launch.environment import Process
from runtime.parallel.collectives import EXCHANGE_BYTES, EXCHANGES
from runtime.step.products import LEAST_SIZE, LEAST_WORK
from runtime.strategies.four_d.gemm import Gemms
from twin import __version__

SCHEMA = 2
CPU_INFO = Path("/proc/cpuinfo")
Advance = Callable[[str, float], None]
"""Told the section that begins, and which share of the work is done."""


@dataclass(frozen=True)
class Section:
    """One kind of microbenchmark."""

    name: str
    share: float
    """Of the budget."""
    measure: Callable[[Team, float], list[dict[str, Any]]]
    together: bool = False
    """Needs several ranks."""


SECTIONS = (
    Section("gemm", 0.17, measure_gemms),
    Section("sustained", 0.03, measure_sustained),
    Section("sharing", 0.04, measure_sharing),
    Section("kernels", 0.14, measure_kernels),
    Section("copies", 0.02, measure_copies),
    Section("attention", 0.06, measure_attention),
    Section("host", 0.03, measure_host),
    Section("tiers", 0.05, measure_tiers),
    Section("software", 0.06, measure_software),
    Section("point_to_point", 0.04, measure_messages, together=True),
    Section("collectives", 0.29, measure_groups, together=True),
    Section("overlap", 0.07, measure_overlap, together=True),
)


def measure(
    process: Process, device: torch.device, name: str, minutes: float, advance: Advance
) -> dict[str, Any] | None:
    """Measure the machine; the data on rank 0, None on other ranks.

    Every rank must call it; with several ranks torch.distributed's world is there already. Takes about
    `minutes`, somewhat longer if there are many ranks.
    """
    team = Team.meet(process, device)
    data: dict[str, Any] = {"schema": SCHEMA, "name": name, **_facts(team, minutes)}
    done = 0.0
    for section in SECTIONS:
        advance(section.name, done)
        alone = section.together and team.ranks == 1
        data[section.name] = [] if alone else section.measure(team, section.share * minutes * 60)
        done += section.share
    advance("", 1.0)
    return data if team.first else None


def _facts(team: Team, minutes: float) -> dict[str, Any]:
    device = team.device
    on_gpu = device.type == "cuda"
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "minutes": minutes,
        "versions": {
            "fourfold": __version__,
            "torch": torch.__version__,
            "python": platform.python_version(),
            "system": platform.platform(),
        },
        "device": torch.cuda.get_device_name(device) if on_gpu else _cpu_model(),
        "device_type": device.type,
        "device_memory_bytes": torch.cuda.mem_get_info(device)[1] if on_gpu else _memory_bytes(),
        "host_memory_bytes": _memory_bytes(),
        "cpu": _cpu_model(),
        "cores": _cores(),
        "threads": torch.get_num_threads(),
        **_of_products(device),
        "backend": ("nccl" if on_gpu else "gloo") if team.ranks > 1 else None,
        "exchange_bytes": EXCHANGE_BYTES,
        "exchanges": EXCHANGES,
        "ranks": team.ranks,
        "ranks_per_host": team.per_host,
        "hosts": [
            {"rank": r, "host": h, "name": n} for r, (h, n) in enumerate(zip(team.hosts, team.names, strict=True))
        ],
        "clock": {"method": team.clock.method, "uncertainty_ns": team.clock.uncertainty_ns},
    }


def _of_products(device: torch.device) -> dict[str, Any]:
    """Which library multiplies fp32 matrices, and from which size on if small ones stay with PyTorch's."""
    if not Gemms.on(device).products.onednn:
        return {"gemm_library": "pytorch"}
    return {"gemm_library": "onednn", "gemm_least_multiplications": LEAST_WORK, "gemm_least_size": LEAST_SIZE}


def _cores() -> int:
    affinity = getattr(os, "sched_getaffinity", None)
    return len(affinity(0)) if affinity else os.cpu_count() or 1


def _memory_bytes() -> int:
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")


def _cpu_model() -> str:
    try:
        found = re.search(r"model name\s*:\s*(.+)", CPU_INFO.read_text(encoding="utf-8"))
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()
