"""Hosts made of network namespaces, joined by a switch through links of a known rate.

    host 0: eth0 ── port0 ┐
    host 1: eth0 ── port1 ┤ bridge, in a namespace of its own
    …                     ┘

Token buckets at both ends of each pair limit what a host sends and what it receives. As good networks
do, acknowledgements go before data: where both directions are full they would else wait behind it, and
neither direction would reach its rate. Nothing is added to the root namespace, so no packet can
leave. Names carry the process number: what a killed test bed left behind is removed by the next one, and
several can live at once.
"""

from __future__ import annotations

import os
import re
import secrets
import shutil
import signal
import subprocess
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

PREFIX = "fourfold"
NAMESPACES = Path("/run/netns")
SETTINGS = {
    # no chatter of its own, and no message slower than another because of what came before it
    "ipv6/conf/all/disable_ipv6": 1,
    "ipv4/tcp_no_metrics_save": 1,
    "ipv4/tcp_slow_start_after_idle": 0,
}
FRAME_BYTES = 9000
"""Large frames, as in clusters: less work for the cores that ranks compute on."""
SMALL_SHARE = 0.25
"""Of the rate, kept free for acknowledgements if they need it; data takes what they leave."""
LEAVE_SECONDS = 5.0
"""How long killed processes may take to leave a namespace."""


@dataclass(frozen=True)
class Link:
    """A host's link to the switch, the same both ways."""

    rate_bits_per_second: float
    burst_bytes: int
    """What a link that was idle lets through at once."""
    queue_bytes: int
    """What may wait; more is dropped, and TCP then waits 200 ms."""


@dataclass(frozen=True)
class Hosts:
    """Hosts that see each other and nothing else."""

    names: tuple[str, ...]
    """Namespaces."""
    addresses: tuple[str, ...]
    switch: str
    link: Link
    device: str = "eth0"

    def command(self, host: int, command: Sequence[str]) -> list[str]:
        """The command line that runs a command on a host."""
        return ["ip", "netns", "exec", self.names[host], *command]

    def with_rate(self, rate_bits_per_second: float) -> Hosts:
        """Change the rate of all links, and return the hosts as they are now."""
        changed = replace(self, link=replace(self.link, rate_bits_per_second=rate_bits_per_second))
        for index in range(len(self.names)):
            _limit(changed, index, "change")
        return changed


def relimited(made: Hosts, host: int, share: float) -> None:
    """Let one host's link have this share of its rate, both ways."""
    rate = share * made.link.rate_bits_per_second
    _limit(replace(made, link=replace(made.link, rate_bits_per_second=rate)), host, "change")


@contextmanager
def hosts(
    nodes: int = 4, rate_bits_per_second: float = 400e6, *, burst_bytes: int = 16_384, queue_bytes: int = 64 << 20
) -> Iterator[Hosts]:
    """Make hosts; they are gone at the end, also after an error, Ctrl-C or SIGTERM."""
    remove_leftovers()
    base = f"{PREFIX}-{os.getpid()}-{secrets.token_hex(3)}"
    made = Hosts(
        tuple(f"{base}-host{i}" for i in range(nodes)),
        tuple(f"10.77.0.{i + 1}" for i in range(nodes)),
        f"{base}-switch",
        Link(rate_bits_per_second, burst_bytes, queue_bytes),
    )
    with orderly_end():
        try:
            _make(made)
            yield made
        finally:
            for name in (*made.names, made.switch):
                remove(name)


def reason_missing() -> str | None:
    """Why there can be no hosts here; None if there can."""
    if missing := [tool for tool in ("ip", "tc") if shutil.which(tool) is None]:
        return f"needs {' and '.join(missing)} (iproute2)"
    if os.geteuid() != 0:
        return "needs root to make network namespaces"
    try:
        with hosts(1):
            return None
    except subprocess.CalledProcessError as error:
        return f"{' '.join(error.cmd)}: {error.stderr.strip()}"


def remove_leftovers() -> None:
    """Remove the namespaces of test beds whose process is gone."""
    for name in existing():
        owner = re.match(rf"{PREFIX}-(\d+)-", name)
        if owner and not Path(f"/proc/{owner[1]}").exists():
            remove(name)


