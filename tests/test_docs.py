"""What the documents tell a reader to type works, and the examples in docstrings are true."""

from __future__ import annotations

import doctest
import importlib
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import twin
from twin.cli import main
from twin.strategies import load_job

ROOT = Path(twin.__file__).parents[1]
PAGES = [p for p in [*ROOT.glob("*.md"), *sorted((ROOT / "docs").rglob("*.md"))] if "_build" not in p.parts]
NOT_RUN = (
    "make",
    "git",
    "python -m build",
    "python -m pip",
    "python3 -m venv",
    "pip",
    "cat",
    "cd",
    "source",
    "torchrun",
    "srun",
    "sbatch",
)
"""Commands that belong to a checkout, a cluster or a shell, not to this test."""
OWN = re.compile(r"(?:\$ )?(?:\.venv/bin/)?fourfold(?= |$)")


def blocks(page: Path, *languages: str) -> Iterator[str]:
    """Fenced blocks in some languages."""
    fence = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
    for language, text in fence.findall(page.read_text(encoding="utf-8")):
        if language in languages:
            yield text


def commands(page: Path) -> list[str]:
    """Lines to type, continued lines joined, comments and long ones left out."""
    typed = "".join(blocks(page, "sh", "bash")).replace("\\\n", " ").splitlines()
    shown = "".join(blocks(page, "console")).replace("\\\n", " ").splitlines()
    lines = typed + [line for line in shown if line.startswith("$ ")]
    wanted = [line.strip() for line in lines if line.strip() and not line.lstrip().startswith("#")]
    return [line for line in wanted if not re.search(r"#\s*long\b", line)]


def runs_here(command: str) -> bool:
    return OWN.match(command) is not None


def run(command: str, folder: Path) -> tuple[int, str]:
    """Run one command in a folder; through a shell only if it needs one."""
    words = OWN.sub("fourfold", command, count=1)
    if set(words) & set("|><;&$`*"):
        names = {"PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"}
        shell = ["bash", "-e", "-o", "pipefail", "-c", words]
        done = subprocess.run(shell, cwd=folder, env=os.environ | names, capture_output=True, text=True, check=False)
        return done.returncode, done.stderr
    with pytest.raises(SystemExit) as ended:
        main(shlex.split(words, comments=True)[1:])
    return int(ended.value.code or 0), ""


def done_whole(page: Path) -> bool:
    """The tutorial, and what there is to add: `tests/docs` does those pages and compares what they show."""
    return page.parent.name == "tutorial" or page.name.startswith("add-")


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder that looks like a fresh clone, in which files may be written."""
    for name in ("examples", "topologies", "docs"):
        if (ROOT / name).exists():
            (tmp_path / name).symlink_to(ROOT / name)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_every_command_in_a_page_is_run_or_known(page):
    """A command that this test neither runs nor knows would rot unseen."""
    strange = [c for c in commands(page) if not runs_here(c) and not re.sub(r"^\$ ", "", c).startswith(NOT_RUN)]
    assert not strange, strange


@pytest.mark.parametrize("page", [p for p in PAGES if not done_whole(p)], ids=lambda p: p.name)
@pytest.mark.docs
def test_commands_in_a_page_work(page, checkout, capsys):
    """In the order given, in one folder, since a later one may read what an earlier one wrote."""
    for command in filter(runs_here, commands(page)):
        code, errors = run(command, checkout)
        captured = capsys.readouterr()
        assert code == 0, f"{command}\n{errors or captured.err}"
        assert "Traceback" not in errors + captured.err


@pytest.mark.docs
@pytest.mark.quick
def test_commands_of_the_readme_work_that_take_no_trained_run(checkout, capsys):
    """For `make test`, which trains elsewhere."""
    asked = [c for c in filter(runs_here, commands(ROOT / "README.md")) if "/tmp/tiny-training" not in c]
    assert len(asked) > 10
    for command in asked:
        code, errors = run(command, checkout)
        assert code == 0, f"{command}\n{errors or capsys.readouterr().err}"


@pytest.mark.parametrize("page", [p for p in PAGES if not done_whole(p)], ids=lambda p: p.name)
def test_job_files_in_a_page_load(page, checkout):
    for text in blocks(page, "yaml", "yml"):
        data = yaml.safe_load(text)
        if isinstance(data, dict) and {"model", "machine"} <= set(data):
            path = checkout / "job.yaml"
            path.write_text(text, encoding="utf-8")
            load_job(path)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_no_line_of_text_begins_with_a_comment(page):
    """Markdown would take the whole line for HTML: its links and code would be shown as they are written."""
    assert not re.findall(r"^<!-- .*? -->[ \t]*[^\s<].*$", page.read_text(encoding="utf-8"), re.MULTILINE)


@pytest.mark.parametrize("page", PAGES, ids=lambda p: p.name)
def test_links_inside_the_repository_lead_somewhere(page):
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"\]\(([^)#\s]+)", text) + re.findall(r"<img[^>]+src=\"([^\"]+)\"", text)
    links = [link for link in found if not re.match(r"\w+:", link)]
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing, missing


@pytest.mark.parametrize("path", sorted((ROOT / "examples").glob("*.yaml")), ids=lambda p: p.stem)
def test_every_example_loads_and_says_what_it_is(path):
    load_job(path)
    assert path.read_text(encoding="utf-8").startswith("# ")


MODULES = [
    p
    for package in ("twin", "runtime")
    for p in sorted((ROOT / package).rglob("*.py"))
    if ">>>" in p.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("path", MODULES, ids=lambda p: str(p.relative_to(ROOT)))
def test_examples_in_docstrings_are_true(path):
    name = ".".join(path.relative_to(ROOT).with_suffix("").parts).removesuffix(".__init__")
    outcome = doctest.testmod(importlib.import_module(name))
    assert outcome.attempted > 0
    assert outcome.failed == 0


def test_the_reader_of_pages_sees_what_it_should(tmp_path, checkout, capsys):
    """The checks above would catch a broken command, and leave a long one alone."""
    page = tmp_path / "page.md"
    page.write_text(
        "text\n```sh\n# first\nfourfold machines \\\n  frontier --json\nmake demo\n"
        "fourfold simulate none.yaml  # long\n```\n```python\nfourfold\n```\n"
        "```sh\n$ fourfold models | head -1\nrm -rf x\n```\n```console\n$ cat x\nwhat it prints\n```\n"
    )
    found = commands(page)
    assert [c.split()[0] for c in found] == ["fourfold", "make", "$", "rm", "$"]
    assert [runs_here(c) for c in found] == [True, False, True, False, False]
    assert run(found[0], checkout)[0] == 0
    assert '"nodes"' in capsys.readouterr().out
    assert run("fourfold machines nowhere", checkout)[0] == 2
    with pytest.raises(AssertionError):
        test_every_command_in_a_page_is_run_or_known(page)
