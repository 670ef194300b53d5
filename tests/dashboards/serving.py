"""A real server in a thread, and what a plain client says to it."""

from __future__ import annotations

import http.client
import json
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dashboards.app import create_app
from dashboards.security import cookie_name
from dashboards.settings import Settings
from tests.compare.compare_traces import JOB, Row, by_hand_measured, by_hand_predicted, collective, table, write

EXAMPLES = Path(__file__).resolve().parents[2] / "examples" / "runs"
EVIL = '<script>window.hacked=1</script><img src=x onerror="window.hacked=1"><a href="javascript:alert(1)">\'&'
"""What strangers may call their ops."""


def write_hostile(folder: Path) -> None:
    """Write two runs with markup in every name that they may choose, and three that are damaged."""
    job = {**JOB, "name": EVIL, "model": {**JOB["model"], "name": EVIL}}
    for kind, ranks in (("predicted", by_hand_predicted()), ("measured", by_hand_measured())):
        rows = {r: [*part, Row(f"micro0/fwd/{EVIL}", "compute", 140, 150)] for r, part in ranks.items()}
        clock = {"method": EVIL, "uncertainty_ns": 0}
        write(folder / kind, kind, table(rows), job=job, clock=clock, code_version=EVIL)
    for number, text in enumerate(("{", "[" * 100_000, '{"schema_version": 1, "kind": "<b>"}')):
        damaged = folder / f"damaged{number}"
        damaged.mkdir()
        (damaged / "manifest.json").write_text(text)
        (damaged / "events.parquet").write_bytes(b"PAR1 no table PAR1")


def write_training(folder: Path, steps: int = 40) -> Path:
    """Write what `fourfold train` leaves of a job that the example runs predict: a loss that falls."""
    folder.mkdir(parents=True)
    manifest = json.loads((EXAMPLES / "testbed/2x2x2x1-predicted/manifest.json").read_text())
    (folder / "run.json").write_text(json.dumps({"name": "t", "job": manifest["job"]}))
    lines: list[dict[str, Any]] = [{"after_steps": 0, "validation_loss": 6.0, "validation_loss/code": 6.5}]
    lines += [step_line(number, 2 + 4 * 0.9**number) for number in range(steps)]
    lines.append({"after_steps": steps, "validation_loss": 2.2, "validation_loss/code": 2.5})
    (folder / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    for after in (steps // 2, steps):
        (folder / "checkpoints" / f"step-{after:08d}").mkdir(parents=True)
    return folder


def one_late(step: int, nanoseconds: int) -> dict[int, list[Row]]:
    """Two ranks that multiply and meet, steps of 10 µs; the second takes so much longer for its product."""
    found = {}
    for rank in (0, 1):
        begin = 10_000 * step
        came, met = begin + 1000 + rank * nanoseconds, begin + 1000 + nanoseconds
        meeting = collective("micro0/fwd/qkv/all_reduce_x", came, met, met + 200, (came, met + 200))
        found[rank] = [Row("micro0/fwd/qkv/gemm", "compute", begin, came), *meeting]
    return found


def step_line(step: int, loss: float, seconds: float = 0.5) -> dict[str, Any]:
    """A line of `metrics.jsonl`."""
    line = {"step": step, "loss": loss, "gradient_norm": 1.0, "learning_rate": 1e-3, "tokens": 2048 * (step + 1)}
    rates = {"seconds": seconds, "tokens_per_second": 2048 / seconds, "model_flops_per_second": 1e9}
    return {**line, **rates, "model_flops_utilisation": None, "memory_bytes": 500_000_000}


@dataclass(frozen=True)
class Answer:
    """What a server said."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


@dataclass(frozen=True)
class Server:
    """Where a server listens, and its token."""

    port: int
    token: str
    prefix: str = "/"

    @property
    def address(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def ask(
        self, path: str, *, method: str = "GET", body: bytes | None = None, cookie: str | None = None, **headers: str
    ) -> Answer:
        """Send one request exactly as given; `Some_Header="x"` sends `Some-Header: x`."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        sent = {name.replace("_", "-"): value for name, value in headers.items()}
        if cookie is not None:
            sent["Cookie"] = f"{cookie_name(self.token)}={cookie}"
        try:
            connection.request(method, path, body, sent)
            got = connection.getresponse()
            return Answer(got.status, {k.lower(): v for k, v in got.getheaders()}, got.read())
        finally:
            connection.close()

    def sign_in(self) -> str:
        """Show the token once; return the cookie."""
        answer = self.ask(f"/?token={self.token}")
        return answer.headers["set-cookie"].partition("=")[2].partition(";")[0]

    def call(self, cookie: str, body: Any) -> Answer:
        """Send a callback's request."""
        data = body if isinstance(body, bytes) else json.dumps(body).encode()
        return self.ask(
            "/_dash-update-component", method="POST", body=data, cookie=cookie, Content_Type="application/json"
        )


def _close(one: Any) -> None:
    """Close what a server listens to; a channel with what it has not sent yet, which may lie in a temporary file."""
    one.handle_close() if hasattr(one, "outbufs") else one.close()


@contextmanager
def served(settings: Settings) -> Iterator[Server]:
    """Run a server on a free port of this host until the block ends."""
    from waitress import create_server

    server = create_server(create_app(settings).server, host="127.0.0.1", port=0, threads=4, connection_limit=500)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    try:
        yield Server(server.socket.getsockname()[1], settings.token, settings.prefix)
    finally:
        server.task_dispatcher.shutdown()
        # by the thread that waits for these sockets: one closed under its eyes is an error in it
        server.trigger.pull_trigger(lambda: [_close(each) for each in list(server._map.values())])
        thread.join()
