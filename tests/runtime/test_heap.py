"""Settings of the heap, against what glibc itself says that it has read."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from pathlib import Path

import pytest

from runtime.launch.heap import SETTINGS, TUNABLES, heap_advice, heap_environment

LOADER = Path("/lib64/ld-linux-x86-64.so.2")


@pytest.mark.process
@pytest.mark.quick
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc" or not LOADER.exists(), reason="not glibc on x86-64")
def test_glibc_reads_every_setting():
    environment = {**os.environ, **heap_environment({})}
    listed = subprocess.run([LOADER, "--list-tunables"], env=environment, capture_output=True, text=True, check=True)
    for name, value in SETTINGS.items():
        line = re.search(rf"^{re.escape(name)}: (0x[0-9a-f]+)", listed.stdout, re.MULTILINE)
        assert line is not None, f"this glibc has no {name}"
        assert int(line[1], 16) == value


def test_what_the_user_has_set_stays():
    assert heap_environment({TUNABLES: "glibc.malloc.arena_max=2"}) == {}


def test_who_was_not_told_is_advised(monkeypatch):
    monkeypatch.setattr(platform, "libc_ver", lambda: ("glibc", "2.36"))
    settings = heap_environment({})[TUNABLES]
    assert heap_advice({}).endswith(f"start them with {TUNABLES}={settings}")
    assert heap_advice({TUNABLES: settings}) == ""
    monkeypatch.setattr(platform, "libc_ver", lambda: ("", ""))
    assert heap_advice({}) == ""


def test_the_docs_name_the_settings():
    page = Path(__file__).parents[2] / "docs/howto/training.md"
    assert f"export {TUNABLES}={heap_environment({})[TUNABLES]}\n" in page.read_text(encoding="utf-8")
