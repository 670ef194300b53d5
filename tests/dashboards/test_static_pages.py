"""Pages that `fourfold search` and `fourfold study` write: complete, quiet and readable in both themes."""

from __future__ import annotations

import json
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.tiers import makes
from twin.cli import main

JOB: dict[str, Any] = {
    "name": "small",
    "model": {"preset": "gpt2", "layers": 2},
    "machine": "perlmutter",
    "ranks": 8,
    "grid": "auto",
    "batch": {"sequences": 32, "micro_sequences": 1},
}
STUDY = {"study": "sweep", "vary": {"machine.nic.bandwidth": ["5 GB/s", "25 GB/s"], "recompute": [True, False]}}


@pytest.fixture(scope="module")
@makes("browser")
def written(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A search and a study, written by their commands."""
    folder = tmp_path_factory.mktemp("pages")
    (folder / "job.yaml").write_text(yaml.safe_dump(JOB))
    (folder / "study.yaml").write_text(yaml.safe_dump({**STUDY, "job": {**JOB, "grid": {"z": 8}}}))
    for name, job in (("search", "job.yaml"), ("study", "study.yaml")):
        with pytest.raises(SystemExit) as ended:
            main([name, str(folder / job), "--out", str(folder / name), "--workers", "1", "--json"])
        assert not ended.value.code
    return {name: folder / name / f"{name}.html" for name in ("search", "study")}


@pytest.mark.parametrize("name", ["search", "study"])
def test_a_page_that_a_command_wrote_is_readable_in_both_themes(browser: Any, written: dict[str, Path], name: str):
    """No error, nothing asked for; figures take the page's colours, also when these change while it is open."""
    page = browser.new_page(viewport={"width": 1024, "height": 768}, color_scheme="light", bypass_csp=True)
    wrong: list[str] = []
    page.on("console", lambda said: wrong.append(said.text) if said.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda asked: asked.url.startswith(("file:", "data:", "blob:")) or wrong.append(asked.url))
    been: set[str] = set()
    page.on("framenavigated", lambda frame: been.add(frame.url))
    page.goto(written[name].as_uri())
    seen = {}
    for theme in ("light", "dark"):
        page.emulate_media(color_scheme=theme)
        page.wait_for_function(f"matchMedia('(prefers-color-scheme: {theme})').matches")
        page.locator(".js-plotly-plot .main-svg").first.wait_for()
        # On busy cores Chromium has once thrown away the page's context here, whereof `evaluate` dies and waiting not.
        ground = page.wait_for_function("getComputedStyle(document.body).backgroundColor").json_value()
        # A figure that takes new colours or a new width draws its layers anew: one may not be there just now.
        fill = page.wait_for_function(
            "ground => [...document.querySelectorAll('.js-plotly-plot')].every(f => {"
            "  const layer = f.querySelector('.main-svg');"
            "  return layer && f.querySelector('.xtick text') && getComputedStyle(layer).backgroundColor === ground; })"
            " && getComputedStyle(document.querySelector('.xtick text')).fill",
            arg=ground,
        )
        seen[theme] = (ground, fill.json_value())
        assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
        assert serious(page) == []
    assert seen["light"] != seen["dark"]
    assert len({*seen["light"], *seen["dark"]}) == 4
    page.close()
    assert wrong == []
    assert been == {written[name].as_uri()}


def serious(page: Any) -> list[Any]:
    """What axe finds; nothing where it is not installed."""
    if find_spec("axe_playwright_python") is None:
        return []
    import axe_playwright_python

    page.add_script_tag(content=Path(axe_playwright_python.__file__).with_name("axe.min.js").read_text("utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")["violations"]
    return [(v["id"], json.dumps(v["nodes"][0]["html"])) for v in found if v["impact"] in ("serious", "critical")]
