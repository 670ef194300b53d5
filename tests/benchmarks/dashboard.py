"""How long the dashboard takes: a first picture, a finer one, a large trace, a what-if.

    python -m tests.benchmarks.dashboard [--runs FOLDER] [--repeats N] [--json]

FOLDER keeps the traces, so that a second call need not simulate them again. Times are those that a
visitor waits in Debian's Chromium on the same machine, the scripts being in its cache; what is read
for the first time after the server's start is `opens`, what its memory holds already is `again`.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dashboards.catalog import Catalog
from tests.benchmarks.processes import machine
from twin.engine.all_ranks import simulate_ranks
from twin.engine.report import as_json, report_all_ranks
from twin.engine.runs import write_run
from twin.engine.seeds import rank_table
from twin.strategies import load_job

ROOT = Path(__file__).resolve().parents[2]
PATIENCE = 120_000
LARGE = {"64 ranks x 5,000 ops": (43, 64), "3 million events": (80, 320)}
"""Layers and ranks."""
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
LIVE_WARM_UP, LIVE_SETTLES, LIVE_TURN = 30, 2.5, 6.0
"""Steps that are not counted; seconds in which a page opens or closes, and of a turn: two looks of the page."""
CHANGED = """before => new Promise(done => {
  const look = () => document.querySelector("#timeline-words").innerText !== before
    ? requestAnimationFrame(() => done(1)) : setTimeout(look, 5);
  look();
})"""
"""Waits until the timeline's sentence is another one, and drawn."""
FOLDED, SMALL = "32,768 ranks, folded", "small"
LIMITS = {"64 ranks x 5,000 ops": 1.5, "3 million events": 3.0, FOLDED: 1.0, "refined": 0.5, "what-if": 3.0}


def write_traces(folder: Path) -> None:
    """Simulate what is not there yet."""
    for name, (layers, ranks) in LARGE.items():
        if (folder / name).is_dir():
            continue
        job = load_job(
            {
                "name": name,
                "model": {"preset": "gpt-20b", "layers": layers},
                "machine": "perlmutter",
                "ranks": ranks,
                "grid": {"data": ranks // 16, "z": 4, "y": 2, "x": 2},
                "batch": {"sequences": ranks, "micro_sequences": 4},
            }
        )
        every = simulate_ranks(job, record=range(ranks))
        figures = as_json(every, report_all_ranks(every), 0.0)
        write_run(
            folder / name,
            every.of_recorded(),
            figures,
            list(range(ranks)),
            overwrite=True,
            tables={"ranks.parquet": rank_table(every)},
        )
    if not (folder / SMALL).is_dir():
        shutil.copytree(ROOT / "examples/runs/testbed/2x2x2x1-predicted", folder / SMALL)
    if not (folder / FOLDED).is_dir():
        subprocess.run(
            [
                sys.executable,
                "-m",
                "twin",
                "simulate",
                str(ROOT / "examples/gpt-320b-frontier-32768.yaml"),
                "--out",
                str(folder / FOLDED),
                "--json",
            ],
            check=True,
            stdout=subprocess.DEVNULL,
        )


@contextmanager
def server(folder: Path) -> Iterator[tuple[str, int]]:
    """Run `fourfold dashboard`; yields its address with the token and its process id."""
    with subprocess.Popen(
        [sys.executable, "-m", "twin", "dashboard", str(folder)], stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout is not None
            address = next(m[0] for line in process.stdout if (m := re.search(r"http://\S+", line)))
            yield address, process.pid
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def peak_bytes(pid: int) -> int:
    """The most memory that a process has held."""
    status = Path(f"/proc/{pid}/status").read_text(encoding="ascii")
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) * 1024


def timed(action: Callable[[], Any]) -> float:
    """Seconds that an action takes."""
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


class Visitor:
    """A browser window with the scripts in its cache."""

    def __init__(self, page: Any, address: str, small: str) -> None:
        self.page, self.base = page, address.partition("/?")[0]
        page.set_default_timeout(PATIENCE)
        page.goto(address)
        page.locator("#content h1").wait_for()
        self.open_timeline(small)  # loads the scripts of figures and tables
        page.wait_for_timeout(1500)

    def open_timeline(self, name: str) -> float:
        """Seconds from the address to the picture."""

        def drawn() -> None:
            self.page.goto(f"{self.base}/timeline?run={name}")
            self.page.locator("#timeline .imagelayer image, #timeline .barlayer .point").first.wait_for(
                state="attached"
            )

        return timed(drawn)

    def refine(self) -> float:
        """Seconds from a key that zooms to the finer picture."""
        words = self.page.locator("#timeline-words")
        before = words.inner_text()
        self.page.locator("#timeline-frame").focus()
        return timed(lambda: (self.page.keyboard.press("w"), self.page.evaluate(CHANGED, before)))

    def what_if(self, name: str, scale: str) -> float:
        """Seconds from a changed address, the page's load included, to the simulated answer."""

        def answered() -> None:
            self.page.goto(f"{self.base}/whatif?run={name}&scale-nic={scale}")
            self.page.locator("#whatif-status", has_text="as it is").wait_for()

        return timed(answered)


def measured(folder: Path, repeats: int, turns: int) -> dict[str, Any]:
    """Take all times; a server of its own for each trace, so that its memory is the trace's."""
    from playwright.sync_api import sync_playwright

    write_traces(folder)
    names = {entry.label: entry.name for entry in Catalog(folder).entries()}
    found: dict[str, Any] = {"machine": machine(), "load": os.getloadavg(), "repeats": repeats}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path="/usr/bin/chromium", args=["--no-sandbox"])
        for label in (*LARGE, FOLDED) if repeats else ():
            opens, again, refined, memory = [], [], [], []
            for _ in range(repeats):
                with server(folder) as (address, pid):
                    visitor = Visitor(
                        browser.new_context(viewport={"width": 1400, "height": 1000}).new_page(), address, names[SMALL]
                    )
                    opens.append(visitor.open_timeline(names[label]))
                    again.append(visitor.open_timeline(names[label]))
                    visitor.page.wait_for_timeout(1500)
                    refined += [visitor.refine() for _ in range(4)]
                    memory.append(peak_bytes(pid))
                    visitor.page.context.close()
            found[label] = {
                "opens_seconds": opens,
                "again_seconds": again,
                "refined_seconds": refined,
                "server_peak_bytes": max(memory),
                "limit_seconds": LIMITS[label],
            }
        with server(folder) as (address, _):
            visitor = Visitor(browser.new_context().new_page(), address, names[SMALL])
            if repeats:
                answers = [visitor.what_if(names[FOLDED], f"0.{n + 1}") for n in range(2 * repeats)]
                found["what-if, GPT-320B on 32,768 ranks"] = {"seconds": answers, "limit_seconds": LIMITS["what-if"]}
            if turns:
                found[LIVE] = live_found(folder, visitor, turns)
        browser.close()
    return found | {"load_after": os.getloadavg()}


