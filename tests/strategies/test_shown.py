"""What `simulate` prints adds up to the step, whatever the time is booked under."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, cast

import pytest

from twin.cli import main
from twin.strategies import load_job
from twin.strategies.megatron.job import MegatronJob
from twin.strategies.megatron.options import Options

CASES: dict[str, list[str]] = {
    "four_d": ["examples/llama-3.1-405b-h100-16384.yaml"],
    "copies to the host": ["examples/llama-3.1-405b-h100-16384.yaml", "--set", "recompute_inputs=host"],
    "fsdp": ["examples/llama-3-8b-fsdp-h100-64.yaml"],
    "hsdp": ["examples/llama-3-8b-fsdp-h100-64.yaml", "--set", "grid={data: 8, weights: 8}"],
    "adapters": ["examples/llama-3.1-70b-lora-h100-16.yaml", "--set", "batch.micro_sequences=4"],
}


TINY = """
model: {layers: 4, hidden: 64, heads: 4, sequence: 64, vocabulary: 256}
machine: laptop
ranks: 2
strategy: megatron
flavour: torch
grid: auto
batch: {sequences: 4}
"""


def test_little_is_not_shown_as_nothing(tmp_path: Path, capsys: Any) -> None:
    """A step that is all latency keeps devices busy for less than 0.05 %; one on a laptop trains a token a second."""
    small, slow = tmp_path / "small.yaml", tmp_path / "slow.yaml"
    small.write_text(
        "model: {layers: 2, hidden: 64, heads: 4, sequence: 64, vocabulary: 512}\nmachine: dgx-h100\nranks: 8\n"
        "grid: {data: 8}\nbatch: {sequences: 8, micro_sequences: 1}\n"
    )
    slow.write_text("model: gpt-5b\nmachine: laptop\nranks: 1\ngrid: {}\nbatch: {sequences: 1}\nprecision: fp32\n")
    for path, more in ((small, []), (slow, ["--set", "batch.micro_sequences=1"])):
        told = {}
        for how in ([], ["--json"]):
            with pytest.raises(SystemExit) as ended:
                main(["simulate", str(path), *more, *how])
            assert not ended.value.code
            told[bool(how)] = capsys.readouterr().out
        figures = json.loads(told[True])
        shown = [float(share) for share in re.findall(r"([\d.]+) % (?:of the|without)", told[False])]
        assert shown == pytest.approx([figures["hardware_percent_of_peak"], figures["model_percent_of_peak"]], rel=0.05)
        tokens = re.findall(r"([\d.,]+) tokens/s", told[False])[0].replace(",", "")
        assert float(tokens) == pytest.approx(figures["tokens_per_second"], rel=0.05)


@pytest.mark.full
def test_words_are_of_the_grid_and_sizes_have_digits(tmp_path: Path, capsys: Any) -> None:
    """Of a job whose ranks divide weights nothing is said of replicas, nor of rings where there are none."""
    job = tmp_path / "job.yaml"
    job.write_text(TINY)
    search, said = ["search", "--workers", "1"], []
    for arguments in (["simulate"], [*search, "--strategy", "fsdp,megatron"], [*search, "--over", "all"]):
        with pytest.raises(SystemExit) as ended:
            main([*arguments, str(job)])
        assert not ended.value.code
        said.append(capsys.readouterr().out)
    simulated, across, searched = said
    assert "published" not in simulated + searched
    for text in (across, searched):
        assert not re.search(r"replicas|\b0\.0 GB", text)
        assert "MB" in text
    rows = re.split(r"\n(?= *\d+  \d ×)", searched)
    assert len(rows) > 5
    for line in rows:  # of several lines where options are long
        if found := re.match(r" *\d+  (\d) × (\d) × (\d) × (\d) +(.*)", line):
            pipeline, _, context, _ = (int(found[n]) > 1 for n in range(1, 5))
            assert context or "ring" not in line
            assert pipeline == bool(re.search("1f1b|zb|interleaved", line)), line
    torch = Options.of(cast("MegatronJob", load_job(job, ["grid={data: 2}"])))
    assert "weights sharded" in torch.words_on(load_job(job, ["grid={data: 2}"]).concrete_grid).values()
    assert Options.read(torch.as_json()) == torch


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
