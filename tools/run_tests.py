"""Run the suite as two processes: tests that start ranks of their own, and all others.

    python tools/run_tests.py [ARGUMENT ...]      (arguments for pytest)

Two pools of ranks at once would wait for each other's cores, and time out. (A shell's `&` would not
do: what it starts ignores Ctrl-C, which tests send.)
"""

from __future__ import annotations

import subprocess
import sys
import tempfile

OF_RANKS = ("tests/recorder", "tests/runtime", "tests/testbed")


def main() -> None:
    """Print what the others say as they go, then what the tests of ranks said; fail if either does."""
    pytest = [sys.executable, "-m", "pytest", *sys.argv[1:]]
    with tempfile.TemporaryFile("w+", encoding="utf-8") as log:
        ranks = subprocess.Popen([*pytest, *OF_RANKS], stdout=log, stderr=subprocess.STDOUT)
        try:
            others = subprocess.run([*pytest, "tests", *(f"--ignore={place}" for place in OF_RANKS)], check=False)
            ranks.wait()
        finally:
            ranks.kill()
        log.seek(0)
        print(f"--- {' '.join(OF_RANKS)}\n{log.read()}", flush=True)
    sys.exit(1 if others.returncode or ranks.returncode else 0)


if __name__ == "__main__":
    main()
