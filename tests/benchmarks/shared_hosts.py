"""How far the all-ranks engine is off the SimPy engine where ranks share a host that holds part of their state.

python -m tests.benchmarks.shared_hosts [SEEDS]
"""

from __future__ import annotations

import statistics
import sys

from tests.benchmarks.chance import error
from tests.engine.test_ranks_of_strategies import CASES, CHANCES, described


def main() -> None:
    """Print the errors of all cases with so many draws each (3 if not said)."""
    seeds = int(sys.argv[1]) if len(sys.argv) > 1 else 3
    found = [
        abs(error(described(*case, {**chance, "seed": seed})))
        for case in CASES
        for chance in CHANCES
        for seed in range(seeds)
    ]
    print(f"{len(found)} steps: median {statistics.median(found):.2%}, at most {max(found):.2%}")


if __name__ == "__main__":
    main()
