"""Make examples/runs: what `fourfold dashboard` shows when there is nothing of one's own yet.

    python tools/example_runs.py [TESTBED]

TESTBED is the directory that `make validate-testbed` wrote: real runs of eight gloo ranks on four
hosts (network namespaces) with links of 400 Mbit/s, and their predictions, which were made before;
without it those that are there stay. The rest is simulated here. Pages that embed Plotly are
left out; the dashboard draws them itself.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
RUNS = ROOT / "examples" / "runs"
GRIDS = ("1x1x2x4", "1x2x2x2", "1x4x2x1", "2x1x2x2", "2x2x2x1", "4x2x1x1", "8x1x1x1")
KEPT = {".json", ".parquet", ".yaml", ".jsonl", ".csv"}
COMMANDS = {
    "gpt-320b-frontier": ["simulate", "examples/gpt-320b-frontier-32768.yaml"],
    "gpt-320b-frontier-every-rank": ["simulate", "examples/gpt-320b-frontier-32768.yaml", "--engine=ranks"],
    "gpt-5b-search": ["search", "examples/gpt-5b-auto.yaml"],
    "weak-scaling": ["study", "examples/studies/weak-scaling-spread.yaml"],
}


def keep(source: Path, target: Path) -> None:
    """Copy the data of a run, a search or a study."""
    for file in sorted(source.rglob("*")):
        if file.is_file() and file.suffix in KEPT and not file.name.startswith("."):
            place = target / file.relative_to(source)
            place.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(file, place)


def main() -> None:
    """Write everything anew."""
    for grid in GRIDS if len(sys.argv) > 1 else ():
        for kind in ("predicted", "trace"):
            source = Path(sys.argv[1]) / "base" / f"base-{grid}-{kind}"
            if not source.is_dir():
                sys.exit(f"{source} is missing; run `make validate-testbed` first (as root)")
            keep(source, RUNS / "testbed" / f"{grid}-{'measured' if kind == 'trace' else kind}")
    with tempfile.TemporaryDirectory() as temporary:
        for name, command in COMMANDS.items():
            out = Path(temporary) / name
            subprocess.run(
                [sys.executable, "-m", "twin", *command, "--out", str(out), "--json"],
                cwd=ROOT,
                check=True,
                stdout=subprocess.DEVNULL,
            )
            shutil.rmtree(RUNS / name, ignore_errors=True)
            keep(out, RUNS / name)
    size = sum(file.stat().st_size for file in RUNS.rglob("*") if file.is_file())
    print(f"{RUNS}: {size / 1e6:.1f} MB")


if __name__ == "__main__":
    main()
