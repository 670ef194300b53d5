"""A training run to which everything happens, against the same run left alone.

    python -m tests.chaos.run [--steps 300] [--seed 0] [--share 1.0] [--out DIR]

Every so many steps something is killed, stopped, cut, filled or damaged (`events`). In the end the loss of
every step must be that of the undisturbed run, no more steps may have been done twice than was promised,
and at no time may the run have stood still for longer than its limits add up to. `chaos.json` says what
happened.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tests.chaos.cluster import HOSTS, PER_HOST, Cluster, cluster, disk
from tests.chaos.events import Chaos, Kind, Places, happen
from tests.testbed.network import reason_missing

EVERY, MEMORY_EVERY = 20, 4
TIMEOUT_SECONDS = 20
LONGEST_SECONDS = 240.0
"""Of standing still: a collective's limit, torchrun's 30 s to end a stopped rank, a host that is away and its
heartbeat, a start on cores that others use too; twice, where a second thing happens meanwhile."""
TOLERANCE = 1e-5
BOUND: dict[Kind, int] = {
    "rank": MEMORY_EVERY, "two ranks": MEMORY_EVERY, "host": MEMORY_EVERY, "stop": MEMORY_EVERY,
    "link": MEMORY_EVERY, "disk": 0, "damage": 2 * EVERY,
}  # fmt: skip
"""Steps that may be lost, besides those under way while the last copy was made."""
UNDER_WAY = MEMORY_EVERY


def job(steps: int, memory: Path) -> dict[str, Any]:
    """What is trained."""
    return {
        "name": "chaos", "machine": "laptop", "ranks": HOSTS * PER_HOST, "precision": "fp32", "recompute": False,
        "model": {"layers": 2, "hidden": 96, "heads": 6, "sequence": 64, "vocabulary": 256},
        "grid": {"data": 1, "z": 3, "y": 2, "x": 1}, "batch": {"sequences": 24, "micro_sequences": 4},
        "train": {
            "data": "standard-library", "steps": steps, "learning_rate": {"peak": 3.0e-4, "warmup_steps": 10},
            "evaluation": {"every": 0, "sequences": 0}, "sample": {"tokens": 0}, "elastic": True, "threads": 1,
            "timeout": f"{TIMEOUT_SECONDS} s",
            "checkpoints": {"every": EVERY, "memory_every": MEMORY_EVERY, "memory_directory": str(memory),
                            "timeout": f"{3 * TIMEOUT_SECONDS} s"},
        },
    }  # fmt: skip


@dataclass
class Story:
    """What happened to a run."""

    events: list[dict[str, Any]] = field(default_factory=list)
    longest_pause_seconds: float = 0.0
    again: int = 0
    """Steps done more than once."""


def undisturbed(described: Path, folder: Path) -> dict[int, float]:
    """Losses of the run that is left alone, on one host."""
    out = folder / "alone"
    command = [
        sys.executable,
        "-m",
        "twin",
        "train",
        str(described),
        "--ranks",
        str(HOSTS * PER_HOST),
        "--out",
        str(out),
    ]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    lines = map(json.loads, (out / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return {line["step"]: line["loss"] for line in lines if "loss" in line}


def disturbed(there: Cluster, places: Places, chaos: Chaos, steps: int) -> Story:
    """Train, and let everything happen."""
    story, random = Story(), Random(f"chaos {chaos.seed}")
    for host in range(HOSTS):
        there.start(host)
    spacing = (steps - 30) / (len(chaos.kinds) + 1)
    left, due = list(chaos.kinds), 10.0
    best, moved = -1, time.monotonic()
    pending: dict[str, Any] | None = None
    while there.step() < steps - 1:
        time.sleep(0.05)
        step, now = there.step(), time.monotonic()
        if pending is not None and 0 <= step < pending["step"]:  # lines were cut: it began again
            pending["lost"] = max(pending["lost"], pending["step"] - step)
        if step > best:
            story.longest_pause_seconds = max(story.longest_pause_seconds, now - moved)
            best, moved = step, now
        if now - moved > LONGEST_SECONDS:
            raise TimeoutError(f"no step for {now - moved:.0f} s after {story.events[-1:]}")
        if (
            all(agent.poll() is not None for agent in there.agents.values())
            and there.step() < steps - 1
        ):
            raise RuntimeError(f"all agents ended after step {best}: see the logs")
        settled = pending is None or step > pending["step"]
        if left and settled and step >= due and len(there.ranks()) >= PER_HOST:
            kind = left.pop(0)
            begin = there.step()
            pending = {"kind": kind, "step": begin, "lost": 0}
            pending["what"] = happen(kind, random, there, places)
            story.events.append(pending)
            due = begin + spacing
            sys.stderr.write(f"step {begin}: {kind}: {pending['what']}\n")
    deadline = time.monotonic() + LONGEST_SECONDS
    while (
        any(agent.poll() is None for agent in there.agents.values()) and time.monotonic() < deadline
    ):
        time.sleep(0.1)
    story.again = sum(each["lost"] for each in story.events)
    return story


def verdict(
    story: Story, alone: dict[int, float], lines: list[dict[str, Any]], steps: int
) -> list[str]:
    """What was promised and not kept."""
    problems = []
    if [line["step"] for line in lines] != list(range(steps)):
        problems.append("metrics do not have every step once")
    apart = max(abs(line["loss"] / alone[line["step"]] - 1) for line in lines)
    if apart > TOLERANCE:
        problems.append(f"losses are {apart:.2g} from the undisturbed run's")
    problems += [
        f"{each['kind']} at step {each['step']} cost {each['lost']} steps"
        for each in story.events if each["lost"] > BOUND[each["kind"]] + UNDER_WAY
    ]  # fmt: skip
    return problems


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m tests.chaos.run", description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)  # fmt: skip
    parser.add_argument("--steps", type=int, default=300)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--share", type=float, default=1.0, help="of the usual number of faults")
    parser.add_argument("--out", type=Path, default=Path("chaos-out"))
    chosen = parser.parse_args(arguments)
    if reason := reason_missing():
        sys.stderr.write(f"no test bed here: {reason}\n")
        return 2
    out: Path = chosen.out.resolve()
    out.mkdir(parents=True, exist_ok=True)
    chaos = Chaos.drawn(chosen.seed, chosen.share)
    with tempfile.TemporaryDirectory(dir="/dev/shm") as memory:
        described = out / "job.yaml"
        described.write_text(yaml.safe_dump(job(chosen.steps, Path(memory))), encoding="utf-8")
        with tempfile.TemporaryDirectory() as folder:
            alone = undisturbed(described, Path(folder))
        with tempfile.TemporaryDirectory() as folder, disk(Path(folder) / "disk") as place:
            run = place / "run"
            places = Places(place, Path(memory), run / "checkpoints")
            begin = time.monotonic()
            with cluster(described, run, out) as there:
                story = disturbed(there, places, chaos, chosen.steps)
                lines, starts = there.lines(), there.starts
            seconds = time.monotonic() - begin
    problems = verdict(story, alone, lines, chosen.steps)
    apart = max(abs(line["loss"] / alone[line["step"]] - 1) for line in lines)
    result = {
        "steps": chosen.steps, "seed": chosen.seed, "events": story.events, "problems": problems,
        "steps_done_again": story.again, "longest_pause_seconds": round(story.longest_pause_seconds, 1),
        "largest_difference_of_loss": apart, "host_starts": starts, "seconds": round(seconds, 1),
    }  # fmt: skip
    (out / "chaos.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    sys.stdout.write(
        json.dumps({k: v for k, v in result.items() if k != "events"}, indent=1) + "\n"
    )
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
