"""Ranks whose events are written where nobody has chosen any: as many as a table holds, from the first to the last."""

from __future__ import annotations

import json
from itertools import pairwise

import pytest
import yaml

from tests.strategies.pipelined import described
from twin.cli import main
from twin.description.problems import DescriptionError
from twin.engine import events
from twin.engine.runs import default_ranks, write_run
from twin.engine.simulate import simulate

STAGES = 8


@pytest.fixture(scope="module")
def simulation():
    return simulate(
        described(
            {"pipeline": STAGES},
            micro_steps=12,
            model={"layers": STAGES, "hidden": 256, "heads": 8, "sequence": 256, "vocabulary": 1024},
        )
    )


@pytest.mark.parametrize("left_out", range(1, STAGES - 1))
def test_as_many_as_fit_spread_evenly(simulation, monkeypatch, left_out) -> None:
    representatives = simulation.partition.representatives.tolist()
    every = events.event_table(simulation, representatives).num_rows
    assert default_ranks(simulation) == representatives
    monkeypatch.setattr(events, "MAX_EVENTS", every * (STAGES - left_out) // STAGES)
    chosen = default_ranks(simulation)
    assert {chosen[0], chosen[-1]} == {representatives[0], representatives[-1]} or len(chosen) == 1
    assert len(set(chosen)) == len(chosen) < STAGES
    assert events.event_table(simulation, chosen).num_rows <= events.MAX_EVENTS
    gaps = [after - before for before, after in pairwise(chosen)]
    assert not gaps or max(gaps) - min(gaps) <= simulation.job.ranks // STAGES


def test_too_many_that_were_asked_for_are_refused(simulation, monkeypatch, tmp_path) -> None:
    monkeypatch.setattr(events, "MAX_EVENTS", 100)
    with pytest.raises(DescriptionError, match=r"2 ranks have \d+ events, a table holds 100; choose fewer"):
        write_run(tmp_path / "run", simulation, {}, [0, 1], overwrite=False)
    assert not (tmp_path / "run").exists()


def test_the_command_says_what_it_left_out(monkeypatch, tmp_path, capsys) -> None:
    model = {"layers": STAGES, "hidden": 256, "heads": 8, "sequence": 256, "vocabulary": 1024}
    raw = {
        "strategy": "megatron",
        "model": model,
        "machine": "perlmutter",
        "ranks": STAGES,
        "grid": {"pipeline": STAGES},
        "batch": {"sequences": 12, "micro_sequences": 1},
    }
    (tmp_path / "job.yaml").write_text(yaml.safe_dump(raw), encoding="utf-8")
    run, trace = tmp_path / "run", tmp_path / "trace.json"
    asked = ["simulate", str(tmp_path / "job.yaml"), "--out", str(run), "--chrome", str(trace), "--force"]
    for most, said in ((events.MAX_EVENTS, False), (2500, True)):
        monkeypatch.setattr(events, "MAX_EVENTS", most)
        with pytest.raises(SystemExit) as ended:
            main(asked)
        assert not ended.value.code
        out = capsys.readouterr().out
        written = json.loads((run / "manifest.json").read_text(encoding="utf-8"))["ranks_written"]
        assert (len(written) < STAGES) == said
        assert (f"Events of {len(written)} of {STAGES} classes written" in out) == said
