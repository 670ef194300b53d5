"""Energy of a run where a counter can be read: of GPUs by NVML or AMD SMI, of processors by RAPL.

Counters are preferred to sampled watts, which on some devices cover a quarter of the time (arXiv 2312.02741). A counter
that is missing, forbidden, or does not move is unknown, with its reason: it is never 0. Every rank reads its own
device; of processors the first rank of each host reads all packages, with whatever else runs there.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch

POWERCAP = Path("/sys/class/powercap")
MICRO, MILLI = 1e-6, 1e-3
Boundary = Literal["device", "packages"]


@dataclass(frozen=True)
class Counter:
    """Something that counts joules."""

    name: str
    boundary: Boundary
    joules: Callable[[], float]
    """Since some moment; raises OSError or RuntimeError if it cannot be read any more."""
    wraps_at: float | None = None
    """Joules after which it begins again."""


@dataclass(frozen=True)
class Reading:
    """What a rank's counter says of a while; `joules` is None, with the reason, where it says nothing."""

    joules: float | None
    seconds: float
    counter: str = ""
    boundary: Boundary | None = None
    reason: str = ""


class UnreadableError(RuntimeError):
    """Why there is no counter."""


@dataclass
class Meter:
    """One rank's counter between two moments."""

    counters: Sequence[Counter] = ()
    reason: str = ""
    _since: float = 0.0
    _before: list[float] = field(default_factory=list)
    _failed: str = ""

    @classmethod
    def of(cls, device: torch.device, local_rank: int) -> Meter:
        """Find the counter of a rank's device."""
        try:
            if device.type == "cuda":
                return cls([_amd(device)] if torch.version.hip else [_nvidia(device)])
            if local_rank:
                return cls((), "the host's first rank counts for all of its ranks")
            return cls(packages())
        except UnreadableError as error:
            return cls((), str(error))

    def start(self) -> None:
        """Begin a while."""
        self._since, self._failed = time.monotonic(), ""
        try:
            self._before = [counter.joules() for counter in self.counters]
        except (OSError, RuntimeError, ValueError) as error:
            self._failed = f"{self.counters[0].name} could not be read: {error}"

    def stop(self) -> Reading:
        """End it."""
        seconds = time.monotonic() - self._since
        if self._failed or not self.counters:
            return Reading(None, seconds, reason=self._failed or self.reason)
        first = self.counters[0]
        try:
            used = sum(_moved(c, before, c.joules()) for c, before in zip(self.counters, self._before, strict=True))
        except (OSError, RuntimeError, ValueError) as error:
            return Reading(None, seconds, reason=f"{first.name} could not be read: {error}")
        if used <= 0.0:
            reason = f"{first.name} does not move; the second die of a package may have none"
            return Reading(None, seconds, reason=reason)
        return Reading(used, seconds, first.name, first.boundary)


def _moved(counter: Counter, before: float, after: float) -> float:
    if after < before and counter.wraps_at is not None:
        return after + counter.wraps_at - before
    return after - before


def packages(root: Path = POWERCAP) -> list[Counter]:
    """Return RAPL's counters of all packages of this host; raises UnreadableError with the reason."""
    zones = sorted(path for path in root.glob("*-rapl:*") if path.name.count(":") == 1)
    if not zones:
        raise UnreadableError(f"no counter of processors below {root}")
    found = []
    for zone in zones:
        path = zone / "energy_uj"
        try:
            path.read_text(encoding="ascii")
            wraps = float((zone / "max_energy_range_uj").read_text(encoding="ascii")) * MICRO
        except PermissionError:
            remedy = "only root may; ask for read permission to it"
            raise UnreadableError(f"{path} may not be read: {remedy}") from None
        except (OSError, ValueError) as error:
            raise UnreadableError(f"{path} cannot be read: {error}") from None
        found.append(Counter("RAPL", "packages", partial(_micro_joules, path), wraps))
    return found


def _micro_joules(path: Path) -> float:
    return float(path.read_text(encoding="ascii")) * MICRO


def _nvidia(device: torch.device) -> Counter:
    """Return NVML's counter of a device, found by its identity: indices follow CUDA_VISIBLE_DEVICES."""
    nvml = _module("pynvml", "nvidia-ml-py")
    try:
        nvml.nvmlInit()
        uuid = f"GPU-{torch.cuda.get_device_properties(device).uuid}"
        handle = nvml.nvmlDeviceGetHandleByUUID(uuid)
        nvml.nvmlDeviceGetTotalEnergyConsumption(handle)
    except nvml.NVMLError as error:
        raise UnreadableError(f"NVML gives no energy of this device: {error}") from None

    def joules() -> float:
        try:
            return float(nvml.nvmlDeviceGetTotalEnergyConsumption(handle)) * MILLI
        except nvml.NVMLError as error:
            raise RuntimeError(str(error)) from None

    return Counter("NVML", "device", joules)


def _amd(device: torch.device) -> Counter:
    """Return AMD SMI's counter of a device, found by its place on the bus."""
    smi = _module("amdsmi", "amdsmi of ROCm")
    try:
        smi.amdsmi_init()
        properties: Any = torch.cuda.get_device_properties(device)  # ROCm's have more than PyTorch's hints
        place = f"{properties.pci_domain_id:04x}:{properties.pci_bus_id:02x}:{properties.pci_device_id:02x}.0"
        handle = smi.amdsmi_get_processor_handle_from_bdf(place)
        smi.amdsmi_get_energy_count(handle)
    except smi.AmdSmiException as error:
        raise UnreadableError(f"AMD SMI gives no energy of this device: {error}") from None

    def joules() -> float:
        try:
            found = smi.amdsmi_get_energy_count(handle)
        except smi.AmdSmiException as error:
            raise RuntimeError(str(error)) from None
        return float(found["energy_accumulator"] * found["counter_resolution"]) * MICRO

    return Counter("AMD SMI", "device", joules)


def _module(name: str, package: str) -> Any:
    try:
        return importlib.import_module(name)
    except (ImportError, OSError) as error:
        raise UnreadableError(f"{package} is not installed ({error}); install fourfold[energy]") from None


def together(readings: Sequence[Reading], steps: int, tokens: int) -> dict[str, Any]:
    """Sum what all ranks read, in rank order; None with the reasons where a part of the job is unknown.

    Devices are known if every rank read its own; packages if the first rank of every host did.
    """
    known = [reading for reading in readings if reading.joules is not None]
    boundary = known[0].boundary if known else None
    silent = [r.reason for r in readings if r.joules is None and not r.reason.startswith("the host's first rank")]
    whole = bool(known) and not silent
    joules = sum(reading.joules or 0.0 for reading in known) if whole else None
    return {
        "joules": joules,
        "boundary": boundary if whole else None,
        "counter": known[0].counter if whole else None,
        "seconds": max(reading.seconds for reading in readings),
        "steps": steps,
        "joules_per_step": None if joules is None or not steps else joules / steps,
        "joules_per_token": None if joules is None or not tokens else joules / tokens,
        "reasons": list(dict.fromkeys(silent)),
        "ranks": [asdict(reading) for reading in readings],
    }
