"""The test bed itself: rates as asked for, nothing let out, nothing left behind, all ranks ended."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import nullcontext
from pathlib import Path

import pytest

from tests.testbed.launch import RanksFailedError, run_ranks
from tests.testbed.network import Hosts, existing, hosts, reason_missing, remove_leftovers
from tests.testbed.rank_tasks import BYTES

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
REASON = reason_missing()
needs_hosts = pytest.mark.skipif(REASON is not None, reason=str(REASON))

PAYLOAD_SHARE = 1448 / 1514
"""Of an Ethernet frame with TCP/IP and its time stamps."""


def task(name: str, folder: Path) -> list[str]:
    return [sys.executable, "-m", "tests.testbed.rank_tasks", name, str(folder)]


def own() -> list[str]:
    return [name for name in existing() if f"-{os.getpid()}-" in name]


PORT = 4444
LISTEN = f"""
import socket
with socket.create_server(("", {PORT})) as server:
    print("listening", flush=True)
    while True:
        with server.accept()[0] as peer: peer.sendall(b"this is host 0")
"""
KNOCK = f"""
import socket, sys
try:
    with socket.create_connection((sys.argv[1], {PORT}), timeout=1) as peer: said = peer.recv(99)
except OSError: said = b""
sys.exit(said != b"this is host 0")  # a proxy on this machine's own way out may accept anything
"""


def answers(address: str, network: Hosts | None, host: int = 0) -> bool:
    """Whether a listener at the address can be reached from a host, or from this machine."""
    knock = [sys.executable, "-c", KNOCK, address]
    command = network.command(host, knock) if network else knock
    return subprocess.run(command, check=False, timeout=20).returncode == 0


@needs_hosts
def test_links_have_the_rate_that_was_asked_for(tmp_path):
    with hosts(2, 100e6) as network:
        for rate in (100e6, 200e6):
            network = network.with_rate(rate)  # noqa: PLW2901  the hosts as they are now
            run_ranks(task("bulk", tmp_path), network, 1, time_limit_seconds=60)
            best = min(json.loads((tmp_path / "seconds.json").read_text()))
            expected = 8 * BYTES / (rate * PAYLOAD_SHARE)
            assert best == pytest.approx(expected, rel=0.1)


@needs_hosts
def test_hosts_see_each_other_and_nothing_else():
    with hosts(2) as network, hosts(1) as other:
        listen = network.command(0, [sys.executable, "-c", LISTEN])
        with subprocess.Popen(listen, stdout=subprocess.PIPE, text=True) as listener:
            try:
                assert listener.stdout.readline() == "listening\n"
                assert answers(network.addresses[0], network, 1)
                assert not answers(network.addresses[0], other), "two test beds are apart"
                assert not answers(network.addresses[0], None), "this machine has no way to the hosts"
            finally:
                listener.kill()
        show = network.command(0, ["ip", "route"])
        routes = subprocess.run(show, capture_output=True, text=True, check=True).stdout
        assert [line.split()[0] for line in routes.splitlines()] == ["10.77.0.0/24"], "no way out"


@needs_hosts
def test_nothing_is_left_also_after_a_failure():
    before = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout

    def fail_inside() -> None:
        with hosts(2) as network:
            assert len(own()) == 3
            processes.append(subprocess.Popen(network.command(0, ["sleep", "600"])))
            inside = ["ip", "netns", "pids", network.names[0]]
            while not subprocess.run(inside, capture_output=True, check=True).stdout.split():
                time.sleep(0.01)
            raise ZeroDivisionError

    processes: list[subprocess.Popen[bytes]] = []
    with pytest.raises(ZeroDivisionError):
        fail_inside()
    assert own() == []
    assert processes[0].wait(5) == -signal.SIGKILL
    after = subprocess.run(["ip", "-o", "link"], capture_output=True, text=True, check=True).stdout
    assert [line.split()[1] for line in after.splitlines()] == [line.split()[1] for line in before.splitlines()]


@needs_hosts
@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGINT, signal.SIGKILL])
def test_a_killed_test_bed_is_cleared_away(how):
    code = (
        "import time\nfrom tests.testbed.network import hosts\n"
        "with hosts(2):\n    print('there', flush=True)\n    time.sleep(600)"
    )
    process = subprocess.Popen(
        [sys.executable, "-c", code], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    )
    with process:
        assert process.stdout.readline() == "there\n"
        of_it = [name for name in existing() if f"-{process.pid}-" in name]
        assert len(of_it) == 3
        remove_leftovers()  # of the dead only
        assert set(of_it) <= set(existing())
        process.send_signal(how)
        process.wait(20)
    if how == signal.SIGKILL:
        remove_leftovers()
    assert not set(of_it) & set(existing())


@pytest.mark.parametrize("nodes", [pytest.param(2, marks=needs_hosts), None])
def test_a_failing_rank_stops_all(tmp_path, nodes):
    begin = time.monotonic()
    with nullcontext(None) if nodes is None else hosts(nodes) as network:  # noqa: SIM117
        with pytest.raises(RanksFailedError, match="rank 1 has had enough") as caught:
            run_ranks(task("fail_on_1", tmp_path), network, 1 if network else 3)
    assert caught.value.codes[1] == 1
    assert time.monotonic() - begin < 30


def test_ranks_that_take_too_long_are_stopped():
    with pytest.raises(RanksFailedError, match="too long"):
        run_ranks([sys.executable, "-c", "import time; time.sleep(60)"], None, 2, time_limit_seconds=0.5)
