"""The picture of a pipeline in a browser: boxes for all passes, and numbers only where they have room."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from twin.api import simulate

JOB: dict[str, Any] = {
    "strategy": "megatron",
    "model": {"layers": 8, "hidden": 512, "heads": 8, "sequence": 256, "vocabulary": 1024},
    "machine": "dgx-h100",
    "ranks": 8,
    "grid": {"pipeline": 4, "data": 2},
    "batch": {"sequences": 16, "micro_sequences": 1},
}


@pytest.mark.quick
def test_the_page_of_a_run_draws_every_pass(browser: Any, tmp_path: Path) -> None:
    simulate(JOB).write(tmp_path / "run")
    page = browser.new_page(viewport={"width": 1300, "height": 900})
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type == "error" else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.goto((tmp_path / "run" / "timeline.html").as_uri())
    boxes = page.locator("#pipeline .barlayer .point")
    boxes.first.wait_for(state="attached")
    assert boxes.count() == 4 * 8 * 2
    assert "64 passes of 8 of 8 micro-batches" in page.locator("#pipeline-note").inner_text()
    numbers = page.locator("#pipeline .barlayer text:not([transform*='scale(0)'])")
    assert numbers.count() > 16
    page.evaluate("pass(0, pipeline.step / 8)")
    page.wait_for_function("document.getElementById('pipeline-note').textContent.includes('of 8 micro-batches')")
    assert "64 passes" not in page.locator("#pipeline-note").inner_text()
    page.close()
    assert wrong == []
