"""Put the figures that commands print into the documents: `make figures`.

    python -m tools.figures [--data DIR] [--check]

A figure stands between `<!-- figure: NAME -->` and `<!-- /figure -->`, which no reader sees. `FIGURES` says for
each name which command prints it, or which file has the results of one that takes too long to be run here. Tables of
measurements that are not part of the repository are looked for in DIR; without them what is there stays. `--check`
writes nothing and fails where a document says something else.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import re
import subprocess
import sys
from collections.abc import Callable, Iterable
from datetime import UTC, datetime
from functools import cache, partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

from tools.figure_benchmarks import BENCHMARKS
from tools.figure_beyond import (
    kept,
    mean_error,
    mean_gain,
    measured,
    of_320b,
    over_data,
    predicted,
    steps_measured,
    tornado,
    within,
)
from tools.figure_sentences import SENTENCES
from tools.figure_tables import Answer, fastest, largest, memorized, percent, repeated, table
from tools.figure_validation import (
    by_source,
    calibrated_mean,
    collectives,
    collectives_kept,
    first_mean,
    iterations,
    largest_of_memory,
    left_out,
    memory,
    over_rows,
    pieces,
    steps,
    unseen,
)

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
REGION = re.compile(r"(<!-- figure: (?P<name>[\w-]+) -->)(?P<shown>.*?)(<!-- /figure -->)", re.S)
COMMANDS: dict[str, tuple[str, ...]] = {
    "simulate": ("simulate", "examples/gpt-320b-frontier-32768.yaml", "--json"),
    "validate": ("validate", "--workers", str(os.cpu_count() or 1), "--json"),
    "iterations": ("validate", "--measurements", "iteration-times-a100.csv", "--json"),
    "fsdp": ("validate", "--measurements", "iteration-times-mpt-fsdp.csv", "--json"),
    "as-fsdp": ("validate", "--measurements", "iteration-times-mpt-fsdp.csv", "--strategy", "fsdp", "--json"),
    "published": ("validate", "--measurements", "published-training.yaml", "--json"),
    "collectives": ("validate", "--measurements", "collectives-more.csv", "--json"),
    "unseen-fsdp": ("validate", "--measurements", "examples/measured/mpt-fsdp.csv", "--json"),
    "unseen-as-fsdp": ("validate", "--measurements", "examples/measured/mpt-fsdp.csv", "--strategy", "fsdp", "--json"),
    "unseen-runs": ("validate", "--measurements", "examples/measured/training-runs.yaml", "--json"),
    "one-h100": ("validate", "--measurements", "examples/measured/h100-one-device.yaml", "--json"),
    "one-h200": ("validate", "--measurements", "examples/measured/h200-one-device.yaml", "--json"),
    "offload": ("validate", "--measurements", "offload-iterations.csv", "--json"),
    "unseen-offload": ("validate", "--measurements", "examples/measured/offload.csv", "--json"),
    "tcp": ("validate", "--measurements", "examples/measured/polaris-tcp.csv", "--json"),
    "what-if": ("study", "examples/studies/what-if.yaml", "--out", "what-if", "--json"),
    "systems": ("study", "examples/studies/systems.yaml", "--out", "systems", "--json"),
    "data-reduction": ("study", "examples/studies/data-reduction.yaml", "--out", "data-reduction", "--json"),
    "largest": ("study", "examples/studies/largest-on-4090.yaml", "--out", "largest", "--json"),
    "memorize": ("memorize", "examples/memorize/laptop.yaml", "--out", "laptop", "--json"),
    "shifted": ("memorize", "examples/memorize/shifted.yaml", "--out", "shifted", "--json"),
    "sizes": ("memorize", "examples/memorize/sizes.yaml", "--out", "sizes", "--json"),
}
RESULTS = {
    "train": ROOT / "tests/benchmarks/results/train.json",
    "products": ROOT / "tests/benchmarks/results/products.json",
    "scale": ROOT / "tests/benchmarks/results/scale.json",
    "simulate-examples": ROOT / "tests/benchmarks/results/simulate.json",
    "search-all": ROOT / "tests/benchmarks/results/search.json",
    "host": ROOT / "tests/benchmarks/results/host.json",
    "beyond": ROOT / "tests/benchmarks/results/beyond.json",
    "beyond-testbed": ROOT / "tests/testbed/data/beyond.json",
}
"""Answers that are kept: what `python -m tests.benchmarks.train --out FILE` has measured, and others like it."""
RUNS = {
    "gpt-5b on 512 of perlmutter": "GPT-5B, 512 A100, Perlmutter",
    "gpt-40b on 4096 of perlmutter": "GPT-40B, 4,096 A100",
    "gpt-5b on 512 of frontier": "GPT-5B, 512 GCDs, Frontier",
    "gpt-80b on 8192 of frontier": "GPT-80B, 8,192 GCDs",
    "gpt-320b on 32768 of frontier": "GPT-320B, 32,768 GCDs",
    "gpt-10b on 1024 of alps": "GPT-10B, 1,024 GH200, Alps",
    "gpt-60b on 6144 of alps": "GPT-60B, 6,144 GH200",
}
NUMBERS = ("None", "One", "Two", "Three", "Four", "Five", "Six", "Seven")


def of(runs: list[Answer], name: str) -> Answer:
    """Find a case by its name."""
    return next(run for run in runs if run["name"] == name)


def weak_scaling(answer: Answer) -> str:
    """Write predictions beside measurements."""
    rows = []
    for run in answer["weak_scaling"]:
        seconds, (low, high) = run["details"], run["details"]["interval"]
        parts = (seconds[f"{part}_seconds"] for part in ("compute", "slowest_device_wait", "exposed"))
        rows.append(
            [
                RUNS[run["name"]],
                f"{run['predicted']:.2f}",
                f"{low:.1f}–{high:.1f}",
                f"{run['measured']:.2f}",
                percent(run["error"], signed=True),
                " + ".join(f"{part:.2f}" for part in parts),
            ]
        )
    return table(("run", "predicted s", "interval", "measured s", "error", "compute + wait + exposed"), rows)


def outside(answer: Answer) -> str:
    """Count the measurements that lie outside their interval."""
    runs = answer["weak_scaling"]
    missed = sum(not run["details"]["interval"][0] <= run["measured"] <= run["details"]["interval"][1] for run in runs)
    return f"{NUMBERS[missed]} of the {NUMBERS[len(runs)].lower()}"


def ablation(answer: Answer) -> str:
    """Write what each overlap gains."""
    runs = answer["ablation"]
    rows = [[runs[0]["name"], f"{runs[0]['predicted']:.2f}", f"{runs[0]['measured']:.2f}", "", ""]]
    for before, run in pairwise(runs):
        gains = (f"{before[key] - run[key]:.2f}" for key in ("predicted", "measured"))
        rows.append([run["name"], f"{run['predicted']:.2f}", f"{run['measured']:.2f}", *gains])
    whole = (percent(1 - runs[-1][key] / runs[0][key], digits=1) for key in ("predicted", "measured"))
    head = ("", "predicted s", "measured s", "gain predicted", "gain measured")
    return table(head, [*rows, ["total", "", "", *whole]])


def grid_of(name: str) -> Callable[[Answer], str]:
    """Write the prediction on another grid, and its error."""

    def words(answer: Answer) -> str:
        run = of(answer["other_grids"], name)
        return f"{run['predicted']:.2f} s ({percent(run['error'], signed=True, digits=1)})"

    return words


def tuning(name: str) -> Callable[[Answer], str]:
    """Write the computation on the reproducer's grid."""
    return lambda answer: f"{of(answer['kernel_tuning'], f'{name}, grid of the reproducer')['predicted']:.2f}"


