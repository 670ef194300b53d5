"""Take the picture of the README from a run's timeline page, in headless Chromium.

    python tools/screenshot.py [RUN] [PICTURE]

RUN is a directory that `fourfold simulate --out` wrote; the picture is a PNG.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZE = "1400,460"


def main() -> None:
    """Find Chromium and take the picture."""
    run = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "demo-out")
    picture = Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "docs" / "images" / "timeline.png")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is not installed (Debian: apt-get install chromium)")
    page = (run / "timeline.html").resolve()
    if not page.is_file():
        sys.exit(f"{page} is missing; run `make demo` first")
    subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}",
         "--virtual-time-budget=8000", f"--screenshot={picture}", page.as_uri()],
        check=True, capture_output=True,
    )  # fmt: skip
    print(picture)


if __name__ == "__main__":
    main()
