"""What `simulate` prints adds up to the step, whatever the time is booked under."""

from __future__ import annotations

import re
from typing import Any

import pytest

from twin.cli import main

CASES: dict[str, list[str]] = {
    "four_d": ["examples/llama-3.1-405b-h100-16384.yaml"],
    "copies to the host": ["examples/llama-3.1-405b-h100-16384.yaml", "--set", "recompute_inputs=host"],
    "fsdp": ["examples/llama-3-8b-fsdp-h100-64.yaml"],
    "hsdp": ["examples/llama-3-8b-fsdp-h100-64.yaml", "--set", "grid={data: 8, weights: 8}"],
    "adapters": ["examples/llama-3.1-70b-lora-h100-16.yaml", "--set", "batch.micro_sequences=4"],
}


@pytest.mark.parametrize("case", CASES)
def test_parts_of_a_step_add_up(case: str, capsys: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["simulate", *CASES[case]])
    assert not ended.value.code
    text = capsys.readouterr().out
    step = float(re.search(r"([\d.]+) s per step", text)[1])  # type: ignore[index]  # it is there, or the test fails
    parts = [float(found) for found in re.findall(r"^  \w.*?([\d.]+) s +[\d.]+ %", text, re.MULTILINE)]
    assert len(parts) >= 3
    assert sum(parts) == pytest.approx(step, abs=0.0006 * len(parts))
