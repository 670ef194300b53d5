"""Faults as they are injected are faults, and what ranks measure of them tells where they are."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from tests.testbed.faults import KINDS, drawn, limited, no_limits
from tests.testbed.find_faults import main
from tests.testbed.launch import run_ranks
from tests.testbed.network import hosts, reason_missing, relimited
from tests.testbed.test_testbed import needs_hosts, task
from twin.diagnose.probe import read_probe

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
SPIN = "import time; b = time.monotonic()\nwhile time.monotonic() - b < 2: pass\nprint(time.process_time() / 2)"


def test_faults_are_the_same_for_a_seed_and_all_kinds_come():
    faults = [drawn(seed, 4, 2) for seed in range(100)]
    assert faults == [drawn(seed, 4, 2) for seed in range(100)]
    assert Counter(fault.kind for fault in faults) == dict.fromkeys(KINDS, 20)
    assert {f.where for f in faults if f.kind == "link"} == set(range(4))


@pytest.mark.skipif(no_limits() is not None, reason=str(no_limits()))
def test_a_limited_process_gets_no_more_than_its_share():
    with limited(0.1, "test") as group:
        join = f"import os, pathlib; pathlib.Path({str(group / 'cgroup.procs')!r}).write_text(str(os.getpid()))\n"
        done = subprocess.run([sys.executable, "-c", join + SPIN], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 0.13
    assert not group.exists()


@needs_hosts
def test_the_probe_sees_whose_link_has_half_its_rate(tmp_path):
    with hosts(3, 200e6) as network:
        relimited(network, 1, 0.5)
        run_ranks(task("probe", tmp_path), network, 2, time_limit_seconds=120)
    found = read_probe({"probe": json.loads((tmp_path / "probe.json").read_text())}, 3, "here")
    assert found is not None
    sent_by, to, seconds = found.pairs(())
    slow = (sent_by == 1) | (to == 1)
    payload = 2 * found.bytes * 8 * 1514 / 1448
    assert np.median(seconds[~slow]) == pytest.approx(payload / 200e6, rel=0.25)
    assert np.median(seconds[slow]) == pytest.approx(payload / 100e6, rel=0.25)


def test_without_root_the_command_says_so(monkeypatch, capsys, tmp_path):
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert reason_missing() is not None
    assert main(["--machine", str(tmp_path / "machine.yaml")]) == 2
    assert "root" in capsys.readouterr().err
