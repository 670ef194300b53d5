"""What a live page of the dashboard costs a training beside it; a part of `python -m tests.benchmarks.dashboard`."""

from __future__ import annotations

import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from dashboards.catalog import Catalog
from dashboards.page import state as state_id
from dashboards.pages.training import LOOK_MILLISECONDS

ROOT = Path(__file__).resolve().parents[2]
LIVE, LIVE_JOB = "a step of a training", "examples/tiny-gpt.yaml"
LIVE_CHANGES = (
    "ranks=1",
    "grid={data: 1}",
    "batch={sequences: 4, micro_sequences: 4}",
    "train.steps=1000000",
    "train.threads=1",
    "train.evaluation.every=0",
    "train.evaluation.sequences=0",
    "train.checkpoints.every=0",
)
"""A training whose steps are timed with the live page open, and without: short steps, of which a turn has many."""
TURNS = ("alone", "asked", "watched")
"""No page is open; its questions are asked by a script; it is open in Chromium."""
LIVE_WARM_UP, LIVE_SETTLES, LIVE_TURN = 30, 8.0, 20.0
"""Steps that are not counted; seconds in which a page opens or closes, and of a turn: several looks of the page."""


class Asker:
    """Asks a server what the live page asks, as often, and draws nothing: a browser that is elsewhere."""

    def __init__(self, address: str) -> None:
        parts = urllib.parse.urlsplit(address)
        self._base = f"{parts.scheme}://{parts.netloc}"
        self._opener = urllib.request.build_opener(urllib.request.HTTPCookieProcessor())
        self._opener.open(address).read()  # the token becomes a cookie
        self._known: Any = None

    def ask(self, name: str) -> None:
        """Look once at a training."""
        inputs = (
            ("training-look", "n_intervals", 1),
            (state_id("runs"), "value", [name]),
            (state_id("by"), "value", "steps"),
        )
        states = (("training-mark", "data", self._known), ("address", "search", ""))
        outputs = (("training-drawn", "children"), ("training-mark", "data"), ("training-new", "data"))
        body = {
            "output": f"..{'...'.join('.'.join(one) for one in outputs)}..",
            "outputs": [{"id": one, "property": what} for one, what in outputs],
            "inputs": [{"id": one, "property": what, "value": value} for one, what, value in inputs],
            "state": [{"id": one, "property": what, "value": value} for one, what, value in states],
            "changedPropIds": ["training-look.n_intervals"],
        }
        request = urllib.request.Request(
            f"{self._base}/_dash-update-component", json.dumps(body).encode(), {"Content-Type": "application/json"}
        )
        with self._opener.open(request) as answer:
            text = answer.read()
        if text:
            self._known = json.loads(text)["response"]["training-mark"]["data"]


def live(folder: Path, page: Any, address: str, server_pid: int, turns: int) -> dict[str, list[float]]:
    """Train a small job while a live page is open for a while, while its questions are asked, and while neither is.

    Returns, of each kind of turn, the mean step of each, and the processor time of server and browser as a share of a
    core. Means, for a look takes its time from one step of many, which a median would not see. The turns of a round
    are of one process and lie beside each other, in changing order, so that other work meets all; steps in which the
    page opens or closes are left out.
    """
    out = folder / "live"
    command = [
        sys.executable,
        "-m",
        "twin",
        "train",
        str(ROOT / LIVE_JOB),
        "--ranks",
        "1",
        "--force",
        "--out",
        str(out),
    ]
    for changed in LIVE_CHANGES:
        command += ["--set", changed]
    found: dict[str, list[float]] = {
        f"{kind}_{what}": [] for kind in TURNS for what in ("seconds", "server", "browser")
    }
    shutil.rmtree(out, ignore_errors=True)
    asker, base = Asker(address), address.partition("/?")[0]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while len(step_seconds(out)) < LIVE_WARM_UP:
            assert process.poll() is None, "the training ended before it was measured"
            time.sleep(0.2)
        name = next(entry.name for entry in Catalog(folder).entries() if entry.path == out)
        for turn in range(turns):
            for kind in TURNS[turn % len(TURNS) :] + TURNS[: turn % len(TURNS)]:
                page.goto(f"{base}/training?runs={name}" if kind == "watched" else "about:blank")
                if kind == "asked":
                    asker.ask(name)
                time.sleep(LIVE_SETTLES)
                first, spent = len(step_seconds(out)) + 1, _spent(server_pid, process.pid)
                ends = time.monotonic() + LIVE_TURN
                while (left := ends - time.monotonic()) > 0:
                    time.sleep(min(left, LOOK_MILLISECONDS / 1000))
                    if kind == "asked":
                        asker.ask(name)
                after = _spent(server_pid, process.pid)
                found[f"{kind}_seconds"].append(statistics.fmean(step_seconds(out)[first:]))
                for number, what in enumerate(("server", "browser")):
                    found[f"{kind}_{what}"].append((after[number] - spent[number]) / LIVE_TURN)
        assert process.poll() is None, "the training ended before it was measured"
        process.terminate()
        process.wait()
    page.goto("about:blank")
    shutil.rmtree(out)
    return found


