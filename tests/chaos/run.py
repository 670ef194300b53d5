"""A training run to which everything happens, against the same run left alone.

    python -m tests.chaos.run [--steps 300] [--seed 0] [--share 1.0] [--out DIR]

Every so many steps something is killed, stopped, cut, filled or damaged (`events`). In the end the loss of
every step must be that of the undisturbed run, no more steps may have been done twice than was promised, the
last checkpoint must be whole, all must have ended, and at no time may the run have stood still for longer than
its limits add up to. `chaos.json` says what happened.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from pathlib import Path
from random import Random
from typing import Any

import yaml

from tests.chaos.cluster import HOSTS, PER_HOST, Cluster, cluster, disk
from tests.chaos.events import Chaos, Places, happen
from tests.chaos.verdict import EVERY, MEMORY_EVERY, Ending, Story, largest_difference, newest_whole, verdict
from tests.testbed.network import reason_missing

TIMEOUT_SECONDS = 20
LONGEST_SECONDS = 150.0
"""Of standing still: what one event can cost. Its peers wait for a rank that is gone or stopped (20 s, the limit of a
collective), torchrun lets a rank that hears no signal live for 30 s, a host is away for 25 s at most and is found
to be lost 5 s later, others are waited for 3 s, all start again and load: 40 s on cores that they share. The
rest is for other work on those cores."""


def job(steps: int, memory: Path) -> dict[str, Any]:
    """What is trained."""
    return {
        "name": "chaos",
        "machine": "laptop",
        "ranks": HOSTS * PER_HOST,
        "precision": "fp32",
        "recompute": False,
        "model": {"layers": 2, "hidden": 96, "heads": 6, "sequence": 64, "vocabulary": 256},
        "grid": {"data": 1, "z": 3, "y": 2, "x": 1},
        "batch": {"sequences": 24, "micro_sequences": 4},
        "train": {
            "data": "standard-library",
            "steps": steps,
            "learning_rate": {"peak": 3.0e-4, "warmup_steps": 10},
            "evaluation": {"every": 0, "sequences": 0},
            "sample": {"tokens": 0},
            "elastic": True,
            "threads": 1,
            "timeout": f"{TIMEOUT_SECONDS} s",
            "checkpoints": {
                "every": EVERY,
                "memory_every": MEMORY_EVERY,
                "memory_directory": str(memory),
                "timeout": f"{3 * TIMEOUT_SECONDS} s",
            },
        },
    }


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
    """Train, and let everything happen; raises TimeoutError if the run stands still for too long."""
    story, random = Story(), Random(f"chaos {chaos.seed}")
    for host in range(HOSTS):
        there.start(host)
    spacing = (steps - 30) / (len(chaos.kinds) + 1)
    left, due = list(chaos.kinds), 10.0
    best, last, moved = -1, -1, time.monotonic()
    # beside this, so that the run is looked at meanwhile
    with ThreadPoolExecutor(1) as executor:
        under_way: Future[str] | None = None
        while (step := there.step()) < steps - 1:
            now = time.monotonic()
            if 0 <= step < last and story.events:  # lines were cut: it began again
                pending = story.events[-1]
                pending["lost"] = max(pending["lost"], last - step)
                pending["again"] += last - step
            if step >= 0:
                last = step
            if step > best:
                story.longest_pause_seconds = max(story.longest_pause_seconds, now - moved)
                best, moved = step, now
            if now - moved > LONGEST_SECONDS:
                raise TimeoutError(f"no step for {now - moved:.0f} s after {story.events[-1:]}")
            _told(story, under_way)
            over = under_way is None or under_way.done()
            if over and not there.living() and there.step() < steps - 1:
                raise RuntimeError(f"all agents ended after step {best}: see the logs")
            settled = over and (not story.events or step > story.events[-1]["step"])
            if left and settled and step >= due and len(there.ranks()) >= PER_HOST:
                kind = left.pop(0)
                story.events.append({"kind": kind, "step": step, "lost": 0, "again": 0})
                under_way = executor.submit(happen, kind, random, there, places)
                due = step + spacing
            time.sleep(0.05)
        if under_way is not None:
            wait([under_way])
            _told(story, under_way)
    return story


def _told(story: Story, under_way: Future[str] | None) -> None:
    """Write down what was done once it is, and raise what went wrong in doing it."""
    if under_way is not None and under_way.done() and "what" not in story.events[-1]:
        event = story.events[-1]
        event["what"] = under_way.result()
        sys.stderr.write(f"step {event['step']}: {event['kind']}: {event['what']}\n")


def ended(there: Cluster, places: Places) -> Ending:
    """Wait for the end of all hosts, as long as one event can take, and see how they ended."""
    deadline = time.monotonic() + LONGEST_SECONDS
    while there.living() and time.monotonic() < deadline:
        time.sleep(0.1)
    codes = {host: agent.poll() for host, agent in there.agents.items()}
    return Ending(codes, newest_whole(places.checkpoints))


def main(arguments: list[str] | None = None) -> int:
    """Run the command."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.chaos.run", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
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
                ending = ended(there, places)
                lines, starts = there.lines(), there.starts
            seconds = time.monotonic() - begin
    problems = verdict(story, chaos.kinds, alone, lines, chosen.steps, ending)
    apart = largest_difference(alone, lines)
    result = {
        "steps": chosen.steps,
        "seed": chosen.seed,
        "events": story.events,
        "problems": problems,
        "steps_done_again": sum(each["again"] for each in story.events),
        "exit_codes": dict(ending.codes),
        "longest_pause_seconds": round(story.longest_pause_seconds, 1),
        "largest_difference_of_loss": apart,
        "host_starts": starts,
        "seconds": round(seconds, 1),
    }
    (out / "chaos.json").write_text(json.dumps(result, indent=1), encoding="utf-8")
    sys.stdout.write(json.dumps({k: v for k, v in result.items() if k != "events"}, indent=1) + "\n")
    return 1 if problems else 0


if __name__ == "__main__":
    raise SystemExit(main())
