"""Do what a page of the documents says: write its files, type its commands, run its cells; is what it shows true?"""

from __future__ import annotations

import ast
import contextlib
import io
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import twin

ROOT = Path(twin.__file__).parents[1]
FENCE = re.compile(r"^(?:<!-- (?P<note>[^\n]*) -->\n)?```(?P<language>\w+)[^\n]*\n(?P<text>.*?)^```\n", re.M | re.S)
NUMBER = r"[-+±]?\s?\d[\d,.e+-]*\s?(?:ms|µs|ns|s|%|GB|MB|kB|kWh|J)?(?![\w])"
ANY = "…"
Answer = Callable[[str, str, str, str], str]
"""What is to stand in place of a shown output, given what was typed, the note before it, what was shown, what came."""


def done(page: Path, answer: Answer) -> str:
    """Do what a page says in the present directory; return the page with every output as `answer` has it.

    Before a block may stand a comment: `file: NAME` writes it to a file, `measured` says that numbers differ.
    """
    names: dict[str, Any] = {}
    said: list[str] = []

    def do(found: re.Match[str]) -> str:
        note, language, text = found["note"] or "", found["language"], found["text"]
        whole = found[0]
        if note.startswith("file: "):
            Path(note.removeprefix("file: ")).write_text(text, encoding="utf-8")
        elif language == "python":
            said[:] = [run_cell(text, names), text, note]
        elif language == "text" and said:
            whole = whole.replace(f"```text\n{text}", f"```text\n{answer(said[1], said[2], text, said[0])}")
            said.clear()
        elif language == "console":
            whole = whole[: found.start("text") - found.start()] + _typed(text, note, answer) + "```\n"
        return whole

    return FENCE.sub(do, page.read_text(encoding="utf-8"))


def _typed(text: str, note: str, answer: Answer) -> str:
    parts = []
    for part in re.split(r"^\$ ", text, flags=re.M)[1:]:
        command, _, output = part.partition("\n")
        parts.append(f"$ {command}\n{answer(command, note, output, run_command(command))}")
    return "".join(parts)


def run_command(command: str) -> str:
    """Type a command into a shell; return what it says to standard output."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "COLUMNS": "120"}
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True, env=environment, check=False)
    assert ran.returncode == 0, f"{command}\n{ran.stderr}"
    return "".join(f"{line.rstrip()}\n" for line in ran.stdout.splitlines())


def run_cell(code: str, names: dict[str, Any]) -> str:
    """Run a cell as a notebook does: return what it prints, and its last expression."""
    tree = ast.parse(code)
    last = tree.body.pop() if tree.body and isinstance(tree.body[-1], ast.Expr) else None
    with contextlib.redirect_stdout(io.StringIO()) as out:
        exec(compile(tree, "<cell>", "exec"), names)
        if isinstance(last, ast.Expr):
            value = eval(compile(ast.Expression(last.value), "<cell>", "eval"), names)
            if value is not None:
                print(repr(value))
    return out.getvalue()


def check(typed: str, note: str, shown: str, came: str) -> str:
    """Refuse a page that shows anything else than what came."""
    assert like(shown, came, measured=note == "measured"), f"{typed}\n--- shown\n{shown}\n--- came\n{came}"
    return shown


def fill(_typed: str, note: str, shown: str, came: str) -> str:
    """Show what came, if what is shown is not like it."""
    return shown if shown and like(shown, came, measured=note == "measured") else came


def like(shown: str, came: str, *, measured: bool = False) -> bool:
    """Return True if a page shows what came.

    A line `…` stands for any lines; how long a simulation took does not matter; of what is measured no number does.
    Names of files and seconds that a page is about are neither.
    """

    def lines(text: str) -> list[str]:
        any_number = NUMBER if measured else r"(?<=simulated, )\d[\d.]* s$"
        text = re.sub(any_number, "#", text, flags=re.M)
        return [re.sub(r"[\s█]+", " ", line).strip() for line in text.strip().splitlines()]

    parts = [".*" if line == ANY else re.escape(line) for line in lines(shown)]
    return re.fullmatch("\n".join(parts), "\n".join(lines(came)), re.S) is not None