def _spent(server_pid: int, training_pid: int) -> tuple[float, float]:
    """Seconds of processor time of the server, and of the browser: all that this process started but those two."""
    parents: dict[int, int] = {}
    seconds: dict[int, float] = {}
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text(encoding="utf-8").rpartition(")")[2].split()
            except OSError:
                continue  # it has ended
            parents[int(folder.name)] = int(fields[1])
            seconds[int(folder.name)] = (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def below(pid: int) -> float:
        return seconds.get(pid, 0.0) + sum(below(child) for child, parent in parents.items() if parent == pid)

    own, server, training = os.getpid(), below(server_pid), below(training_pid)
    return server, below(own) - seconds[own] - server - training


def live_found(folder: Path, page: Any, address: str, server_pid: int, turns: int) -> dict[str, Any]:
    """What a live page costs a step, and what its server alone: all turns, and paired ratios with their intervals."""
    found = live(folder, page, address, server_pid, turns)
    ratios = {kind: paired_ratio(found["alone_seconds"], found[f"{kind}_seconds"]) for kind in TURNS[1:]}
    return {**found, "ratios": ratios, "limit": 1.02}


def step_seconds(out: Path) -> list[float]:
    """Seconds of each step that a training has written down."""
    metrics = out / "metrics.jsonl"
    whole = metrics.read_text(encoding="utf-8").rpartition("\n")[0] if metrics.is_file() else ""
    return [line["seconds"] for line in map(json.loads, whole.splitlines()) if "step" in line]


def paired_ratio(alone: Sequence[float], watched: Sequence[float]) -> tuple[float, float, float]:
    """Median of the ratios of pairs, and the ends of its confidence interval of at least 95 %.

    By the order of the ratios alone, whatever their distribution is: of n pairs as many lie above the true median as a
    coin shows heads. Of fewer than six pairs there is no such interval; its ends are then 0 and infinite.
    """
    ratios = sorted(after / before for before, after in zip(alone, watched, strict=True))
    count = len(ratios)
    cut, below = 0, 0.0
    while cut < count // 2 and 2 * (below + math.comb(count, cut) / 2**count) <= 0.05:
        below += math.comb(count, cut) / 2**count
        cut += 1
    ends = (ratios[cut - 1], ratios[count - cut]) if cut else (0.0, math.inf)
    return statistics.median(ratios), *ends


def live_rows(one: dict[str, Any]) -> Iterator[str]:
    """Say what comes out for the live page: below the limit, above it, or neither; and for its server alone."""
    names = {"asked": "server alone, the browser elsewhere", "watched": "server and browser"}
    for kind, (ratio, low, high) in one["ratios"].items():
        verdict = "below" if high < one["limit"] else "above" if low > one["limit"] else "not told apart from"
        said = f"{ratio:.3f} ({low:.3f} to {high:.3f}), {verdict} {one['limit']:g}"
        yield f"| {LIVE}, {names[kind]}: ratio, {len(one['alone_seconds'])} rounds | | {said} | |"
    for kind, what in (("asked", "server"), ("watched", "server"), ("watched", "browser"), ("alone", "browser")):
        share = statistics.fmean(one[f"{kind}_{what}"])
        yield f"| processor time of the {what}, {kind}: share of a core | | {100 * share:.2f} % | |"