def existing() -> list[str]:
    """Namespaces of all test beds on this machine."""
    if not NAMESPACES.is_dir():
        return []
    return sorted(p.name for p in NAMESPACES.iterdir() if re.match(rf"{PREFIX}-\d+-", p.name))


def remove(name: str) -> None:
    """Remove a namespace and the processes that live in it; nothing happens if there is none."""
    deadline = time.monotonic() + LEAVE_SECONDS
    while (NAMESPACES / name).exists() and time.monotonic() < deadline:
        inside = subprocess.run(["ip", "netns", "pids", name], capture_output=True, text=True, check=False)
        if not inside.stdout.split():
            break
        for process in inside.stdout.split():
            with suppress(ProcessLookupError):
                os.kill(int(process), signal.SIGKILL)
        time.sleep(0.02)
    if (NAMESPACES / name).exists():
        subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)


def _make(made: Hosts) -> None:
    _run("ip", "netns", "add", made.switch)
    _set(made.switch)
    _run("ip", "-n", made.switch, "link", "add", "switch", "type", "bridge")
    _run("ip", "-n", made.switch, "link", "set", "switch", "up")
    for index, (name, address) in enumerate(zip(made.names, made.addresses, strict=True)):
        port = f"port{index}"
        _run("ip", "netns", "add", name)
        _set(name)
        _run(
            "ip", "link", "add", made.device, "netns", name, "type", "veth", "peer", "name", port, "netns", made.switch
        )
        _run("ip", "-n", name, "link", "set", made.device, "mtu", str(FRAME_BYTES))
        _run("ip", "-n", made.switch, "link", "set", port, "mtu", str(FRAME_BYTES))
        _run("ip", "-n", made.switch, "link", "set", port, "master", "switch", "up")
        _run("ip", "-n", name, "address", "add", f"{address}/24", "dev", made.device)
        for device in ("lo", made.device):
            _run("ip", "-n", name, "link", "set", device, "up")
        _limit(made, index, "add")


def _limit(made: Hosts, index: int, verb: str) -> None:
    """Put (add) or change the token buckets at both ends of a host's link."""
    link = made.link
    burst = ("burst", str(link.burst_bytes), "cburst", str(link.burst_bytes))
    rate = link.rate_bits_per_second
    classes = (
        ("1:", "1:1", 1.0, ()),
        ("1:1", "1:10", SMALL_SHARE, ("prio", "0")),
        ("1:1", "1:20", 1 - SMALL_SHARE, ("prio", "1")),
    )
    for name, device in ((made.names[index], made.device), (made.switch, f"port{index}")):
        if verb == "add":
            _tc(name, "qdisc", verb, device, "root", "handle", "1:", "htb", "default", "20")
        for parent, number, share, priority in classes:
            _tc(
                name,
                "class",
                verb,
                device,
                "parent",
                parent,
                "classid",
                number,
                "htb",
                "rate",
                f"{share * rate:.0f}bit",
                "ceil",
                f"{rate:.0f}bit",
                *priority,
                *burst,
            )
        if verb == "add":
            _tc(name, "qdisc", verb, device, "parent", "1:20", "bfifo", "limit", str(link.queue_bytes))
            # packets of less than 128 bytes
            _tc(
                name,
                "filter",
                verb,
                device,
                "parent",
                "1:",
                "protocol",
                "ip",
                "prio",
                "1",
                "u32",
                "match",
                "u16",
                "0x0000",
                "0xff80",
                "at",
                "2",
                "flowid",
                "1:10",
            )


def _tc(name: str, what: str, verb: str, device: str, *rest: str) -> None:
    _run("tc", "-n", name, what, verb, "dev", device, *rest)


def _set(name: str) -> None:
    script = "; ".join(
        f"test ! -e /proc/sys/net/{key} || echo {value} > /proc/sys/net/{key}" for key, value in SETTINGS.items()
    )
    _run("ip", "netns", "exec", name, "sh", "-c", script)


def _run(*command: str) -> None:
    subprocess.run(command, capture_output=True, text=True, check=True)


@contextmanager
def orderly_end() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the program by way of every `finally`."""

    def leave(number: int, _frame: object) -> None:
        raise SystemExit(128 + number)

    if threading.current_thread() is not threading.main_thread():
        yield  # only the main thread may decide about signals
        return
    before = {n: signal.signal(n, leave) for n in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
