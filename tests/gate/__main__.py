"""Hold today's predictions against the digests that are kept, to the byte.

    python -m tests.gate              compare; names what differs; exit code 1 if anything does
    python -m tests.gate --renew      write the digests anew: in a commit of its own that says why
    python -m tests.gate --events     the event tables alone, without the commands' JSON

Kept are the event tables of some ranks of each job of `tests.gate.jobs`, and what `validate`, `search`
and studies print with `--json`. Wall-clock times and paths are left out. The digests are those of
IEEE 754 arithmetic of numpy on x86-64; another processor may differ in the last bit.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from tests.gate.digests import command_digests, event_digest
from tests.gate.jobs import cases

KEPT = Path(__file__).with_name("digests.json")


def main() -> int:
    """Compare or renew; see the module."""
    parser = argparse.ArgumentParser(prog="python -m tests.gate")
    parser.add_argument("--renew", action="store_true")
    parser.add_argument("--events", action="store_true")
    arguments = parser.parse_args()
    found = {name: event_digest(case) for name, case in cases().items()}
    if not arguments.events:
        found |= command_digests()
    if arguments.renew:
        KEPT.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        print(f"{len(found)} digests written")
        return 0
    kept = json.loads(KEPT.read_text(encoding="utf-8"))
    different = [name for name, digest in found.items() if kept.get(name) != digest]
    missing = [] if arguments.events else [name for name in kept if name not in found]
    for name in different:
        print(f"{'differs' if name in kept else 'not kept'}: {name}")
    for name in missing:
        print(f"gone: {name}")
    print(f"{len(found) - len(different)} of {len(found)} as they were")
    return 1 if different or missing else 0


if __name__ == "__main__":
    sys.exit(main())