def live(folder: Path, visitor: Visitor, turns: int) -> tuple[list[float], list[float]]:
    """Train a small job while a live page is open for a while, and is not, by turns.

    Returns the mean step of each turn without the page and with it: a look takes its time from one step of many, which
    a median would not see. Both kinds of a pair of turns are of one process and lie beside each other, in changing
    order, so that other work meets both; steps in which the page opens or closes are left out.
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
    alone: list[float] = []
    watched: list[float] = []
    shutil.rmtree(out, ignore_errors=True)
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while len(step_seconds(out)) < LIVE_WARM_UP:
            assert process.poll() is None, "the training ended before it was measured"
            time.sleep(0.2)
        for turn in range(turns):
            for page in (True, False) if turn % 2 else (False, True):
                visitor.page.goto(f"{visitor.base}/training" if page else "about:blank")
                time.sleep(LIVE_SETTLES)
                first = len(step_seconds(out)) + 1
                time.sleep(LIVE_TURN)
                (watched if page else alone).append(statistics.fmean(step_seconds(out)[first:]))
        assert process.poll() is None, "the training ended before it was measured"
        process.terminate()
        process.wait()
    visitor.page.goto("about:blank")
    shutil.rmtree(out)
    return alone, watched


def live_found(folder: Path, visitor: Visitor, turns: int) -> dict[str, Any]:
    """What a live page costs a step: all turns, and their paired ratio with its interval."""
    alone, watched = live(folder, visitor, turns)
    return {"alone_seconds": alone, "watched_seconds": watched, "ratio": paired_ratio(alone, watched), "limit": 1.02}


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


def rows(found: dict[str, Any]) -> Iterator[str]:
    """A table in Markdown: best and median."""
    yield "| what | best (s) | median (s) | server's memory (GB) |"
    yield "|---|---|---|---|"
    for label, one in found.items():
        if isinstance(one, dict) and ("limit_seconds" in one or label == LIVE):
            for key, times in one.items():
                if isinstance(times, list):
                    memory = (
                        f"{one['server_peak_bytes'] / 1e9:.2f}"
                        if key == "opens_seconds" and "server_peak_bytes" in one
                        else ""
                    )
                    what = f"{label}: {key.removesuffix('_seconds')}" if key != "seconds" else label
                    yield f"| {what} | {min(times):.3g} | {statistics.median(times):.3g} | {memory} |"
    if LIVE in found:
        yield live_row(found[LIVE])


def live_row(one: dict[str, Any]) -> str:
    """Say what comes out for the live page: below the limit, above it, or neither."""
    ratio, low, high = one["ratio"]
    verdict = "below" if high < one["limit"] else "above" if low > one["limit"] else "not told apart from"
    said = f"{ratio:.3f} ({low:.3f} to {high:.3f}), {verdict} {one['limit']:g}"
    return f"| {LIVE}: watched / alone, {len(one['alone_seconds'])} pairs | | {said} | |"


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--repeats", type=int, default=3, help="of the pictures; 0: none")
    parser.add_argument("--turns", type=int, default=20, help="pairs of turns with a live page and without; 0: none")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = measured((given.runs or Path(temporary)).resolve(), given.repeats, given.turns)
    print(json.dumps(found) if given.json else "\n".join(rows(found)))
    print(f"load average {found['load'][0]:.1f} before, {found['load_after'][0]:.1f} after", file=sys.stderr)


if __name__ == "__main__":
    main()
