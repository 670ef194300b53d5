"""Take the pictures of the README and the documents in headless Chromium, from real data.

    python tools/screenshot.py [RUN] [FOLDER]
    python tools/screenshot.py --dashboard [RUNS] [FOLDER]
    python tools/screenshot.py --all-pages [RUNS] [FOLDER]

RUN is a directory that `fourfold simulate --out` wrote; FOLDER takes `timeline.png` (the whole step)
and `timeline-block.png` (the page's button "one block backward" pressed).

With `--dashboard` some pages of the dashboard go into FOLDER; RUNS is examples/runs if not given.
With `--all-pages` every page does, on a laptop, at 1024 x 768 and at 4K, light and dark: to look at all of them.
"""

from __future__ import annotations

import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

# The dashboard and Playwright are extras, which the pictures of a run's page do not need.
# ruff: noqa: PLC0415

ROOT = Path(__file__).resolve().parent.parent
SIZE = "1400,460"
CLICK = "<script>setTimeout(() => document.querySelectorAll('#buttons button')[2].click(), 1500)</script>"
SIZES = {"laptop": (1400, 900), "small": (1024, 768), "4k": (3840, 2160)}
PICTURES = {
    "/verdict": "verdict",
    "/timeline": "timeline",
    "/configurations": "configurations",
    "/ranks": "rank-map",
    "/training": "training",
}
SETTLE_MILLISECONDS = 1500
"""For what draws itself after the page is there: answers of the what-if page, fonts, tables."""


def shoot(browser: str, page: Path, picture: Path) -> None:
    """Take one picture of a page."""
    subprocess.run(
        [
            browser,
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            f"--window-size={SIZE}",
            "--virtual-time-budget=9000",
            f"--screenshot={picture}",
            page.as_uri(),
        ],
        check=True,
        capture_output=True,
    )
    print(picture)


@contextmanager
def dashboard(runs: Path) -> Iterator[str]:
    """Serve a directory of runs; yields the address with its token."""
    command = [sys.executable, "-m", "twin", "dashboard", str(runs)]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield next(m[0] for line in process.stdout if (m := re.search(r"http://\S+", line)))
        finally:
            process.send_signal(signal.SIGINT)
            process.wait()


def queries(runs: Path) -> dict[str, str]:
    """Choose what each page shows: the newest or first of what suits it."""
    from dashboards.catalog import Catalog
    from dashboards.pages import PAGES

    entries = sorted(Catalog(runs).entries(), key=lambda e: e.label)

    def first(*kinds: str, having: str = "", word: str = "") -> str:
        found = [e for e in entries if e.kind in kinds and (not having or (e.path / having).is_file())]
        return next((e.name for e in found if word in e.label), found[0].name if found else "")

    measured = first("measured", word="2x2x2x1")
    label = next((e.label for e in entries if e.name == measured), "").replace("measured", "predicted")
    pair = f"run={first('predicted', word=label or 'x')}&other={measured}"
    special = {
        "/": pair,
        "/compare": f"run={measured}&other={first('measured', word='8x1x1x1')}",
        "/configurations": f"run={first('search')}",
        "/scaling": f"run={first('study')}",
        "/ranks": f"run={first('predicted', having='ranks.parquet')}",
        "/whatif": f"run={first('predicted')}",
    }
    return {page.path: special.get(page.path, pair) for page in PAGES}


def shoot_pages(chromium: str, runs: Path, folder: Path, wanted: dict[str, str], *, everything: bool) -> None:
    """Take pictures of pages of the dashboard, one per page, size and theme."""
    from playwright.sync_api import sync_playwright

    folder.mkdir(parents=True, exist_ok=True)
    asked = queries(runs)
    with dashboard(runs) as address, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        for size, (width, height) in SIZES.items() if everything else [("laptop", SIZES["laptop"])]:
            for theme in ("light", "dark") if everything else ("light",):
                context: Any = browser.new_context(
                    viewport={"width": width, "height": height}, color_scheme=theme, reduced_motion="reduce"
                )
                page = context.new_page()
                page.goto(address)
                for path, name in wanted.items():
                    page.goto(f"{address.partition('/?')[0]}{path}?{asked[path]}")
                    page.locator("#content h1").wait_for()
                    page.wait_for_load_state("networkidle")
                    page.wait_for_timeout(SETTLE_MILLISECONDS)
                    picture = folder / (f"{name}-{size}-{theme}.png" if everything else f"dashboard-{name}.png")
                    page.screenshot(path=picture, full_page=everything and size == "laptop")
                    print(picture)
                context.close()
        browser.close()


def main() -> None:
    """Find Chromium and take the pictures that were asked for."""
    sys.path.insert(0, str(ROOT))
    given = [word for word in sys.argv[1:] if not word.startswith("--")]
    chromium = shutil.which("chromium") or shutil.which("google-chrome")
    if chromium is None:
        sys.exit("Chromium is not installed (Debian: apt-get install chromium)")
    folder = Path(given[1] if len(given) > 1 else ROOT / "docs" / "images")
    if {"--dashboard", "--all-pages"} & set(sys.argv):
        from dashboards.pages import PAGES

        runs = Path(given[0] if given else ROOT / "examples" / "runs")
        every = "--all-pages" in sys.argv
        names = {page.path: page.path.strip("/") or "runs" for page in PAGES}
        shoot_pages(chromium, runs, folder, names if every else PICTURES, everything=every)
        return
    static_pages(chromium, Path(given[0] if given else ROOT / "demo-out" / "gpt-320b"), folder)


def static_pages(chromium: str, run: Path, folder: Path) -> None:
    """Take the whole step, and one block backward, of a run's timeline page."""
    page = (run / "timeline.html").resolve()
    if not page.is_file():
        sys.exit(f"{page} is missing; run `make demo` first")
    shoot(chromium, page, folder / "timeline.png")
    with tempfile.TemporaryDirectory() as temporary:
        zoomed = Path(temporary) / "zoomed.html"
        text = page.read_text(encoding="utf-8")
        zoomed.write_text(text.replace("</body>", CLICK + "</body>"), encoding="utf-8")
        shoot(chromium, zoomed, folder / "timeline-block.png")
    for name in ("measured", "predicted"):
        tiny = (run.parent / f"tiny-gpt-{name}" / "timeline.html").resolve()
        if tiny.is_file():
            shoot(chromium, tiny, folder / f"tiny-gpt-{name}.png")


if __name__ == "__main__":
    main()
