"""How long the dashboard takes: a first picture, a finer one, a large trace, a what-if.

    python -m tests.benchmarks.dashboard [--runs FOLDER] [--repeats N] [--json]

FOLDER keeps the traces, so that a second call need not simulate them again. Times are those that a
visitor waits in Debian's Chromium on the same machine, the scripts being in its cache; what is read
for the first time after the server's start is `opens`, what its memory holds already is `again`.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dashboards.catalog import Catalog
from tests.benchmarks.dashboard_live import LIVE, live_found, live_rows
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
        with server(folder) as (address, pid):
            visitor = Visitor(browser.new_context().new_page(), address, names[SMALL])
            if repeats:
                answers = [visitor.what_if(names[FOLDED], f"0.{n + 1}") for n in range(2 * repeats)]
                found["what-if, GPT-320B on 32,768 ranks"] = {"seconds": answers, "limit_seconds": LIMITS["what-if"]}
            if turns:
                found[LIVE] = live_found(folder, visitor.page, address, pid, turns)
        browser.close()
    return found | {"load_after": os.getloadavg()}


def rows(found: dict[str, Any]) -> Iterator[str]:
    """A table in Markdown: best and median."""
    yield "| what | best (s) | median (s) | server's memory (GB) |"
    yield "|---|---|---|---|"
    for label, one in found.items():
        if isinstance(one, dict) and ("limit_seconds" in one or label == LIVE):
            for key, times in one.items():
                if isinstance(times, list) and key.endswith("seconds"):
                    memory = (
                        f"{one['server_peak_bytes'] / 1e9:.2f}"
                        if key == "opens_seconds" and "server_peak_bytes" in one
                        else ""
                    )
                    what = f"{label}: {key.removesuffix('_seconds')}" if key != "seconds" else label
                    yield f"| {what} | {min(times):.3g} | {statistics.median(times):.3g} | {memory} |"
    if LIVE in found:
        yield from live_rows(found[LIVE])


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--runs", type=Path)
    parser.add_argument("--repeats", type=int, default=3, help="of the pictures; 0: none")
    parser.add_argument("--turns", type=int, default=10, help="rounds of turns with a live page and without; 0: none")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        found = measured((given.runs or Path(temporary)).resolve(), given.repeats, given.turns)
    print(json.dumps(found) if given.json else "\n".join(rows(found)))
    print(f"load average {found['load'][0]:.1f} before, {found['load_after'][0]:.1f} after", file=sys.stderr)


if __name__ == "__main__":
    main()