def systems(answer: Answer) -> str:
    """Write published systems, each with the 4D algorithm's time on the same job behind it."""
    rows, points = [], answer["points"]
    for number, point in enumerate(points):
        name = point["name"]
        if ": 4D" in name:
            continue
        beside = next(other for other in points[number:] if ": 4D" in other["name"])
        if point["status"] != "done":
            rows.append([name, point["reason"], "", "", "", "", ""])
            continue
        grid = " × ".join(str(beside[f"grid_{axis}"]) for axis in ("data", "z", "y", "x"))
        rows.append(
            [
                name,
                f"{point['step_seconds']:.2f}",
                f"{point['memory_per_rank_bytes'] / 1e9:.0f} of {point['memory_capacity_bytes'] / 1e9:.0f}"
                + ("" if point["memory_fits"] else ": does not fit"),
                percent(point["model_percent_of_peak"] / 100),
                percent(point["exposed_communication_seconds"] / point["step_seconds"]),
                f"{beside['step_seconds']:.2f} ({grid})",
                f"{beside['step_seconds'] / point['step_seconds']:.2f}",
            ]
        )
    return table(
        ("system", "step s", "memory GB", "of peak", "exposed", "4D s (data × z × y × x)", "4D ÷ system"), rows
    )


FIGURES: dict[str, tuple[str, Callable[[Answer], str]]] = {
    "step-320b": ("simulate", lambda a: f"{a['step_seconds']:.1f}"),
    "exposed-320b": ("simulate", lambda a: percent(a["exposed_communication_seconds"] / a["step_seconds"])),
    "weak-scaling": ("validate", weak_scaling),
    "weak-scaling-median": ("validate", lambda a: percent(a["weak_scaling_summary"]["median"])),
    "weak-scaling-largest": ("validate", lambda a: percent(max(abs(run["error"]) for run in a["weak_scaling"]))),
    "outside-interval": ("validate", outside),
    "error-80b": ("validate", lambda a: percent(abs(of(a["weak_scaling"], "gpt-80b on 8192 of frontier")["error"]))),
    "z512": ("validate", grid_of("gpt-5b on 512 of frontier")),
    "reproducer": ("validate", grid_of("gpt-320b on 32768 of frontier")),
    "reproducer-tuned": ("validate", tuning("tuned")),
    "reproducer-untuned": ("validate", tuning("untuned")),
    "ablation": ("validate", ablation),
    "iterations": ("iterations", iterations),
    "fsdp": ("fsdp", iterations),
    "as-fsdp": ("as-fsdp", iterations),
    "published": ("published", iterations),
    "unseen-fsdp": ("unseen-fsdp", iterations),
    "unseen-as-fsdp": ("unseen-as-fsdp", iterations),
    "unseen-mean": ("unseen-fsdp", unseen),
    "unseen-as-fsdp-mean": ("unseen-as-fsdp", unseen),
    "unseen-fsdp-left-out": ("unseen-fsdp", left_out),
    "unseen-runs": ("unseen-runs", iterations),
    "one-h100": ("one-h100", iterations),
    "one-h100-mean": ("one-h100", first_mean),
    "one-h100-memory": ("one-h100", memory),
    "one-h100-memory-largest": ("one-h100", largest_of_memory),
    "one-h200": ("one-h200", iterations),
    "one-h200-steps": ("one-h200", steps),
    "one-h200-mean": ("one-h200", calibrated_mean),
    "one-h200-memory": ("one-h200", memory),
    "left-out": ("published", left_out),
    "pieces": ("published", pieces),
    "published-rows": ("published", lambda a: str(len(a["rows"]))),
    "published-mean": ("published", by_source),
    "systems": ("systems", systems),
    "collectives": ("collectives", collectives),
    "collectives-kept": ("collectives", collectives_kept),
    "tcp": ("tcp", collectives),
    "offload": ("offload", iterations),
    "offload-mean": ("offload", over_rows),
    "unseen-offload": ("unseen-offload", iterations),
    "unseen-offload-mean": ("unseen-offload", over_rows),
    "unseen-offload-left-out": ("unseen-offload", left_out),
    "largest": ("largest", largest),
    "fastest": ("largest", fastest),
    "collectives-left-out": ("collectives", left_out),
    "memorize": ("memorize", memorized),
    "memorize-shifted": ("shifted", memorized),
    "memorize-sizes": ("sizes", repeated),
    **BENCHMARKS,
    **SENTENCES,
    "data-reduction": ("data-reduction", over_data),
    "beyond": ("beyond", predicted),
    "beyond-320b": ("beyond", of_320b),
    "beyond-kept": ("beyond", kept),
    "beyond-tornado": ("beyond", tornado),
    **{
        f"{scenario}-{name}": ("beyond-testbed", partial(write, scenario=scenario))
        for scenario in ("beyond", "further")
        for name, write in (("measured", measured), ("mean", mean_gain), ("within", within), ("error", mean_error))
    },
    "ahead-measured": ("beyond-testbed", partial(steps_measured, scenario="ahead")),
}
STAMP = "stamp"
"""The figure that says when and where the others were made; it goes with them, and is never stale by itself."""


