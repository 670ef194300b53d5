"""Prediction against reality: calibrate with microbenchmarks, predict every grid and strategy, then run it.

    python -m tests.testbed.validate [--out DIR] [--scenarios base,…] [--machine FILE | --each] [--loopback]

1. `fourfold calibrate` on the hosts of the test bed: the machine file.
2. Every job of every scenario is simulated, and `predictions.json` written.
3. Only then the jobs run for real, 8 ranks on 4 hosts of 2 (with --loopback: 4 on this one).
4. `report.json` and `report.md`: errors, ranking, cost of tracing.

Nothing that step 3 measures reaches step 2; --machine takes an earlier calibration instead of step 1. With --each the
first three are done for one scenario after the other: cores that others share soon are not what they were measured as.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.testbed import ahead, beyond
from tests.testbed.launch import run_ranks
from tests.testbed.network import Hosts, hosts, reason_missing
from tests.testbed.report import write_report
from tests.testbed.scenarios import RATE, SCENARIOS, Scenario
from tests.testbed.strategies import STRATEGIES, StrategyScenario
from twin.engine.report import as_json, report
from twin.engine.runs import write_run
from twin.engine.simulate import simulate
from twin.strategies import load_job

HOSTS, PER_HOST, LOOPBACK_RANKS = 4, 2, 4
ALL = (*SCENARIOS, *STRATEGIES, *beyond.SCENARIOS, ahead.SCENARIO)
WARMUP, TIMED, TRACED = 2, 4, 4
MINUTES = 2.5
NICENESS = -15
LIMIT_SECONDS = 3000.0


@contextmanager
def testbed(rate: float, *, loopback: bool) -> Iterator[Hosts | None]:
    """Hosts with links of this rate, or this machine alone."""
    if loopback:
        yield None
        return
    with hosts(HOSTS, rate) as made:
        yield made


def calibrate(out: Path, *, loopback: bool) -> Path:
    """Measure the machine; returns its file."""
    name = "loopback" if loopback else "testbed"
    command = [
        sys.executable,
        "-m",
        "twin",
        "calibrate",
        "--name",
        name,
        "--minutes",
        str(MINUTES),
        "--out",
        str(out),
        "--force",
    ]
    with testbed(RATE, loopback=loopback) as made:
        run_ranks(
            command, made, LOOPBACK_RANKS if loopback else PER_HOST, time_limit_seconds=LIMIT_SECONDS, niceness=NICENESS
        )
    return out / f"{name}.yaml"


def machine_of(scenario: Scenario | StrategyScenario, machine: Path) -> Any:
    """The calibrated machine, with the rate of the scenario's links: a datum, not a fit."""
    if scenario.rate_bits_per_second == RATE:
        return str(machine)
    known = load_job({"model": "gpt-5b", "machine": str(machine), "ranks": 1, "batch": {"sequences": 1}}, [])
    rate = known.machine.nic.bandwidth_bytes_per_second * scenario.rate_bits_per_second / RATE
    return {"extends": str(machine), "nic": {"bandwidth": f"{rate:.0f} B/s"}}


def predict(
    scenarios: list[Scenario | StrategyScenario], machine: Path, ranks: int, out: Path, before: dict[str, float]
) -> dict[str, float]:
    """Simulate everything and write it down, with what was predicted `before`."""
    found = dict(before)
    for scenario in scenarios:
        described = machine_of(scenario, machine)
        for _, raw in scenario.jobs(ranks, described):
            simulation = simulate(load_job(raw, []))
            found[raw["name"]] = simulation.step_seconds
            run = out / scenario.name / f"{raw['name']}-predicted"
            write_run(run, simulation, as_json(simulation, report(simulation), 0.0), None, overwrite=True)
    text = {"written": time.strftime("%Y-%m-%dT%H:%M:%S"), "machine": machine.name, "seconds": found}
    (out / "predictions.json").write_text(json.dumps(text, indent=1), encoding="utf-8")
    return found


def measure(scenarios: list[Scenario | StrategyScenario], ranks: int, out: Path, *, loopback: bool) -> None:
    """Run everything for real."""
    for scenario in scenarios:
        results = out / scenario.name
        results.mkdir(parents=True, exist_ok=True)
        jobs = [
            {
                "name": raw["name"],
                "label": label,
                "job": {**raw, "machine": "laptop"},
                "warmup": WARMUP,
                "timed": TIMED,
                "traced": TRACED,
                "trace": True,
            }
            for label, raw in scenario.jobs(ranks, "laptop")
        ]
        plan = results / "plan.json"
        plan.write_text(json.dumps({"out": str(results), "jobs": jobs}), encoding="utf-8")
        command = [sys.executable, "-m", "tests.testbed.worker", str(plan)]
        with testbed(scenario.rate_bits_per_second, loopback=loopback) as made:
            run_ranks(
                command, made, ranks if loopback else PER_HOST, time_limit_seconds=LIMIT_SECONDS, niceness=NICENESS
            )


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.testbed.validate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--out", type=Path, default=Path("testbed-out"))
    calibration = parser.add_mutually_exclusive_group()
    calibration.add_argument("--machine", type=Path, help="a machine file instead of calibrating")
    calibration.add_argument("--each", action="store_true", help="calibrate anew before each scenario")
    parser.add_argument("--scenarios", default="", help="some of " + ", ".join(s.name for s in ALL))
    parser.add_argument("--loopback", action="store_true", help="4 ranks on this host, no namespaces")
    chosen = parser.parse_args(arguments)
    if not chosen.loopback and (reason := reason_missing()):
        sys.stderr.write(f"no test bed here: {reason}\n")
        return 2
    out: Path = chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    ranks = LOOPBACK_RANKS if chosen.loopback else HOSTS * PER_HOST
    wanted = [name for name in chosen.scenarios.split(",") if name] or (
        ["base"] if chosen.loopback else [s.name for s in ALL]
    )
    scenarios = [s for s in ALL if s.name in wanted]
    predictions: dict[str, float] = {}
    for together in [[scenario] for scenario in scenarios] if chosen.each else [scenarios]:
        place = out / together[0].name if chosen.each else out
        machine = chosen.machine or calibrate(place, loopback=chosen.loopback)
        predictions = predict(together, machine.resolve(), ranks, out, predictions)
        measure(together, ranks, out, loopback=chosen.loopback)
    sys.stdout.write(write_report(scenarios, predictions, out))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
