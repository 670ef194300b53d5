"""Take the pictures of the README from a run's timeline page, in headless Chromium.

    python tools/screenshot.py [RUN] [FOLDER]

RUN is a directory that `fourfold simulate --out` wrote; FOLDER takes `timeline.png` (the whole step)
and `timeline-block.png` (the page's button "one block backward" pressed).
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SIZE = "1400,460"
CLICK = "<script>setTimeout(() => document.querySelectorAll('#buttons button')[2].click(), 1500)</script>"


def shoot(browser: str, page: Path, picture: Path) -> None:
    """Take one picture of a page."""
    subprocess.run(
        [browser, "--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", f"--window-size={SIZE}",
         "--virtual-time-budget=9000", f"--screenshot={picture}", page.as_uri()],
        check=True, capture_output=True,
    )  # fmt: skip
    print(picture)


def main() -> None:
    """Find Chromium; take the whole step, and one block backward."""
    run = Path(sys.argv[1] if len(sys.argv) > 1 else ROOT / "demo-out" / "gpt-320b")
    folder = Path(sys.argv[2] if len(sys.argv) > 2 else ROOT / "docs" / "images")
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is not installed (Debian: apt-get install chromium)")
    page = (run / "timeline.html").resolve()
    if not page.is_file():
        sys.exit(f"{page} is missing; run `make demo` first")
    shoot(browser, page, folder / "timeline.png")
    with tempfile.TemporaryDirectory() as temporary:
        zoomed = Path(temporary) / "zoomed.html"
        text = page.read_text(encoding="utf-8")
        zoomed.write_text(text.replace("</body>", CLICK + "</body>"), encoding="utf-8")
        shoot(browser, zoomed, folder / "timeline-block.png")
    for name in ("measured", "predicted"):
        tiny = (run.parent / f"tiny-gpt-{name}" / "timeline.html").resolve()
        if tiny.is_file():
            shoot(browser, tiny, folder / f"tiny-gpt-{name}.png")


if __name__ == "__main__":
    main()
