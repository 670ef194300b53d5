"""Energy of a run: counted where a counter can be read, unknown with its reason elsewhere, never 0."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from runtime.tracing import energy
from runtime.tracing.energy import Counter, Meter, Reading, UnreadableError, packages, together
from tests.runtime import runs
from twin.compare.energy import energy_of
from twin.compare.page import power_facts

CPU = torch.device("cpu")


def zone(root: Path, name: str, microjoules: int, wraps: int = 10_000_000) -> Path:
    folder = root / name
    folder.mkdir()
    (folder / "energy_uj").write_text(f"{microjoules}\n", encoding="ascii")
    (folder / "max_energy_range_uj").write_text(f"{wraps}\n", encoding="ascii")
    return folder / "energy_uj"


def test_packages_are_summed_and_their_parts_are_not(tmp_path) -> None:
    first, second = zone(tmp_path, "intel-rapl:0", 1_000_000), zone(tmp_path, "intel-rapl:1", 2_000_000)
    zone(tmp_path, "intel-rapl:0:0", 999)
    meter = Meter(packages(tmp_path))
    meter.start()
    first.write_text("4000000", encoding="ascii")
    second.write_text("2500000", encoding="ascii")
    reading = meter.stop()
    assert reading.joules == pytest.approx(3.5)
    assert (reading.counter, reading.boundary) == ("RAPL", "packages")


def test_a_counter_that_begins_again_is_followed(tmp_path) -> None:
    path = zone(tmp_path, "intel-rapl:0", 9_000_000)
    meter = Meter(packages(tmp_path))
    meter.start()
    path.write_text("500000", encoding="ascii")
    assert meter.stop().joules == pytest.approx(1.5)


def test_no_counter_is_unknown_and_says_so(tmp_path) -> None:
    with pytest.raises(UnreadableError, match="no counter of processors"):
        packages(tmp_path / "none")
    reading = Meter(reason="there is none").stop()
    assert reading.joules is None
    assert reading.reason == "there is none"


def test_a_forbidden_counter_is_unknown_and_says_what_to_ask_for(tmp_path, monkeypatch) -> None:
    zone(tmp_path, "intel-rapl:0", 1)

    def forbidden(*_args, **_kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "read_text", forbidden)
    with pytest.raises(UnreadableError, match="only root may; ask for read permission"):
        packages(tmp_path)


def test_a_counter_that_does_not_move_is_not_nothing() -> None:
    meter = Meter([Counter("AMD SMI", "device", lambda: 5.0)])
    meter.start()
    reading = meter.stop()
    assert reading.joules is None
    assert "does not move" in reading.reason


def test_a_counter_that_fails_on_the_way_is_unknown() -> None:
    readings = iter([1.0])

    def joules() -> float:
        try:
            return next(readings)
        except StopIteration:
            raise RuntimeError("lost") from None

    meter = Meter([Counter("NVML", "device", joules)])
    meter.start()
    assert meter.stop() == Reading(None, pytest.approx(0.0, abs=5.0), reason="NVML could not be read: lost")


def test_only_the_first_rank_of_a_host_counts_its_packages(tmp_path, monkeypatch) -> None:
    zone(tmp_path, "intel-rapl:0", 1)
    monkeypatch.setattr(energy, "packages", lambda: packages(tmp_path))
    assert Meter.of(CPU, 0).counters
    assert not Meter.of(CPU, 1).counters


def test_a_job_is_known_if_all_its_parts_are() -> None:
    one = Reading(10.0, 2.0, "NVML", "device")
    whole = together([one, one], 4, 80)
    assert (whole["joules"], whole["joules_per_step"], whole["joules_per_token"]) == (20.0, 5.0, 0.25)
    partly = together([one, Reading(None, 2.0, reason="not installed")], 4, 80)
    assert partly["joules"] is None
    assert partly["reasons"] == ["not installed"]
    hosts = together([Reading(7.0, 1.0, "RAPL", "packages"), Meter.of(CPU, 1).stop()], 1, 1)
    assert hosts["joules"] == 7.0


def test_a_library_that_is_missing_names_the_extra() -> None:
    with pytest.raises(UnreadableError, match=r"install fourfold\[energy\]"):
        energy._module("no_such_library_of_fourfold", "it")


def test_a_comparison_takes_what_devices_counted_and_nothing_else() -> None:
    predicted = {"figures": {"energy_joules": 110.0}}
    measured = {"energy": {"boundary": "device", "joules_per_step": 100.0, "counter": "NVML"}}
    found = energy_of(predicted, measured)
    assert found is not None
    assert found.error == pytest.approx(0.1)
    assert energy_of(predicted, {"energy": {"boundary": "packages", "joules_per_step": 100.0}}) is None
    assert energy_of(predicted, {}) is None
    for strange in (0, -1, float("nan"), "1e9", True, None, 1e300, 10**400):
        assert energy_of(predicted, {"energy": {"boundary": "device", "joules_per_step": strange}}) is None


def test_a_comparison_has_mean_watts_over_what_the_counter_covers() -> None:
    counted = {"boundary": "device", "joules_per_step": 100.0, "counter": "NVML", "seconds": 1.0, "steps": 4}
    found = energy_of({"figures": {"energy_joules": 110.0, "step_seconds": 0.22}}, {"energy": counted})
    assert found is not None
    assert found.measured_seconds == 0.25
    assert (found.predicted_watts, found.measured_watts) == (pytest.approx(500.0), pytest.approx(400.0))
    assert found.error_of_watts == pytest.approx(0.25)
    facts = dict(power_facts(found))
    assert facts["mean power, devices"] == "500 W predicted, 400 W measured (+25.0%)"
    assert facts["measured energy covers"] == "250 ms a step, pauses between traced steps included"
    for strange in (0, -1, "4", None):
        silent = energy_of({"figures": {"energy_joules": 110.0}}, {"energy": counted | {"steps": strange}})
        assert silent is not None
        assert (silent.measured_watts, silent.error_of_watts, power_facts(silent)) == (None, None, [])


@pytest.mark.process
def test_training_says_what_it_took_or_why_it_is_not_known(undisturbed) -> None:
    whole = undisturbed(12)
    used = json.loads((whole.out / "energy.json").read_text(encoding="utf-8"))
    assert used["steps"] == 12
    assert (used["joules"] is None) == bool(used["reasons"])
    assert used["joules"] is None or used["joules"] > 0.0
    assert len(used["ranks"]) == runs.SMALL["ranks"]
