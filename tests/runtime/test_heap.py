"""Settings of the heap, against what glibc itself says that it has read."""

from __future__ import annotations

import os
import platform
import re
import subprocess
import sys
from pathlib import Path

import pytest

from runtime.launch.heap import SETTINGS, TUNABLES, heap_environment
from runtime.parallel.flight_recorder import SIZES

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


RECORDED = """
import json, os, sys
import torch, torch.distributed as dist
from torch._C import _distributed_c10d
from runtime.parallel.flight_recorder import forget_collectives
if sys.argv[1:]:
    forget_collectives(os.environ)
dist.init_process_group("gloo", rank=0, world_size=1, store=dist.HashStore())
dist.all_reduce(torch.ones(4))
print(len(json.loads(_distributed_c10d._dump_fr_trace_json()).get("entries", [])))
"""


@pytest.mark.process
@pytest.mark.parametrize(("told", "size", "remembered"), [(False, None, 1), (True, None, 0), (True, "10", 1)])
def test_no_collective_is_remembered_unless_the_user_wants_it(told, size, remembered):
    environment = {name: value for name, value in os.environ.items() if name not in SIZES}
    environment |= {} if size is None else {SIZES[0]: size}
    command = [sys.executable, "-c", RECORDED, *(["told"] if told else [])]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=True)
    assert int(done.stdout) == remembered


def test_the_docs_name_the_settings():
    page = Path(__file__).parents[2] / "docs/howto/training.md"
    assert f"export {TUNABLES}={heap_environment({})[TUNABLES]}\n" in page.read_text(encoding="utf-8")