def stamp() -> str:
    """Write date and machine."""
    today = datetime.now(UTC).date().isoformat()
    return f"{today}, {platform.machine()}, {os.cpu_count()} cores, Python {platform.python_version()}"


class Answers:
    """What commands print, each asked once."""

    def __init__(self, data: Path | None, known: Iterable[str] = COMMANDS) -> None:
        self.data, self.known = data, set(known)
        self.ask = cache(self._ask)

    def _ask(self, name: str) -> Answer | None:
        """Run a command, or read its results; None if it is not to be run, or its table is not here."""
        if name in RESULTS:
            kept: Answer = json.loads(RESULTS[name].read_text(encoding="utf-8"))
            return kept
        words = list(COMMANDS[name])
        if name not in self.known:
            return None
        for number, word in enumerate(words):
            if words[number - 1] == "--measurements" and not (ROOT / word).exists():
                if self.data is None or not (self.data / word).exists():
                    print(f"{word}: give --data DIR to have its figures made again", file=sys.stderr)
                    return None
                words[number] = str(self.data / word)
        with TemporaryDirectory() as folder:
            words = [str(Path(folder, word)) if before == "--out" else word for before, word in pairwise(["", *words])]
            command = [sys.executable, "-m", "twin", *words]
            ran = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True)
        found: Answer = json.loads(ran.stdout)
        return found

    def figure(self, name: str, shown: str) -> str:
        """Return what is to be shown; what is shown already where that cannot be known."""
        if name == STAMP:
            return shown
        command, write = FIGURES[name]
        answer = self.ask(command)
        return shown if answer is None else write(answer)


def renewed(text: str, answers: Answers) -> str:
    """Return a page with its figures as the commands print them."""
    return REGION.sub(lambda found: found[1] + answers.figure(found["name"], found["shown"]) + found[4], text)


def stale(answers: Answers) -> list[str]:
    """Name the pages that show something else than the commands print."""
    return [str(page.relative_to(ROOT)) for page in PAGES if renewed(text := page.read_text("utf-8"), answers) != text]


def main() -> None:
    """Renew the documents, or check them."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", type=Path, metavar="DIR", help="where tables of measurements are")
    parser.add_argument("--check", action="store_true", help="write nothing; fail if a document is stale")
    asked = parser.parse_args()
    answers = Answers(asked.data)
    if asked.check:
        sys.exit(f"stale: {', '.join(found)}; run make figures" if (found := stale(answers)) else 0)
    for page in PAGES:
        text = page.read_text(encoding="utf-8")
        new = renewed(text, answers)
        if REGION.search(text):
            new = REGION.sub(lambda m: m[1] + stamp() + m[4] if m["name"] == STAMP else m[0], new)
        if new != text:
            page.write_text(new, encoding="utf-8")
            print(f"{page.relative_to(ROOT)}: written")


if __name__ == "__main__":
    main()
