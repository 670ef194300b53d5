"""The machine of what `fourfold calibrate` has measured somewhere, at another time.

    python -m twin.calibrate NAME-measurements.json

prints the file that `fourfold calibrate` writes as NAME.yaml.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

from twin.calibrate.machine import machine_from
from twin.description.problems import DescriptionError


def main() -> None:
    """Run the command."""
    parser = argparse.ArgumentParser(prog="python -m twin.calibrate", description=__doc__)
    parser.add_argument("measurements", type=Path, help="JSON that fourfold calibrate has written")
    path = parser.parse_args().measurements
    try:
        sys.stdout.write(machine_from(json.loads(path.read_text(encoding="utf-8"))))
    except (OSError, ValueError, DescriptionError) as error:
        parser.error(f"{path}: {error}")


if __name__ == "__main__":
    main()
